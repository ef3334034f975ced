"""Changes of the desired state: each one whole with operation and audit entry, or refused with reasons and no trace."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.utils import ProgrammingError

from controlplane.control import actions
from controlplane.control.gather import model_route
from controlplane.control.newmodel import NewModel, NewPool, parse_config
from controlplane.control.refused import Refused
from controlplane.core.kvsize import transfer_bytes
from controlplane.core.modelconfig import read_shape
from controlplane.fleet import models
from controlplane.physics.catalog import CONFIGS, config_names, read_config
from tests.integration.control_kit import ANN, until
from tests.integration.control_rows import refusal

pytestmark = pytest.mark.django_db

CONFIG = json.loads((CONFIGS / "qwen3-8b.json").read_text())
NEW = NewModel("m", "org/m", CONFIG, engine_kind="simulated", pools=(NewPool("mixed", 1),))


@pytest.fixture
def node() -> models.Node:
    """A node of four GPUs that has reported."""
    row = models.Node.objects.create(name="n1", seen_at="2026-01-01T00:00:00Z")
    for index in range(4):
        models.Gpu.objects.create(uuid=f"g{index}", node=row, index=index, kind="l4", memory_bytes=1)
    return row


@pytest.fixture
def model(node: models.Node) -> models.Model:
    """A disaggregated model with a ready engine in each pool."""
    pools = (NewPool("prefill", 1), NewPool("decode", 1))
    actions.register_model(ANN, replace(NEW, mode="disaggregated", pools=pools))
    row = models.Model.objects.get(name="m")
    for number, role in enumerate(("prefill", "decode"), 1):
        models.Engine.objects.create(id=f"e-{number}", model=row, role=role, number=number, kind="simulated", state="ready")
    models.Operation.objects.update(state="done")
    return row


def test_registering_a_model_makes_its_pools_operation_and_audit_entry(node: models.Node) -> None:
    operation = actions.register_model(ANN, NEW, reason="asked for")
    model = models.Model.objects.get(name="m")
    assert (model.kv_bytes_per_token, model.max_model_len, model.block_size) == (147_456, 40_960, 16)
    assert list(model.pools.values_list("role", "desired_engines")) == [("mixed", 1)]
    assert [(step.verb, step.role) for step in operation.steps.all()] == [("start", "mixed")]
    entry = models.AuditEntry.objects.get()
    assert (entry.actor, entry.verb, entry.subject, entry.reason) == ("ann", "register_model", "model:m", "asked for")
    assert (entry.before, entry.after) == ({}, {"mode": "monolithic", "pools": {"mixed": 1}})
    assert entry.operation == operation


@pytest.mark.parametrize("name", config_names())
def test_every_config_that_ships_can_be_registered_and_routed(node: models.Node, name: str) -> None:
    config = (CONFIGS / f"{name}.json").read_text()
    actions.register_model(ANN, replace(NEW, config=config, pools=(NewPool("mixed", 0),)))
    route = model_route(models.Model.objects.get(name="m"))
    shape = read_shape(read_config(name))
    for tokens in (1, 100, 4096, 100_000):
        assert route.kv_bytes(tokens) == transfer_bytes(shape, None, tokens)


@pytest.mark.parametrize(
    ("args", "per_token"),
    [({}, 147_456), ({"kv_cache_dtype": "fp8"}, 73_728), ({"dtype": "float32"}, 294_912), ({"dtype": "auto"}, 147_456)],
)
def test_kv_bytes_follow_the_engines_arguments(node: models.Node, args: dict[str, Any], per_token: int) -> None:
    actions.register_model(ANN, replace(NEW, engine_kind="vllm", engine_args=args))
    assert models.Model.objects.get(name="m").kv_bytes_per_token == per_token


def test_infinity_in_a_config_becomes_null() -> None:
    for limit in (float("inf"), [0.0, float("-inf")]):
        assert parse_config({"a": {"time_step_limit": limit}}) == {
            "a": {"time_step_limit": None if isinstance(limit, float) else [0.0, None]}
        }
    assert parse_config('{"a": [0.0, Infinity]}') == {"a": [0.0, None]}


@pytest.mark.parametrize("mode", ["disaggregated", "conditional"])
def test_pools_that_the_mode_needs_are_made_empty(node: models.Node, mode: str) -> None:
    actions.register_model(ANN, replace(NEW, mode=mode, pools=()))
    assert list(models.Pool.objects.values_list("role", "desired_engines")) == [("prefill", 0), ("decode", 0)]


def without(field: str) -> dict[str, Any]:
    return {name: value for name, value in CONFIG.items() if name != field}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"config": "{not json"}, "model config: is no JSON"),
        ({"config": "[1, 2]"}, "model config: must be a JSON object as in config.json, got list"),
        ({"config": '{"a": NaN}'}, "NaN is not JSON"),
        ({"config": {**CONFIG, "x": "\x00"}}, "model config: holds a NUL character"),
        ({"config": {**CONFIG, "x": "\ud800"}}, "model config: cannot be stored as JSON"),
        ({"config": "[" * 100_000}, "model config: is no JSON"),
        ({"config": "{}" + " " * (1 << 20)}, "model config: longer than 1048576 bytes"),
        ({"config": without("num_hidden_layers")}, "num_hidden_layers"),
        ({"engine_args": {"trust_remote_code": True}}, "engine argument 'trust_remote_code' is not allowed"),
        ({"engine_args": {"max_num_seqs": "many"}}, "engine argument 'max_num_seqs' must be a whole number"),
        ({"engine_kind": "magic"}, "engine kind 'magic': one of simulated, vllm"),
        ({"name": "a b"}, "name 'a b': letters, digits"),
        ({"name": "a//b"}, "name 'a//b': letters, digits"),
        ({"name": "a/.."}, "name 'a/..': letters, digits"),
        ({"name": "n" * 129}, "letters, digits"),
        ({"config": {**CONFIG, "max_position_embeddings": 1 << 25}}, "max_position_embeddings must be at most 16777216"),
        ({"pools": (NewPool("mixed", tensor_parallel=3),)}, "32 attention heads (8 KV heads) cannot be split over 3 GPUs"),
        ({"pools": (NewPool("mixed", gpu_kinds=("h100",)),)}, "GPU kind 'h100' is not known; known: a100-sxm"),
        ({"source": "--model"}, "source: give a model id"),
        ({"source": "a\nb"}, "source: give a model id"),
        ({"mode": "both"}, "mode 'both': one of monolithic"),
        ({"connector": "tcp"}, "connector 'tcp': one of nixl"),
        ({"mode": "disaggregated", "connector": "none"}, "mode disaggregated hands KV over"),
        ({"pools": (NewPool("mixed"), NewPool("mixed"))}, "pools: one per role"),
        ({"pools": (NewPool("both"),)}, "pool 'both': role is one of"),
        ({"pools": (NewPool("mixed", -1),)}, "pool mixed: 0 to 1024 engines"),
        ({"pools": (NewPool("mixed", tensor_parallel=0),)}, "pool mixed: a tensor-parallel degree"),
        ({"kv_lease_s": 0.0}, "kv_lease_s: 1 to 3600 seconds"),
        ({"slo_ttft_ms": float("nan")}, "SLO targets"),
        ({"slo_itl_ms": float("inf")}, "SLO targets"),
        ({"slo_ttft_ms": 1e308}, "SLO targets: 1 to 10000000 milliseconds"),
        ({"aliases": ("m",)}, "an alias repeats another name"),
    ],
)
def test_a_bad_model_is_refused_with_a_reason(node: models.Node, change: dict[str, Any], reason: str) -> None:
    refused = refusal(actions.register_model, ANN, replace(NEW, **change))
    assert refused.kind == "invalid"
    assert any(reason in each for each in refused.reasons), refused.reasons


@pytest.mark.parametrize("reason", ["\u200b", " \u2060\ufeff ", "\u3164", "\u2800\t"])
def test_a_reason_that_shows_nothing_is_refused(node: models.Node, reason: str) -> None:
    refused = refusal(partial(actions.register_model, reason=reason), ANN, NEW)
    assert refused.reasons == ("reason: there is nothing in it that a reader could see",)
    assert not models.Model.objects.exists()


def test_every_problem_is_named_at_once(node: models.Node) -> None:
    refused = refusal(actions.register_model, ANN, replace(NEW, name="?", mode="both", config="x"))
    assert len(refused.reasons) == 3


def test_a_name_is_given_once(model: models.Model) -> None:
    refused = refusal(actions.register_model, ANN, replace(NEW, name="x", aliases=("m",)))
    assert "the name m is taken by model m; to correct that one, retire_model it" in str(refused)


@pytest.mark.django_db(transaction=True)
def test_a_name_is_given_once_even_at_the_same_moment() -> None:
    models.Node.objects.create(name="n1")
    refused: list[Refused] = []

    def second() -> None:
        try:
            actions.register_model(ANN, replace(NEW, name="b", aliases=("shared",)))
        except Refused as error:
            refused.append(error)
        finally:
            connection.close()

    thread = threading.Thread(target=second)
    with transaction.atomic():
        actions.register_model(ANN, replace(NEW, aliases=("shared",)))
        thread.start()
        until("waiting for us", lambda: _waits_for_a_lock() or not thread.is_alive())
    thread.join(60)
    assert len(refused) == 1 and "the name shared is taken by model m" in str(refused[0])


def _waits_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)")
        return bool(cursor.fetchone()[0])


def test_a_pool_is_scaled_with_steps_for_the_difference(model: models.Model) -> None:
    operation = actions.scale_pool(ANN, "m", "decode", 3, reason="more")
    assert models.Pool.objects.get(role="decode").desired_engines == 3
    assert [(step.verb, step.role, step.engine) for step in operation.steps.all()] == [("start", "decode", "")] * 2
    assert (operation.before, operation.after) == ({"pools": {"decode": 1}}, {"pools": {"decode": 3}})
    smaller = actions.scale_pool(ANN, "m", "decode", 0)
    assert [(step.verb, step.role) for step in smaller.steps.all()] == [("stop", "decode")]


def test_a_newer_size_supersedes_the_steps_of_an_older_one(model: models.Model) -> None:
    older = actions.scale_pool(ANN, "m", "decode", 3)
    newer = actions.scale_pool(ANN, "m", "decode", 2)
    assert {(step.state, step.reason) for step in older.steps.all()} == {("skipped", f"superseded by operation {newer.pk}")}


def test_a_size_that_does_not_fit_is_refused_saying_what_would(model: models.Model) -> None:
    refused = refusal(actions.scale_pool, ANN, "m", "decode", 9)
    assert refused.kind == "no_capacity"
    assert refused.reasons == (
        "pool m/decode: 4 of 8 more engines would fit; the next one needs 1 free GPU on one node",
        "n1: has 0 of 4 fitting GPUs free, 1 too few",
    )
    assert models.Pool.objects.get(role="decode").desired_engines == 1


def test_a_refusal_counts_what_draining_engines_give_back(model: models.Model) -> None:
    models.Engine.objects.filter(id="e-2").update(wanted=False, state="draining")
    rank = models.Rank.objects.create(engine_id="e-2", node=models.Node.objects.get())
    models.Reservation.objects.create(gpu_id="g0", rank=rank)
    refused = refusal(actions.scale_pool, ANN, "m", "decode", 5)
    assert refused.reasons[-1] == "1 fitting GPUs become free when draining ends: ask again then"


def test_an_empty_model_is_removed_and_may_come_again(model: models.Model) -> None:
    models.Pool.objects.update(desired_engines=0)
    models.Engine.objects.update(wanted=False, state="stopped")
    operation = actions.remove_model(ANN, "m", reason="wrong config")
    assert not models.Model.objects.exists() and not models.Engine.objects.exists()
    assert (operation.verb, operation.before["source"]) == ("remove_model", "org/m")
    assert models.AuditEntry.objects.filter(subject="model:m").count() == 2
    actions.register_model(ANN, NEW)


def test_a_model_in_use_is_not_removed(model: models.Model) -> None:
    assert "pool prefill wants 1 engines: first scale_pool m prefill 0" in refusal(actions.remove_model, ANN, "m").reasons
    models.Pool.objects.update(desired_engines=0)
    models.Engine.objects.filter(id="e-1").update(wanted=False, state="draining")
    models.Engine.objects.filter(id="e-2").update(wanted=False, state="stopped")
    rank = models.Rank.objects.create(engine_id="e-2", node=models.Node.objects.get())
    models.Reservation.objects.create(gpu_id="g0", rank=rank)
    assert refusal(actions.remove_model, ANN, "m").reasons == (
        "engine e-1 is draining: wait until it has stopped and its GPUs are free",
        "engine e-2 is stopped: wait until it has stopped and its GPUs are free",
    )


def test_a_reason_is_no_essay(node: models.Node) -> None:
    assert "at most 500 characters, not 501" in str(refusal(actions.add_node, ANN, "n2", reason="x" * 501))


def test_nothing_is_refused_for_room_while_a_node_has_not_reported(model: models.Model) -> None:
    actions.add_node(ANN, "n2")
    actions.scale_pool(ANN, "m", "decode", 9)
    assert models.Pool.objects.get(role="decode").desired_engines == 9


@pytest.mark.parametrize(
    ("args", "code", "reason"),
    [
        (("x", "decode", 1), "not_found", "there is no model 'x'; models: m"),
        (("m", "mixed", 1), "not_found", "m has no pool 'mixed'; pools: prefill, decode"),
        (("m", "decode", -1), "invalid", "a pool has 0 to 1024 engines"),
    ],
)
def test_a_scale_that_makes_no_sense_is_refused(model: models.Model, args: Any, code: str, reason: str) -> None:
    refused = refusal(actions.scale_pool, ANN, *args)
    assert (refused.kind, refused.reasons) == (code, (reason,))


def test_roles_are_exchanged(model: models.Model) -> None:
    operation = actions.exchange_roles(ANN, "m", "e-1", "e-2", reason="try")
    engines = models.Engine.objects.order_by("id").values_list("id", "role", "next_role", "move_phase")
    assert list(engines) == [("e-1", "prefill", "decode", "together"), ("e-2", "decode", "prefill", "together")]
    assert [(step.verb, step.role, step.engine) for step in operation.steps.all()] == [
        ("retask", "decode", "e-1"),
        ("retask", "prefill", "e-2"),
    ]
    assert operation.before == {"roles": {"e-1": "prefill", "e-2": "decode"}}
    assert operation.after == {"roles": {"e-1": "decode", "e-2": "prefill"}}
    actions.rollback(ANN, operation.pk)
    assert list(engines.all()) == [("e-1", "prefill", "", ""), ("e-2", "decode", "", "")]


def test_engines_that_others_stand_in_for_are_moved_to_each_others_pools(model: models.Model) -> None:
    for number, role in ((3, "prefill"), (4, "decode")):
        models.Engine.objects.create(
            id=f"e-{number}", model=model, role=role, number=number, kind="simulated", state="ready"
        )
    models.Pool.objects.update(desired_engines=2)
    operation = actions.exchange_roles(ANN, "m", "e-1", "e-2")
    moving = models.Engine.objects.filter(move_phase="leaving").values_list("id", "role", "next_role")
    assert set(moving) == {("e-1", "prefill", "decode"), ("e-2", "decode", "prefill")}
    actions.rollback(ANN, operation.pk)
    assert not models.Engine.objects.exclude(next_role="", move_phase="").exists()


@pytest.mark.parametrize(
    ("change", "second", "code", "reason"),
    [
        ({}, "e-9", "not_found", "m has no engine 'e-9'"),
        ({"state": "starting"}, "e-2", "invalid", "e-2 is starting, not ready: wait until it is"),
        ({"wanted": False}, "e-2", "invalid", "e-2 is ready, not ready"),
        ({"role": "prefill"}, "e-2", "invalid", "e-1 and e-2 both have the role prefill: name one of each"),
        ({"tensor_parallel": 2}, "e-2", "invalid", "their launch shapes differ"),
    ],
)
def test_an_exchange_that_cannot_be_is_refused(
    model: models.Model, change: dict[str, Any], second: str, code: str, reason: str
) -> None:
    if change:
        models.Engine.objects.filter(id="e-2").update(**change)
    refused = refusal(actions.exchange_roles, ANN, "m", "e-1", second)
    assert refused.kind == code and reason in str(refused)


def test_a_busy_model_is_refused(model: models.Model) -> None:
    first = actions.exchange_roles(ANN, "m", "e-1", "e-2")
    for action, args in ((actions.exchange_roles, ("m", "e-1", "e-2")), (actions.scale_pool, ("m", "decode", 2))):
        refused = refusal(action, ANN, *args)
        assert refused.kind == "busy"
        assert refused.reasons == (
            f"operation {first.pk} (exchange_roles) of ann still runs on m: wait for it, or cancel it",
        )


def test_a_node_is_added_once_and_with_a_proper_name(node: models.Node) -> None:
    actions.add_node(ANN, "gpu-1", labels={"zone": "a"})
    assert models.Node.objects.get(name="gpu-1").labels == {"zone": "a"}
    assert "exists already" in str(refusal(actions.add_node, ANN, "gpu-1"))
    assert "letters, digits" in str(refusal(actions.add_node, ANN, "../x"))
    assert "at most 63" in str(refusal(actions.add_node, ANN, "x" * 64))


def test_only_a_failed_engine_is_tried_again(model: models.Model) -> None:
    assert "e-1 is ready" in str(refusal(actions.retry_engine, ANN, "e-1"))
    assert "there is no engine" in str(refusal(actions.retry_engine, ANN, "e-9"))
    models.Engine.objects.filter(id="e-1").update(state="failed", failures=5)
    actions.retry_engine(ANN, "e-1")
    assert models.Engine.objects.get(id="e-1").failures == 0


def test_text_with_a_nul_character_is_kept_without_it(node: models.Node) -> None:
    assert actions.add_node(ANN, "n2", reason="a\x00b").reason == "ab"


@pytest.mark.parametrize("statement", ["UPDATE fleet_auditentry SET actor = 'x'", "DELETE FROM fleet_auditentry"])
def test_the_application_can_only_add_to_the_audit(node: models.Node, statement: str) -> None:
    actions.add_node(ANN, "n2")
    with pytest.raises(ProgrammingError, match="permission denied"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement)
    assert models.AuditEntry.objects.get().actor == "ann"


def test_the_application_does_not_write_which_migrations_were_run() -> None:
    with pytest.raises(ProgrammingError, match="permission denied"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("UPDATE django_migrations SET name = name")


@pytest.mark.parametrize("statement", ["DROP TABLE fleet_node", "ALTER TABLE fleet_node ADD x int", "TRUNCATE fleet_node"])
def test_the_application_cannot_change_the_schema(statement: str) -> None:
    with pytest.raises(ProgrammingError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement)


def test_the_application_reads_and_writes_every_other_table() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace
            WHERE nspname = 'public' AND relkind IN ('r', 'p') AND relname NOT IN ('fleet_auditentry', 'django_migrations')
              AND NOT has_table_privilege(pg_class.oid, 'SELECT, INSERT')
            """
        )
        assert cursor.fetchall() == []
