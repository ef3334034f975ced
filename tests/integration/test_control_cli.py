"""The control plane's management commands, as typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import CommandError

from controlplane.core.names import ENV_ADMIN_PASSWORD
from controlplane.fleet import models
from controlplane.physics.catalog import CONFIGS

pytestmark = pytest.mark.django_db

SOURCE = ("m", "--source", "org/m", "--config", str(CONFIGS / "qwen3-8b.json"))


def typed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    call_command(*words)
    return json.loads(capsys.readouterr().out)


def test_seeding_twice_changes_nothing_more(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_ADMIN_PASSWORD, "a long enough secret phrase")
    assert typed(capsys, "seed_fleet", "--fleet", "demo") == {"admin_created": True}
    models.Pool.objects.filter(role="mixed").update(desired_engines=3)
    assert typed(capsys, "seed_fleet", "--fleet", "demo") == {"admin_created": False}
    assert models.Pool.objects.get(role="mixed").desired_engines == 3, "an operator's change was undone"
    assert list(models.Node.objects.values_list("name", flat=True).order_by("name")) == ["n1", "n2", "n3"]
    admin = User.objects.get()
    assert admin.is_superuser and admin.check_password("a long enough secret phrase")
    assert [group.name for group in admin.groups.all()] == ["admin"]


@pytest.mark.parametrize("fleet", ["vllm", "none"])
def test_other_fleets_are_seeded_too(capsys: pytest.CaptureFixture[str], fleet: str) -> None:
    assert typed(capsys, "seed_fleet", "--fleet", fleet) == {"admin_created": False}
    assert models.Model.objects.filter(name="tiny-llama").exists() == (fleet == "vllm")


def test_a_weak_admin_password_seeds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_ADMIN_PASSWORD, "short")
    with pytest.raises(CommandError, match="too short"):
        call_command("seed_fleet", "--fleet", "demo")
    assert not models.Node.objects.exists() and not User.objects.exists()


def test_a_model_is_registered_scaled_and_audited(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--mode", "disaggregated", "--arg", "max-model-len=8192", "--tp", "2")
    assert typed(capsys, "register_model", *SOURCE, *words)["model"] == "m"
    assert list(models.Pool.objects.values_list("role", "desired_engines", "tensor_parallel")) == [
        ("prefill", 0, 2),
        ("decode", 0, 2),
    ]
    assert models.Model.objects.get().engine_args == {"max_model_len": 8192}
    typed(capsys, "add_node", "gpu-1", "--label", "zone=a")
    typed(capsys, "scale_pool", "m", "decode", "3", "--reason", "first engines")
    assert models.Pool.objects.get(role="decode").desired_engines == 3
    assert models.AuditEntry.objects.filter(actor__startswith="cli").count() == 3


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"{oops", "is no JSON"), (b"\xff\xfe", "is no text"), (b"{}", "model config"), (b" " * (1 << 21), "more than")],
)
def test_a_config_that_is_none_is_refused_in_one_line(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(CommandError, match=reason):
        call_command("register_model", "m", "--source", "org/m", "--config", str(path))
    assert not models.Model.objects.exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("register_model", "m", "--source", "s", "--config", "/no/such"), "cannot read /no/such"),
        (("register_model", "m", "--source", "s", "--config", "/dev/zero"), "is neither a file nor a pipe"),
        (("register_model", *SOURCE, "--arg", "x"), "is not NAME=JSON"),
        (
            ("register_model", *SOURCE, "--arg", "trust_remote_code=true"),
            "not allowed",
        ),
        (("register_model", *SOURCE, "--pool", "mixed"), "is not ROLE=ENGINES"),
        (("scale_pool", "m", "mixed", "1"), "there is no model 'm'"),
        (("remove_model", "m"), "there is no model 'm'"),
        (("exchange_roles", "m", "e-1", "e-2"), "there is no model 'm'"),
        (("retry_engine", "e-1"), "there is no engine 'e-1'"),
        (("add_node", "n1", "--label", "x"), "write KEY=VALUE"),
    ],
)
def test_a_bad_command_says_why(words: tuple[str, ...], reason: str) -> None:
    with pytest.raises(CommandError, match=reason):
        call_command(*words)
