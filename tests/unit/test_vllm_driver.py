"""The process a spec becomes: argv, environment, and what is refused before anything starts."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.core.names import ENV_VLLM_PYTHON
from controlplane.core.protocol import EngineSpec, Rank
from workers.engines.base import Launch, Place, SpecRefused
from workers.engines.vllm import driver


@pytest.fixture(autouse=True)
def _interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_VLLM_PYTHON, sys.executable)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path / "model"


def cpu_spec(model: Path) -> EngineSpec:
    return EngineSpec(
        id="e-1", model="tiny", source=str(model), connector="nixl", ranks=(Rank("n1", ("cpu-n1-0",)),), kind="vllm",
        spec_generation=1, args={"max_model_len": 2048, "dtype": "float32"}, gpu_kind="cpu",
    )  # fmt: skip


def gpu_spec() -> EngineSpec:
    return EngineSpec(
        id="e-2", model="llama-70b", source="meta-llama/Llama-3.1-70B-Instruct", connector="nixl",
        ranks=(Rank("n1", ("GPU-2", "GPU-3")),), kind="vllm", spec_generation=1, tensor_parallel=2, gpu_kind="h100-sxm",
        args={"gpu_memory_utilization": 0.9, "enable_prefix_caching": False}, env={"HF_TOKEN": "hub"}, kv_lease_s=45.0,
    )  # fmt: skip


def place(tmp_path: Path, gpu_indices: tuple[int, ...] = (0,), host: str = "127.0.0.1") -> Place:
    return Place(
        host=host, port=18001, side_port=18002, folder=tmp_path, shared=tmp_path / "shared", incarnation=1,
        engine_key="k3y", gpu_indices=gpu_indices, secrets={"hub": "hf_secret"},
    )  # fmt: skip


def option(launch: Launch, name: str) -> str | None:
    return next((word.partition("=")[2] for word in launch.argv if word.startswith(f"--{name}=")), None)


def transfer(launch: Launch) -> dict[str, object]:
    config: dict[str, object] = json.loads(option(launch, "kv-transfer-config") or "{}")
    return config


def test_a_cpu_engine_gets_its_whole_command_line(model: Path, tmp_path: Path) -> None:
    launch = driver.launch(cpu_spec(model), 0, place(tmp_path))
    assert launch.argv[:3] == (sys.executable, "-m", "vllm.entrypoints.openai.api_server")
    assert set(launch.argv[3:]) == {
        f"--model={model}", "--served-model-name=tiny", "--host=127.0.0.1", "--port=18001", "--tensor-parallel-size=1",
        "--pipeline-parallel-size=1", "--shutdown-timeout=60", "--max-model-len=2048", "--dtype=float32", "--enforce-eager",
        "--kv-cache-memory-bytes=268435456", "--no-trust-remote-code", "--no-enable-log-requests",
        "--no-enable-log-outputs", "--enable-prompt-tokens-details", "--disable-access-log-for-endpoints=/health,/metrics",
        f"--kv-transfer-config={option(launch, 'kv-transfer-config')}",
    }  # fmt: skip
    assert transfer(launch) == {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_both",
        "kv_buffer_device": "cpu",
        "kv_load_failure_policy": "fail",
        "kv_connector_extra_config": {"kv_lease_duration": 30},
    }
    assert launch.env["OMP_NUM_THREADS"] == "1"
    assert launch.env["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert launch.env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "18002"
    assert launch.env["UCX_NET_DEVICES"] == "lo"
    assert launch.env["TORCHDYNAMO_DISABLE"] == "1"  # no C++ compiler needed, no compilation in the first request
    assert launch.env["HF_HUB_OFFLINE"] == "1"
    assert (Path(launch.env["PYTHONPATH"]) / "sitecustomize.py").is_file()  # the one folder
    assert "VLLM_CPU_KVCACHE_SPACE" not in launch.env


def test_a_gpu_engine_sees_its_gpus_and_none_of_the_cpu_settings(tmp_path: Path) -> None:
    launch = driver.launch(gpu_spec(), 0, place(tmp_path, gpu_indices=(2, 3), host="10.0.0.5"))
    assert launch.env["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert launch.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "10.0.0.5"
    assert not {"PYTHONPATH", "OMP_NUM_THREADS", "UCX_NET_DEVICES", "HF_HUB_OFFLINE"} & launch.env.keys()
    assert option(launch, "tensor-parallel-size") == "2"
    assert option(launch, "gpu-memory-utilization") == "0.9"
    assert "--no-enable-prefix-caching" in launch.argv
    assert "--enforce-eager" not in launch.argv
    assert option(launch, "kv-cache-memory-bytes") is None
    assert transfer(launch) == {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "fail",
        "kv_connector_extra_config": {"kv_lease_duration": 45},
    }


def test_secrets_go_by_environment_and_are_in_no_word_of_the_command_line(tmp_path: Path) -> None:
    launch = driver.launch(gpu_spec(), 0, place(tmp_path, gpu_indices=(2, 3)))
    assert launch.env["VLLM_API_KEY"] == "k3y"
    assert launch.env["HF_TOKEN"] == "hf_secret"
    assert not any("k3y" in word or "hf_secret" in word for word in launch.argv)
    assert "k3y" not in repr(launch)


def test_the_example_connector_never_lets_a_prompt_be_split(model: Path, tmp_path: Path) -> None:
    spec = replace(cpu_spec(model), connector="example", args={"max_model_len": 2048, "max_num_batched_tokens": 512})
    launch = driver.launch(spec, 0, place(tmp_path))
    assert "--no-enable-chunked-prefill" in launch.argv
    assert option(launch, "max-num-batched-tokens") == "2048"
    assert transfer(launch)["kv_connector_extra_config"] == {"shared_storage_path": str(tmp_path / "shared")}
    module = f"{transfer(launch)['kv_connector_module_path']}.py"
    assert any((Path(folder) / module).is_file() for folder in launch.env["PYTHONPATH"].split(":"))


def test_without_a_connector_nothing_is_said_about_transfer(model: Path, tmp_path: Path) -> None:
    launch = driver.launch(replace(cpu_spec(model), connector="none"), 0, place(tmp_path))
    assert option(launch, "kv-transfer-config") is None


def test_given_arguments_never_replace_what_twinpool_sets(model: Path, tmp_path: Path) -> None:
    launch = driver.launch(replace(cpu_spec(model), args={"enforce_eager": False}), 0, place(tmp_path))
    assert "--no-enforce-eager" in launch.argv  # a default of ours may be replaced
    names = [word.partition("=")[0] for word in launch.argv[3:]]
    assert len(names) == len(set(names))
    assert all(word.startswith("--") for word in launch.argv[3:])  # a value is never a word of its own


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"args": {"trust_remote_code": True}}, "trust_remote_code.*not allowed"),
        ({"args": {"port": 1}}, "set by Twinpool"),
        ({"env": {"LD_PRELOAD": "x"}}, "LD_PRELOAD.*HF_TOKEN"),
        ({"env": {"HF_TOKEN": "other"}}, "no secret of that name"),
        ({"source": "/nowhere/model"}, "no model folder.*copy the model"),
        ({"source": "--middleware=x"}, "neither an absolute path nor a hub id"),
        ({"source": "a/b/../../c"}, "neither an absolute path nor a hub id"),
        ({"tensor_parallel": 2}, "needs 2 accelerators.*was given 1"),
        ({"ranks": (Rank("n1", ("a",)), Rank("n2", ("b",)))}, "spans 2 nodes.*fits one node"),
        ({"kv_lease_s": 0.5}, "whole number of seconds, at least 6"),
        ({"connector": "example", "args": {}}, "max_model_len"),
        ({"connector": "example", "tensor_parallel": 2, "ranks": (Rank("n1", ("a", "b")),)}, "one accelerator only"),
        ({"connector": "example", "args": {"max_model_len": 64, "enable_chunked_prefill": True}}, "enable_chunked_prefill"),
    ],
)
def test_what_cannot_run_is_refused_with_the_reason(
    change: dict[str, object], said: str, model: Path, tmp_path: Path
) -> None:
    with pytest.raises(SpecRefused, match=said):
        driver.launch(replace(cpu_spec(model), **change), 0, place(tmp_path))  # type: ignore[arg-type]


def test_a_gpu_that_left_the_node_is_refused_before_start(tmp_path: Path) -> None:
    with pytest.raises(SpecRefused, match="does not have all of the GPUs"):
        driver.launch(gpu_spec(), 0, place(tmp_path, gpu_indices=(2,)))


def test_a_machine_without_an_engine_environment_is_told_how_to_get_one(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ENV_VLLM_PYTHON)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(SpecRefused, match=r"manage\.py engine-env"):
        driver.launch(cpu_spec(model), 0, place(tmp_path))


def test_a_named_interpreter_that_is_none_is_refused(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_VLLM_PYTHON, "python3")
    with pytest.raises(SpecRefused, match="no absolute path of an executable"):
        driver.launch(cpu_spec(model), 0, place(tmp_path))


def test_kv_events_go_where_the_spec_says_under_the_engines_name(model: Path, tmp_path: Path) -> None:
    wanted = replace(cpu_spec(model), kv_events={"endpoint": "tcp://127.0.0.1:5557", "hwm": 50})
    config = json.loads(option(driver.launch(wanted, 0, place(tmp_path)), "kv-events-config") or "{}")
    assert config == {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": "tcp://127.0.0.1:5557",
        "topic": "kv@e-1",
        "hwm": 50,
    }
    assert option(driver.launch(cpu_spec(model), 0, place(tmp_path)), "kv-events-config") is None


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ({"endpoint": "tcp://*:5557"}, "every address of the node"),
        ({"endpoint": "tcp://127.0.0.1:5557", "replay_endpoint": "tcp://*:5558"}, "every address of the node"),
        ({"endpoint": "tcp://1.2.3.4:5557"}, "private address"),
    ],
)
def test_kv_events_that_others_could_read_are_refused(
    model: Path, tmp_path: Path, events: dict[str, str], says: str
) -> None:
    with pytest.raises(SpecRefused, match=says):
        driver.launch(replace(cpu_spec(model), kv_events=events), 0, place(tmp_path))
