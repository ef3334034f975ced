"""The control plane's management commands, as typed."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import redis
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import CommandError, OutputWrapper
from rich.console import Console

from controlplane.control import clitext
from controlplane.control.actor import Actor
from controlplane.control.watching import look
from controlplane.core.names import ENV_ADMIN_PASSWORD, live_key
from controlplane.fleet import models
from controlplane.physics.catalog import CONFIGS
from tests.integration.control_rows import done, everything, fleet, sizes

pytestmark = pytest.mark.django_db

SOURCE = ("m", "--source", "org/m", "--config", str(CONFIGS / "qwen3-8b.json"))


def typed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    call_command(*words)
    return json.loads(capsys.readouterr().out)


def test_seeding_twice_changes_nothing_more(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_ADMIN_PASSWORD, "a long enough secret phrase")
    names = ["llama-3.1-70b", "qwen3-8b"]
    assert typed(capsys, "seed_fleet", "--fleet", "demo") == {"admin_created": True, "to_be_served": names}
    models.Pool.objects.filter(role="mixed").update(desired_engines=3)
    assert typed(capsys, "seed_fleet", "--fleet", "demo") == {"admin_created": False, "to_be_served": names}
    assert models.Pool.objects.get(role="mixed").desired_engines == 3, "an operator's change was undone"
    assert list(models.Node.objects.values_list("name", flat=True).order_by("name")) == ["n1", "n2", "n3"]
    admin = User.objects.get()
    assert admin.is_superuser and admin.check_password("a long enough secret phrase")
    assert [group.name for group in admin.groups.all()] == ["admin"]


def test_what_was_removed_is_not_seeded_again_nor_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    typed(capsys, "seed_fleet", "--fleet", "demo")
    models.Model.objects.get(name="qwen3-8b").delete()
    models.Node.objects.get(name="n3").delete()
    assert typed(capsys, "seed_fleet", "--fleet", "demo")["to_be_served"] == ["llama-3.1-70b"]
    assert (models.Model.objects.count(), models.Node.objects.count()) == (1, 2)
    model = models.Model.objects.get()
    for number in (1, 2):
        models.Engine.objects.create(
            id=f"e-{number}", model=model, role="decode", number=number, kind="simulated", held=True
        )
    assert typed(capsys, "seed_fleet", "--fleet", "demo")["to_be_served"] == [], "both decode engines are held"


@pytest.mark.parametrize("fleet", ["vllm", "none"])
def test_other_fleets_are_seeded_too(capsys: pytest.CaptureFixture[str], fleet: str) -> None:
    served = ["tiny-llama"] if fleet == "vllm" else []
    assert typed(capsys, "seed_fleet", "--fleet", fleet) == {"admin_created": False, "to_be_served": served}
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
        (("rebalance", "m", "prefill"), "'prefill' is not ROLE=ENGINES"),
        (("rebalance", "m", "prefill=1", "prefill=2"), "'prefill' comes more than once"),
        (("mode", "m", "monolithic"), "there is no model 'm'"),
        (("freeze", "--hours", "1"), "name a model, or give --all"),
        (("freeze", "--all", "--hours", "nan"), "a number of hours to come"),
        (("operation", "show"), "give the number of an operation"),
        (("operation", "show", "9"), "there is no operation 9"),
        (("operation", "watch", "9"), "there is no operation 9"),
        (("operation", "cancel", "9"), "there is no operation 9"),
        (("operation", "pause", "9", "--dry-run"), "only rollback has a plan"),
        (("operation", "rollback", "9", "--dry-run"), "there is no operation 9"),
        (("canary", "show", "m"), "there was no canary of 'm'"),
        (("canary", "start", "m", "--guardrail", "x"), "is not NAME=NUMBER"),
        (("update_model", "m", "--gpu-kind", "l4"), "is not POOL=KIND"),
        (("update_model", "m", "--node-label", "x"), "is not POOL:KEY=VALUE"),
        (("roll_out", "m", "--arg", "x"), "there is no model 'm'"),
    ],
)
def test_a_bad_command_says_why(words: tuple[str, ...], reason: str) -> None:
    with pytest.raises(CommandError, match=reason):
        call_command(*words)


def test_a_change_is_planned_made_followed_and_taken_back(capsys: pytest.CaptureFixture[str]) -> None:
    fleet("disaggregated", prefill=2, decode=2)
    words = ("rebalance", "m", "prefill=1", "decode=3")
    plan = typed(capsys, *words, "--dry-run")
    assert plan["dry_run"] and [step["verb"] for step in plan["steps"]] == ["retask"] and plan["instant"]
    assert sizes() == {"prefill": 2, "decode": 2}
    number = typed(capsys, *words, "--reason", "long answers")["operation"]
    assert sizes() == {"prefill": 1, "decode": 3}
    assert typed(capsys, "operation", "pause", str(number)) == {"operation": number, "state": "paused"}
    assert typed(capsys, "operation", "resume", str(number))["state"] == "running"
    shown = typed(capsys, "operation", "show", str(number))
    assert (shown["verb"], shown["reason"], shown["after"]) == (
        "rebalance",
        "long answers",
        {"pools": {"prefill": 1, "decode": 3}},
    )
    assert shown["actor"] == Actor.command_line().name
    assert typed(capsys, "operation", "list", "--model", "m", "--open")["operation"] == number
    assert typed(capsys, "operation", "rollback", str(number))["state"] == "rolling_back"
    models.Operation.objects.filter(pk=number).update(state="rolled_back", finished_at="2026-01-01T00:00:00Z")
    with pytest.raises(CommandError, match=f"operation {number} rebalance m is rolled_back"):
        call_command("operation", "watch", str(number))


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "soon"])
def test_waiting_takes_a_number_of_seconds(text: str) -> None:
    with pytest.raises(CommandError, match=f"'{text}' is no number of seconds from 0 on"):
        call_command("drain_engine", "m-1", "--wait", f"--wait-s={text}")


def test_waiting_ends_with_the_operation(capsys: pytest.CaptureFixture[str]) -> None:
    fleet("conditional", prefill=1, decode=1)
    answer = typed(capsys, "mode", "m", "conditional", "--min-uncached-tokens", "64", "--wait")
    assert (answer["state"], answer["outcome"], answer["steps"]) == ("done", "nothing further to do", [])
    with pytest.raises(CommandError, match="drain_engine m is pending, 0 of 1 steps"):
        models.Pool.objects.update(floor=0)
        call_command("drain_engine", "m-1", "--wait", "--wait-s", "0")


@pytest.mark.parametrize(
    "words",
    [
        ("mode", "m", "monolithic"),
        ("mode", "m", "conditional", "--split", "prefill=1", "--split", "decode=3", "--min-uncached-ratio", "0.5"),
        ("move_gpus", "m", "prefill", "decode", "1"),
        ("exchange_roles", "m", "m-1", "m-3"),
        ("drain_engine", "m-1"),
        ("restart_engine", "m-1"),
        ("scale_pool", "m", "decode", "3"),
        ("roll_out", "m", "--arg", "max_num_seqs=64", "--source", "org/m2"),
        ("update_model", "m", "--slo-ttft-ms", "900", "--floor", "decode=0", "--gpu-kind", "decode=l4", "--strict", "yes"),
        ("update_model", "m", "--no-aliases", "--node-label", "decode:zone=a", "--any-gpu", "prefill"),
        ("retire_model", "m"),
        ("freeze", "m", "--hours", "2"),
        ("freeze", "--all", "--off"),
        ("canary", "start", "m", "--mode", "conditional", "--shared", "--share", "0.2", "--guardrail", "margin=0.1"),
        ("canary", "start", "m", "--mode", "monolithic", "--engines", "mixed=1", "--steps", "0.5"),
        ("cordon_node", "n1"),
        ("add_node", "n7"),
    ],
)
def test_every_change_may_be_planned_and_made(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    fleet("disaggregated", free=1, prefill=2, decode=2)
    before = everything()
    assert typed(capsys, *words, "--dry-run")["dry_run"]
    assert everything() == before
    assert typed(capsys, *words, "--reason", "typed")["operation"]
    assert models.AuditEntry.objects.latest("pk").reason == "typed"


def test_what_is_asked_about_a_canary_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    fleet("disaggregated", prefill=2, decode=2)
    typed(capsys, "canary", "start", "m", "--mode", "conditional", "--shared", "--steps", "0.5", "1")
    typed(capsys, "canary", "guardrails", "m", "--guardrail", "min-sessions=50")
    typed(capsys, "canary", "promote", "m")
    shown = typed(capsys, "canary", "show", "m")
    assert (shown["share"], shown["steps"], shown["guardrails"]) == (0.5, [1.0], {"min_sessions": 50})
    typed(capsys, "canary", "end", "m")
    assert typed(capsys, "canary", "show", "m")["state"] == "cancelled"


def test_what_was_drained_or_cordoned_comes_back(capsys: pytest.CaptureFixture[str]) -> None:
    fleet("disaggregated", prefill=2, decode=2)
    typed(capsys, "drain_engine", "m-1")
    done()
    typed(capsys, "drain_engine", "m-1", "--undo")
    typed(capsys, "cordon_node", "n1")
    typed(capsys, "cordon_node", "n1", "--undo")
    assert not models.Engine.objects.filter(held=True).exists() and not models.Node.objects.filter(cordoned=True).exists()
    typed(capsys, "add_node", "n8")
    typed(capsys, "remove_node", "n8")


def test_a_terminal_is_told_in_words(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OutputWrapper, "isatty", lambda self: True)
    fleet("disaggregated", prefill=2, decode=2)
    call_command("rebalance", "m", "prefill=1", "decode=3", "--dry-run")
    said = capsys.readouterr().out
    assert "rebalance m: 1 step, at once, no engine is restarted" in said
    assert "1. retask P2 -> decode on n1:" in said and "m/decode: 2 serving now, at least 2 meanwhile, 3 then" in said
    assert "how long: not known, no rebalance has ended yet" in said
    call_command("rebalance", "m", "prefill=1", "decode=3")
    number = models.Operation.objects.latest("pk").pk
    assert f"operation {number} rebalance m is pending, 0 of 1 steps" in capsys.readouterr().out
    side = {
        "ttft_ms": {"p50": 10.0, "p99": 20.5, "samples": 9},
        "itl_ms": {"p50": None, "p99": None, "samples": 0},
        "effective_gpus": 0.5,
        "gpus": 1.0,
        "cost_per_million_tokens": None,
        "requests": 9,
        "tokens": 90,
        "minutes": 15,
        "gaps": ["no ITL: no client streamed"],
    }
    models.Operation.objects.filter(pk=number).update(measured={"before": side, "after": side})
    call_command("operation", "show", str(number))
    said = capsys.readouterr().out
    assert "TTFT p99, ms                   20.50       20.50" in said and "unknown" in said
    assert "before: no ITL: no client streamed" in said and "waiting  retask an engine -> decode" in said


def test_a_followed_operation_shows_what_its_steps_wait_for(valkey: redis.Redis) -> None:
    fleet("disaggregated", prefill=2, decode=2)
    call_command("rebalance", "m", "prefill=1", "decode=3")
    number = models.Operation.objects.latest("pk").pk
    models.Step.objects.filter(operation=number).update(engine="m-2", state="running", reason="it lets go of its work")
    models.Operation.objects.filter(pk=number).update(state="running")
    rows = [
        {"id": "engine:m-2", "type": "engine", "running": 3, "waiting": 1},
        {"id": f"traffic:{number}", "type": "traffic", "requests": 120, "lost": 0},
    ]
    valkey.hset(live_key(f"operation:{number}"), mapping={"rows": json.dumps(rows)})
    seen = look(number)
    assert seen is not None and (seen.in_flight, seen.requests, seen.lost) == ({"m-2": 4}, 120, 0)
    console = Console(width=140, file=io.StringIO())
    console.print(clitext.picture(seen))
    words = console.file.getvalue()  # type: ignore[attr-defined]
    assert "rebalance m is running, 0 of 1 steps, 0 of 120 requests lost" in words
    assert "retask P2 -> decode" in words and "4 in flight" in words and "it lets go of its work" in words


@pytest.mark.parametrize("stored", ["", "{", "[1]", '{"a": 1}'])
def test_live_rows_that_cannot_be_read_are_left_out(valkey: redis.Redis, stored: str) -> None:
    fleet("disaggregated", prefill=1, decode=1)
    number = models.Operation.objects.latest("pk").pk
    valkey.hset(live_key(f"operation:{number}"), mapping={"rows": stored})
    seen = look(number)
    assert seen is not None and (seen.in_flight, seen.lost) == ({}, None)
