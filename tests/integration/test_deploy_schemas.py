"""The files of deploy/ against the schemas of what reads them, strictly: an unknown field is a fault, not a comment."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from controlplane.stack.services import ROOT
from tests.integration.test_deploy_files import compose, objects

SCHEMAS = ROOT / "tests" / "data" / "schemas"


@cache
def kubernetes() -> dict[str, Any]:
    return dict(json.loads((SCHEMAS / "kubernetes-1.31.json").read_text()))


def problems(schema: dict[str, Any], told: object) -> list[str]:
    """Everything that the schema does not allow."""
    found = Draft202012Validator(schema).iter_errors(json.loads(json.dumps(told)))
    return [f"{each.json_path}: {each.message:.200}" for each in found]


def object_problems(told: dict[str, Any]) -> list[str]:
    """Of a Kubernetes object."""
    kind = f"{told['apiVersion']}/{told['kind']}"
    known = kubernetes()
    if kind not in known["kinds"]:
        return [f"{kind} is no kind that is known here"]
    return problems({**known["kinds"][kind], "$defs": known["$defs"]}, told)


def compose_problems(told: dict[str, Any]) -> list[str]:
    """Keys x-… on top are for whoever writes the file, and say nothing."""
    schema = json.loads((SCHEMAS / "compose-spec.json").read_text())
    return problems(schema, {key: value for key, value in told.items() if not key.startswith("x-")})


@pytest.mark.parametrize("told", objects(), ids=lambda told: f"{told['kind']} {told['metadata']['name']}")
def test_kubernetes_knows_every_field(told: dict[str, Any]) -> None:
    assert object_problems(told) == []


def test_compose_knows_every_field() -> None:
    assert compose_problems(compose()) == []


WEB = next(each for each in objects() if each["kind"] == "Deployment" and each["metadata"]["name"] == "twinpool-web")


def changed(told: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """A copy with another value under the dotted path."""
    made = copy.deepcopy(told)
    at: Any = made
    *way, last = (int(part) if part.isdecimal() else part for part in path.split("."))
    for part in way:
        at = at[part]
    at[last] = value
    return made


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.replica", 2),
        ("spec.replicas", "two"),
        ("spec.template.spec.terminationGracePeriod", 30),
        ("spec.template.spec.containers.0.livenessProbe.periodSecond", 10),
        ("spec.template.spec.containers.0.readinessProbe.httpGet", {"path": "/healthz"}),
        ("spec.template.spec.containers.0.name", None),
        ("apiVersion", "apps/v1beta1"),
    ],
)
def test_a_field_that_kubernetes_would_not_know_is_found(path: str, value: object) -> None:
    assert object_problems(changed(WEB, path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("services.web.stop_grace", "10s"),
        ("services.web.healthcheck.intervall", "5s"),
        ("services.web.depends_on.migrate", {"condition": "service_done"}),
        ("service", {}),
        ("services.web.networks", 7),
    ],
)
def test_a_field_that_compose_would_not_know_is_found(path: str, value: object) -> None:
    assert compose_problems(changed(compose(), path, value))


def test_a_directive_that_systemd_would_not_know_is_found(tmp_path: Path) -> None:
    """What `test_systemd_understands_the_units` rests on."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd here")
    unit = tmp_path / "wrong.service"
    unit.write_text("[Service]\nExecStart=/bin/true\nKillMod=process\n")
    said = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, timeout=120)
    assert any(line.startswith(str(unit)) for line in said.stderr.splitlines()), said.stderr


@pytest.mark.skipif(not shutil.which("kubectl"), reason="no kubectl here")
def test_kustomize_puts_the_objects_into_our_namespace() -> None:
    made = subprocess.run(
        ["kubectl", "kustomize", ROOT / "deploy" / "kubernetes"], capture_output=True, text=True, timeout=120
    )
    assert made.returncode == 0, made.stderr
    built = list(yaml.safe_load_all(made.stdout))
    assert len(built) == len(objects())
    assert [each for each in built if each["kind"] != "Namespace" and each["metadata"]["namespace"] != "twinpool"] == []
    assert [each for told in built for each in object_problems(told)] == []
