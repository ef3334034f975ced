"""What an agent accepts at its start."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.core import names
from controlplane.core.accelerators import kind_of_nvml_name
from workers.config import Accelerators, AgentConfig, BadConfig, parse_accelerators, read_config


def config(tmp_path: Path, *options: str, key: bytes = b"k" * 32, mode: int = 0o600, **environ: str) -> AgentConfig:
    file = tmp_path / "node.key"
    file.write_bytes(key)
    file.chmod(mode)
    argv = ["--node", "n1", "--state", str(tmp_path), "--accelerators", "cpu:2", "--address", "127.0.0.1", *options]
    urls = {names.ENV_VALKEY_URL: "redis://:pw@h:1/0", names.ENV_NODE_KEY_FILE: str(file)}
    return read_config(argv, {**urls, **environ})


def test_a_whole_command_line_is_read(tmp_path: Path) -> None:
    read = config(tmp_path, "--network-gbps", "400", "--label", "zone=a", "--label", "rack=7")
    assert (read.node, read.network_gbps, read.labels) == ("n1", 400.0, {"zone": "a", "rack": "7"})
    assert read.telemetry_url == read.broker_url


def test_telemetry_may_go_to_another_server(tmp_path: Path) -> None:
    assert config(tmp_path, **{names.ENV_TELEMETRY_URL: "redis://t"}).telemetry_url == "redis://t"


def test_no_secret_is_in_the_repr(tmp_path: Path) -> None:
    assert "pw" not in repr(config(tmp_path)) and "kkk" not in repr(config(tmp_path))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"key": b"short"}, "has 5 bytes instead of 32"),
        ({"mode": 0o644}, "chmod 600"),
        ({names.ENV_VALKEY_URL: ""}, "TWINPOOL_VALKEY_URL is not set"),
        ({names.ENV_NODE_KEY_FILE: ""}, "TWINPOOL_NODE_KEY_FILE is not set"),
        ({names.ENV_NODE_KEY_FILE: "/nowhere/k"}, "cannot read the node key /nowhere/k"),
    ],
)
def test_a_bad_environment_is_refused_with_the_remedy(tmp_path: Path, changes: dict[str, str], why: str) -> None:
    with pytest.raises(BadConfig, match=why):
        config(tmp_path, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nvml", Accelerators("nvml")),
        ("cpu:2", Accelerators("cpu", 2, "cpu")),
        ("sim:8xh100-sxm", Accelerators("sim", 8, "h100-sxm")),
    ],
)
def test_accelerators_are_read(text: str, expected: Accelerators) -> None:
    assert parse_accelerators(text) == expected


@pytest.mark.parametrize(
    "text", ["", "gpu", "cpu", "cpu:0", "cpu:-1", "cpu:999", "sim:8", "sim:0xh100-sxm", "sim:8xnone", "nvml:2"]
)
def test_unknown_accelerators_are_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match="not one of nvml, cpu:N, sim:NxKIND"):
        parse_accelerators(text)


def test_a_bad_option_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        config(tmp_path, "--node", "a/b")
    assert "'a/b' is no node name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA GeForce RTX 4090", "geforce-rtx-4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000-blackwell-workstati"),
    ],
)
def test_nvml_names_become_kinds(name: str, kind: str) -> None:
    assert kind_of_nvml_name(name) == kind
