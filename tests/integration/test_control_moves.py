"""Moves, modes and roll-outs on real PostgreSQL, Valkey and broker, against fake nodes; the test answers the probes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from django.db.models import F

from controlplane.control import actions, apply_moves
from controlplane.control.actions.updates import RollOut
from controlplane.control.commands import read_spec
from controlplane.control.seed import seed
from controlplane.control.state import document
from controlplane.control.state.applying import apply_state
from controlplane.core.plan import Flip
from controlplane.core.scenes import SCENES
from controlplane.fleet import models
from tests.integration.control_kit import FakeFleet, new_loop
from tests.integration.control_rows import ANN

pytestmark = pytest.mark.django_db(transaction=True)

LLAMA, QWEN = "llama-3.1-70b", "qwen3-8b"


class Fleet:
    """The demo fleet, and who answers probes: `kv` says what they see."""

    def __init__(self, url: str) -> None:
        self.fake, self.loop, self.kv = FakeFleet(url), new_loop(), True

    def until(self, what: str, check: Callable[[], Any]) -> Any:
        def once() -> Any:
            asked = models.Pair.objects.filter(state="asked")
            seen = {"state": "verified"} if self.kv else {"state": "failed", "reason": "0 of 96 KiB moved"}
            asked.update(attempts=F("attempts") + 1, **seen)
            return check()

        return self.fake.run(self.loop, what, once)

    def ended(self, operation: models.Operation, state: str = "done") -> models.Operation:
        def over() -> bool:
            operation.refresh_from_db()
            return operation.finished_at is not None

        self.until(f"{state}: {operation.verb}", over)
        assert operation.state == state, operation.outcome
        return operation

    def roles(self, model: str) -> Counter[str]:
        table = self.fake.table()
        assert table is not None
        return Counter(e.role for m in table.models if m.name == model for e in m.engines if e.state == "ready")

    def starts(self) -> int:
        return sum(node.starts for node in self.fake.nodes.values())


@pytest.fixture
def fleet(valkey: redis.Redis, valkey_url: str) -> Iterator[Fleet]:
    fleet = Fleet(valkey_url)
    seed(SCENES["demo"], "")
    fleet.until("ready", lambda: len(fleet.fake.listed(LLAMA)) == 4 and len(fleet.fake.listed(QWEN)) == 4)
    fleet.until("done", lambda: not models.Operation.objects.exclude(state="done").exists())
    yield fleet
    fleet.fake.close()


def test_a_rebalance_moves_a_running_engine(fleet: Fleet) -> None:
    operation = fleet.ended(actions.rebalance(ANN, LLAMA, {"prefill": 1, "decode": 3}))
    assert fleet.roles(LLAMA) == {"prefill": 1, "decode": 3}
    (step,) = operation.steps.all()
    moved = models.Engine.objects.get(id=step.engine)
    assert (step.verb, step.state, moved.role, moved.move_phase, moved.next_role) == ("retask", "done", "decode", "", "")
    assert models.Pair.objects.filter(decode=moved, state="verified").exists()
    assert fleet.starts() == 8, "nothing was restarted"


def test_an_engine_that_moves_no_kv_keeps_its_role_and_the_operation_is_rolled_back(fleet: Fleet) -> None:
    fleet.kv = False
    operation = fleet.ended(actions.rebalance(ANN, LLAMA, {"prefill": 1, "decode": 3}), "rolled_back")
    assert "KV did not move" in operation.outcome and "0 of 96 KiB moved" in operation.outcome
    assert fleet.roles(LLAMA) == {"prefill": 2, "decode": 2}
    assert list(models.Pool.objects.filter(model__name=LLAMA).values_list("desired_engines", flat=True)) == [2, 2]


def test_a_mode_and_all_roles_change_in_one_table(fleet: Fleet) -> None:
    before = models.TableState.objects.get().generation
    fleet.ended(actions.set_mode(ANN, LLAMA, "monolithic"))
    assert fleet.roles(LLAMA) == {"mixed": 4}
    assert models.TableState.objects.get().generation == before + 1
    fleet.ended(actions.set_mode(ANN, LLAMA, "disaggregated", split={"prefill": 1, "decode": 3}))
    assert fleet.roles(LLAMA) == {"prefill": 1, "decode": 3}
    assert fleet.starts() == 8


def test_a_mode_that_does_not_verify_is_taken_back_without_a_moment_of_it(fleet: Fleet) -> None:
    fleet.kv = False
    stamp = models.TableState.objects.get().generation
    operation = fleet.ended(actions.set_mode(ANN, QWEN, "disaggregated"), "rolled_back")
    assert "0 of 96 KiB moved" in operation.outcome
    model = models.Model.objects.get(name=QWEN)
    assert (model.mode, model.served_mode, models.TableState.objects.get().generation) == ("monolithic", "monolithic", stamp)


def test_what_restarts_in_a_roll_out_is_of_the_launch_that_it_had(fleet: Fleet) -> None:
    pool = models.Pool.objects.get(model__name=QWEN, role="mixed")
    args = models.Model.objects.get(name=QWEN).engine_args
    operation = actions.roll_out(ANN, QWEN, RollOut(engine_args={**args, "max_num_seqs": 7}))
    fleet.until("one is made", lambda: models.Engine.objects.filter(model__name=QWEN, wanted=True).count() == 5)
    specs = [
        read_spec(engine)
        for engine in models.Engine.objects.filter(model=pool.model, wanted=True).values_list("id", flat=True)
    ]
    assert Counter(spec.args.get("max_num_seqs") == 7 for spec in specs if spec) == {False: 4, True: 1}
    fleet.ended(operation)
    specs = [
        read_spec(engine)
        for engine in models.Engine.objects.filter(model=pool.model, wanted=True).values_list("id", flat=True)
    ]
    assert [spec.args.get("max_num_seqs") for spec in specs if spec] == [7] * 4
    assert [step.state for step in operation.steps.all()] == ["done"] * 4


def test_a_model_that_retires_goes_when_its_engines_have_finished(fleet: Fleet) -> None:
    engine = fleet.fake.listed(QWEN)[0]
    fleet.fake.node_of(engine).work(engine, 1)
    operation = actions.retire_model(ANN, QWEN)
    fleet.until("three stopped", lambda: operation.steps.filter(state="done").count() == 3)
    assert models.Model.objects.filter(name=QWEN).exists()
    fleet.fake.node_of(engine).work(engine, 0)
    fleet.ended(operation)
    fleet.until("gone", lambda: not models.Model.objects.filter(name=QWEN).exists())
    fleet.until("out of the table", lambda: QWEN not in {model.name for model in fleet.fake.table().models})  # type: ignore[union-attr]
    assert models.Gpu.objects.filter(reservation=None).count() == 8


def test_an_operation_that_is_paused_begins_no_further_move(fleet: Fleet) -> None:
    models.Pool.objects.update(floor=1)
    operation = actions.set_canary(ANN, QWEN, "disaggregated", engines={"prefill": 1, "decode": 1})
    fleet.until("one leaves", lambda: models.Engine.objects.exclude(move_phase="").exists())
    actions.pause(ANN, operation.pk)
    for _ in range(10):
        fleet.until("a turn", lambda: True)
    moved = models.Engine.objects.filter(model__name=QWEN, arm="canary").count()
    assert moved == 1 and not models.Engine.objects.exclude(move_phase="").exists()
    actions.resume(ANN, operation.pk)
    fleet.ended(operation)
    assert models.Engine.objects.filter(model__name=QWEN, arm="canary").count() == 2


@pytest.fixture
def pair(fleet: Fleet) -> list[str]:
    """[prefill, decode] of a model of which no pool can spare an engine: two of each, and floors of two."""
    models.Pool.objects.update(floor=2)
    return [fleet.fake.listed(LLAMA, role)[0] for role in ("prefill", "decode")]


def ready_roles(fleet: Fleet) -> dict[str, str]:
    return {id: role for role in ("prefill", "decode") for id in fleet.fake.listed(LLAMA, role)}


def test_roles_that_no_pool_can_spare_are_exchanged_in_one_table(fleet: Fleet, pair: list[str]) -> None:
    before = ready_roles(fleet)
    tables: list[dict[str, str]] = []

    def changed() -> bool:
        tables.append(ready_roles(fleet))
        return tables[-1] != before

    operation = actions.exchange_roles(ANN, LLAMA, *pair)
    fleet.until("exchanged", changed)
    assert tables[-1] == before | {pair[0]: "decode", pair[1]: "prefill"}
    assert len(tables) > 1 and all(table == before for table in tables[:-1])
    fleet.ended(operation)
    assert models.Pair.objects.filter(prefill=pair[1], state="verified").exists()
    assert models.Pair.objects.filter(decode=pair[0], state="verified").exists()
    assert [step.state for step in operation.steps.all()] == ["done", "done"]
    assert fleet.starts() == 8


def test_an_exchange_that_moves_no_kv_changes_no_table_and_says_what_was_seen(fleet: Fleet, pair: list[str]) -> None:
    stamp = models.TableState.objects.get().generation
    fleet.kv = False
    operation = fleet.ended(actions.exchange_roles(ANN, LLAMA, *pair), "rolled_back")
    assert "KV did not move from" in operation.outcome and "0 of 96 KiB moved" in operation.outcome
    assert models.TableState.objects.get().generation == stamp
    assert not models.Engine.objects.exclude(next_role="", move_phase="").exists()
    fleet.kv = True
    fleet.ended(actions.exchange_roles(ANN, LLAMA, *pair))
    assert [ready_roles(fleet)[id] for id in pair] == ["decode", "prefill"]


@pytest.mark.parametrize("end", [actions.cancel, actions.rollback])
def test_an_exchange_is_stopped_before_its_pairs_are_proven(fleet: Fleet, pair: list[str], end: Callable[..., Any]) -> None:
    stamp = models.TableState.objects.get().generation
    operation = actions.exchange_roles(ANN, LLAMA, *pair)
    actions.pause(ANN, operation.pk)
    for _ in range(3):
        fleet.until("a turn", lambda: True)
    end(ANN, operation.pk)
    operation.refresh_from_db()
    fleet.ended(operation, "cancelled" if end is actions.cancel else "rolled_back")
    for _ in range(3):
        fleet.until("a turn", lambda: True)
    assert models.TableState.objects.get().generation == stamp
    assert not models.Engine.objects.exclude(next_role="", move_phase="").exists()


def test_an_exchange_waits_for_an_engine_that_crashed_and_is_proven_with_the_new_start(
    fleet: Fleet, pair: list[str]
) -> None:
    operation = actions.exchange_roles(ANN, LLAMA, *pair)
    fleet.fake.node_of(pair[0]).crash(pair[0])
    fleet.ended(operation)
    assert ready_roles(fleet)[pair[0]] == "decode"
    proofs = models.Pair.objects.filter(decode=pair[0], state="verified")
    assert set(proofs.values_list("decode_incarnation", flat=True)) == {2}


def test_an_exchange_that_was_planned_before_is_not_made_twice(fleet: Fleet, pair: list[str]) -> None:
    model = models.Model.objects.get(name=LLAMA)
    first, second = pair
    planned = Flip(LLAMA, model.served_mode, ((first, "decode", "main"), (second, "prefill", "main")), "planned")  # type: ignore[arg-type]
    assert not apply_moves.flip(planned), "nobody asked for it"
    operation = actions.exchange_roles(ANN, LLAMA, first, second)
    assert apply_moves.flip(planned)
    assert not apply_moves.flip(planned)
    fleet.ended(operation)
    actions.exchange_roles(ANN, LLAMA, first, second)
    assert not apply_moves.flip(planned), "by now they are to change back"


def test_a_whole_state_with_mode_sizes_and_launch_is_reached_as_one_operation(fleet: Fleet) -> None:
    wanted = document.export()
    args = {**wanted["models"][QWEN]["engine_args"], "max_num_seqs": 7}
    wanted["models"][QWEN] |= {"mode": "disaggregated", "engine_args": args}
    wanted["models"][QWEN]["pools"] |= {"prefill": {"engines": 1}, "decode": {"engines": 3}}
    wanted["models"][QWEN]["pools"]["mixed"]["engines"] = 0
    made = apply_state(ANN, document.read(wanted))
    assert [(each.edit.name, each.edit.verb) for each in made.done] == [(QWEN, "change")]
    fleet.ended(models.Operation.objects.get(pk=made.done[0].operation))
    assert fleet.roles(QWEN) == {"prefill": 1, "decode": 3} and fleet.roles(LLAMA) == {"prefill": 2, "decode": 2}
    engines = models.Engine.objects.filter(model__name=QWEN, wanted=True).values_list("id", flat=True)
    specs = [read_spec(engine) for engine in engines]
    assert [spec.args.get("max_num_seqs") for spec in specs if spec] == [7] * 4
    assert not apply_state(ANN, document.read(document.export())).done


def test_a_whole_state_that_does_not_verify_is_taken_back(fleet: Fleet) -> None:
    before = document.export()
    fleet.kv = False
    wanted = {"version": 1, "models": {LLAMA: {"pools": {"prefill": {"engines": 1}, "decode": {"engines": 3}}}}}
    made = apply_state(ANN, document.read(wanted))
    fleet.ended(models.Operation.objects.get(pk=made.done[0].operation), "rolled_back")
    assert document.export() == before
    drifts = apply_state(ANN, document.read(wanted)).drifts
    assert [(each.field, each.now) for each in drifts] == [("pools.prefill.engines", 2), ("pools.decode.engines", 2)]
