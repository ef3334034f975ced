"""The files of deploy/ against the programs they start: commands exist and take these options, settings are real ones,
probes ask what is answered, ports and volumes fit together. What only a cluster could tell is not tested here."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.config import Config
from controlplane.core import names
from controlplane.live.server import OPEN_REQUESTS_S
from controlplane.router.paths import ENDPOINTS
from controlplane.stack.services import ROOT
from workers.app import STOP_ALL_GRACE_S

DEPLOY = ROOT / "deploy"
SETTINGS = {f"TWINPOOL_{name.upper()}" for name in Config.model_fields} | {
    value for name, value in vars(names).items() if name.startswith("ENV_")
}
WITHOUT_A_LOGIN = {"/healthz"}
"""What kubelets may ask web for."""


def units() -> list[Path]:
    return sorted((DEPLOY / "systemd").glob("*.service"))


@cache
def unit(path: Path) -> dict[str, list[str]]:
    """Directives by name, of all sections: none is in two of them."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if line and not line.startswith(("#", "[")):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


@cache
def objects() -> tuple[dict[str, Any], ...]:
    """Every Kubernetes object that the kustomization names."""
    wanted = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())["resources"]
    there = {file.name for file in (DEPLOY / "kubernetes").glob("*.yaml")} - {"kustomization.yaml"}
    assert set(wanted) == there, "a file that nothing applies, or a name without a file"
    texts = ((DEPLOY / "kubernetes" / name).read_text() for name in wanted)
    return tuple(each for text in texts for each in yaml.safe_load_all(text))


def workloads() -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in objects() if "template" in each.get("spec", {})}


def pod(name: str) -> dict[str, Any]:
    return dict(workloads()[name]["spec"]["template"]["spec"])


def container(name: str) -> dict[str, Any]:
    (found,) = pod(name)["containers"]
    return dict(found)


@cache
def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text()))


def commands() -> list[tuple[str, ...]]:
    """Every command line of ours in all files, from `python` on, each once."""
    lines = [shlex.split(unit(path)["ExecStart"][0]) for path in units()]
    lines += [container(name)["command"] for name in workloads()]
    lines += [service["command"] for service in compose()["services"].values() if "command" in service]
    found = set()
    for line in lines:
        words = shlex.split(line[2].partition("exec ")[2].partition("<")[0]) if line[:2] == ["sh", "-c"] else line
        if words and words[0].endswith("python"):
            found.add(tuple(words[1:]))
    return sorted(found)


@cache
def helped(*program: str) -> str:
    """What `--help` of a program prints."""
    asked = subprocess.run([sys.executable, *program, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert asked.returncode == 0, asked.stderr
    return asked.stdout


def test_there_is_a_command_for_each_process() -> None:
    started = {" ".join(line[:2]) for line in commands()}
    assert started == {
        *("-m controlplane.live.server", "-m controlplane.router", "-m celery"),
        *("manage.py ingest", "manage.py migrate", "manage.py agent"),
    }


@pytest.mark.parametrize("line", commands(), ids=lambda line: " ".join(line)[:60])
def test_a_command_exists_and_takes_its_options(line: tuple[str, ...]) -> None:
    program = line[:5] if line[:2] == ("-m", "celery") else line[:2]
    known = helped(*program)
    options = [word for word in line[len(program) :] if re.fullmatch(r"--?[a-zA-Z][a-z-]*", word)]
    options = [word for word in options if word != "--no-input"]  # Django hides it in --noinput
    assert options or line[1] == "ingest"
    for word in options:
        assert re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", known), f"{word} is no option of {' '.join(program)}"


@pytest.mark.parametrize("path", units(), ids=lambda path: path.name)
def test_a_unit_starts_our_program_as_its_own_user_and_is_kept_alive(path: Path) -> None:
    told = unit(path)
    assert told["User"] == ["twinpool"] and told["WorkingDirectory"] == ["/opt/twinpool"]
    assert told["NoNewPrivileges"] == ["yes"] and told["UMask"] == ["0077"]
    assert told["Restart" if told["Type"] != ["oneshot"] else "RemainAfterExit"] in (["always"], ["yes"])
    for name in (word.partition("=")[0] for word in told.get("Environment", [])):
        assert name in SETTINGS
    assert not any("://" in value and "@" in value for value in told["ExecStart"]), "a password in a command line"


def test_the_agents_unit_lets_engines_live() -> None:
    told = unit(DEPLOY / "systemd" / "twinpool-agent.service")
    assert told["KillMode"] == ["process"] and told["OOMPolicy"] == ["continue"]
    assert not {"PrivateTmp", "RuntimeDirectory", "MemoryMax"} & set(told), (
        "what stops with the unit would take from engines"
    )


def test_only_migrations_know_the_owner_of_the_tables() -> None:
    files = {path.name: unit(path)["EnvironmentFile"] for path in units()}
    assert [name for name, told in files.items() if "/etc/twinpool/owner.env" in told] == ["twinpool-migrate.service"]
    assert [name for name in workloads() if "twinpool-owner" in str(pod(name))] == ["twinpool-migrate"]
    services = compose()["services"]
    assert [name for name, told in services.items() if names.ENV_DATABASE_OWNER_URL in str(told)] == ["migrate"]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd here")
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    """Programs and users that only an installed machine has are replaced by ones that are here."""
    for path in units():
        text = path.read_text().replace("/opt/twinpool/.venv/bin/python", sys.executable)
        (tmp_path / path.name).write_text(text.replace("=/opt/twinpool", f"={ROOT}"))
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *map(str, tmp_path.glob("*.service"))]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120)
    ours = [line for line in said.stderr.splitlines() if line.startswith((str(tmp_path), "twinpool-"))]
    assert ours == []


def test_the_settings_in_files_are_real_ones() -> None:
    text = "".join(path.read_text() for path in DEPLOY.rglob("*") if path.is_file() and path.suffix != ".json")
    made_up = {"TWINPOOL_IMAGE"}
    assert set(re.findall(r"\bTWINPOOL_[A-Z_]+", text)) - SETTINGS == made_up


def test_a_secret_is_only_named_never_told() -> None:
    for each in objects():
        assert each["kind"] != "Secret"
        assert not re.search(r"(redis|postgresql)s?://[^ ]*:[^ $]+@", str(each))
    assert "CHANGE-ME" in (DEPLOY / "systemd" / "twinpool.env").read_text()
    wanted = re.findall(r"\$\{(\w*PASSWORD)", (DEPLOY / "compose" / "compose.yaml").read_text())
    assert set(wanted) == {"OWNER_PASSWORD", "APP_PASSWORD", "VALKEY_PASSWORD"}
    assert all(f"{name}=\n" in (DEPLOY / "compose" / "env.example").read_text() for name in wanted)


def test_every_object_is_whole_and_selects_what_there_is() -> None:
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in workloads().values()]
    for each in objects():
        assert each["apiVersion"] and each["metadata"]["name"], each
        spec = each.get("spec", {})
        selector = spec.get("selector") or spec.get("podSelector") or {}
        wanted = selector.get("matchLabels", selector if each["kind"] == "Service" else {})
        if wanted:
            assert any(wanted.items() <= found.items() for found in labels), each["metadata"]["name"]
        if "template" in spec and "selector" in spec:
            assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    assert {each["kind"] for each in objects()} >= {"Deployment", "DaemonSet", "Job", "Service", "PodDisruptionBudget"}


@pytest.mark.parametrize("name", sorted(workloads()))
def test_a_pod_has_limits_few_rights_and_volumes_that_are_there(name: str) -> None:
    spec = pod(name)
    assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    assert spec["automountServiceAccountToken"] is False
    volumes = {volume["name"] for volume in spec["volumes"]}
    for each in (*spec.get("initContainers", ()), *spec["containers"]):
        rights = each["securityContext"]
        assert rights["allowPrivilegeEscalation"] is False and rights["readOnlyRootFilesystem"] is True
        assert rights["capabilities"]["drop"] == ["ALL"]
        assert each["resources"]["requests"] and "memory" in each["resources"]["limits"]
        assert {mount["name"] for mount in each["volumeMounts"]} <= volumes
        for variable in each.get("env", ()):
            source = variable.get("valueFrom", {})
            assert ("value" in variable) != bool(source)
            if "secretKeyRef" in source:
                assert source["secretKeyRef"]["name"] in ("twinpool-servers", "twinpool-owner")


@pytest.mark.parametrize(
    "name", ["twinpool-web", "twinpool-router", "twinpool-control", "twinpool-ingest", "twinpool-agent"]
)
def test_probes_ask_a_port_and_a_path_that_answer(name: str) -> None:
    told = container(name)
    (port,) = told["ports"]
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        probe = told[kind].get("httpGet") or told[kind]["tcpSocket"]
        assert probe["port"] == port["name"]
        known = {"twinpool-web": WITHOUT_A_LOGIN, "twinpool-router": set(ENDPOINTS)}.get(name, {"/metrics"})
        assert probe.get("path", "/metrics") in known
        if name == "twinpool-web":  # kubelets name the pod's address, which is no host of the console
            assert probe["httpHeaders"] == [{"name": "Host", "value": "localhost"}]
    if name in ("twinpool-web", "twinpool-router"):
        assert told["command"][told["command"].index("--port") + 1] == str(port["containerPort"])
    elif name != "twinpool-agent":
        address = next(each["value"] for each in told["env"] if each["name"] == names.ENV_METRICS)
        assert address == f"$(POD_IP):{port['containerPort']}"


@pytest.mark.django_db
def test_what_kubelets_ask_web_needs_no_login(client: Any) -> None:
    for path in WITHOUT_A_LOGIN:
        assert client.get(path, headers={"host": "localhost"}).status_code == 200


def test_a_pod_has_time_to_end_in_order() -> None:
    command = container("twinpool-router")["command"]
    ends_in = int(command[command.index("--stop-s") + 1])
    sleep = int(container("twinpool-router")["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod("twinpool-router")["terminationGracePeriodSeconds"] > ends_in + sleep
    for name, needed_s in (("twinpool-web", OPEN_REQUESTS_S), ("twinpool-agent", STOP_ALL_GRACE_S)):
        pause = int(str(container(name)["lifecycle"]["preStop"]["exec"]["command"][-1]).split()[-1])
        assert pod(name)["terminationGracePeriodSeconds"] > needed_s + pause
        assert pause > needed_s, "a proxy has to stop sending, engines to stop, before the process is told to"
    for service, needed_s in (("router", ends_in), ("web", OPEN_REQUESTS_S), ("agent", STOP_ALL_GRACE_S)):
        assert int(compose()["services"][service]["stop_grace_period"].removesuffix("s")) > needed_s
    assert int(unit(DEPLOY / "systemd" / "twinpool-web.service")["TimeoutStopSec"][0]) > OPEN_REQUESTS_S
    assert workloads()["twinpool-agent"]["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert workloads()["twinpool-ingest"]["spec"]["strategy"] == {"type": "Recreate"}, "there is one ingest"
    assert container("twinpool-agent")["resources"]["limits"]["nvidia.com/gpu"] > 0
    router = shlex.split(unit(DEPLOY / "systemd" / "twinpool-router.service")["ExecStart"][0])
    assert int(unit(DEPLOY / "systemd" / "twinpool-router.service")["TimeoutStopSec"][0]) > int(router[-1])
    serving = [name for name, each in workloads().items() if each["spec"].get("replicas", 0) > 1]
    budgets = [each["metadata"]["name"] for each in objects() if each["kind"] == "PodDisruptionBudget"]
    assert sorted(budgets) == sorted(serving) == ["twinpool-control", "twinpool-router", "twinpool-web"]


def test_compose_services_depend_on_what_is_there() -> None:
    told = compose()
    for name, service in told["services"].items():
        assert "mem_limit" in service, name
        for other, how in service.get("depends_on", {}).items():
            needed = told["services"][other]
            assert how["condition"] == "service_completed_successfully" or "healthcheck" in needed
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in told["volumes"] or (DEPLOY / "compose" / source).is_file()
        assert set(service.get("networks", ())) <= set(told["networks"])
    assert told["networks"]["data"] == {"internal": True}, "servers are reached by nobody outside"
    assert subprocess.run(["sh", "-n", DEPLOY / "compose" / "roles.sh"], timeout=20).returncode == 0


def test_the_containerfile_copies_what_is_there_and_runs_as_nobody() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    stages = re.findall(r"^FROM \S+ AS (\w+)", text, re.MULTILINE)
    assert stages == ["build", "control", "agent"]
    for source in re.findall(r"^COPY (?!--from)(\S+)", text, re.MULTILINE):
        assert (ROOT / source).exists()
    assert set(re.findall(r"--from=(\w+)", text)) <= set(stages)
    assert text.count("USER 10001:10001") == 2 and "--require-hashes" in text
    for line in re.findall(r"^CMD (\[.*\])", text, re.MULTILINE):
        assert ast.literal_eval(line)[:2] == ["python", "manage.py"]
    left_out = (ROOT / ".containerignore").read_text().split()
    assert {".git", ".twinpool", ".venv"} <= set(left_out), "secrets of a checkout must not get into an image"
