"""Running operations are paused, ended or taken back; finished ones undone; models frozen; and one operator wins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.control import actions
from controlplane.control.actions.updates import Update
from controlplane.control.actor import Actor
from controlplane.control.operations import read_open, store
from controlplane.fleet import models
from tests.integration.control_kit import ANN
from tests.integration.control_rows import at_once, done, fleet, gpus, refusal, sizes, steps

pytestmark = pytest.mark.django_db


def model(name: str = "m") -> models.Model:
    return models.Model.objects.get(name=name)


def running(operation: models.Operation) -> models.Operation:
    """As the loop has begun it."""
    models.Operation.objects.filter(pk=operation.pk).update(state="running")
    return models.Operation.objects.get(pk=operation.pk)


def audit(verb: str) -> models.AuditEntry:
    return models.AuditEntry.objects.filter(verb=verb).latest("pk")


def test_an_operation_is_paused_and_resumed() -> None:
    fleet("disaggregated", prefill=2, decode=2)
    operation = running(actions.rebalance(ANN, "m", {"prefill": 1, "decode": 3}))
    assert actions.pause(ANN, operation.pk, reason="a demo").state == "paused"
    assert (audit("pause").subject, audit("pause").reason) == (f"operation:{operation.pk}", "a demo")
    assert (audit("pause").before, audit("pause").after) == ({"state": "running"}, {"state": "paused"})
    assert "is paused: only one that runs" in str(refusal(actions.pause, ANN, operation.pk))
    assert refusal(actions.scale_pool, ANN, "m", "decode", 1).kind == "busy", "a paused operation still has the model"
    assert actions.resume(ANN, operation.pk).state == "running"
    assert "is running, not paused" in str(refusal(actions.resume, ANN, operation.pk))


@pytest.mark.parametrize("verb", [actions.pause, actions.resume, actions.cancel, actions.rollback])
def test_an_operation_that_is_not_there_is_not_steered(verb: Callable[..., Any]) -> None:
    assert str(refusal(verb, ANN, 404)) == "there is no operation 404"


def test_a_cancelled_operation_stays_where_it_was() -> None:
    fleet("disaggregated", prefill=4, decode=1)
    operation = running(actions.rebalance(ANN, "m", {"prefill": 1, "decode": 4}))
    models.Engine.objects.filter(id="m-4").update(role="decode")
    models.Engine.objects.filter(id="m-3").update(next_role="decode", next_arm="main", move_phase="leaving")
    ended = actions.cancel(ANN, operation.pk, reason="enough")
    assert (ended.state, ended.outcome) == ("cancelled", "cancelled by ann: enough") and ended.finished_at
    assert sizes() == {"prefill": 2, "decode": 3}, "one has moved, one is moving and may finish"
    assert {(step.state, step.reason) for step in ended.steps.all()} == {("skipped", "cancelled by ann: enough")}
    assert "there is nothing to cancel" in str(refusal(actions.cancel, ANN, operation.pk))
    actions.rebalance(ANN, "m", {"prefill": 1})


def test_engines_that_only_start_for_a_cancelled_operation_are_wanted_no_more() -> None:
    fleet("monolithic", free=3, mixed=2)
    operation = running(actions.scale_pool(ANN, "m", "mixed", 5))
    for number in (3, 4):
        models.Engine.objects.create(id=f"m-{number}", model=model(), role="mixed", number=number, kind="simulated")
    first, second = operation.steps.all()[:2]
    models.Step.objects.filter(pk=first.pk).update(engine="m-3", state="done")
    models.Step.objects.filter(pk=second.pk).update(engine="m-4", state="running")
    actions.cancel(ANN, operation.pk)
    assert sizes() == {"mixed": 3}


def test_cancelling_never_takes_what_was_there_before() -> None:
    fleet("monolithic", free=1, mixed=3)
    operation = running(actions.scale_pool(ANN, "m", "mixed", 4))
    models.Engine.objects.filter(id="m-3").delete()
    actions.cancel(ANN, operation.pk)
    assert sizes() == {"mixed": 3}, "an engine that is lost meanwhile is replaced"


def test_a_cancelled_change_of_mode_serves_what_it_serves() -> None:
    fleet("monolithic", mixed=3)
    operation = running(actions.set_mode(ANN, "m", "disaggregated"))
    actions.cancel(ANN, operation.pk)
    assert (model().mode, sizes()) == ("monolithic", {"mixed": 3})


def test_a_running_operation_is_turned_round() -> None:
    fleet("disaggregated", prefill=3, decode=2)
    operation = running(actions.rebalance(ANN, "m", {"prefill": 1, "decode": 4}))
    turned = actions.rollback(ANN, operation.pk, reason="worse")
    assert (turned.pk, turned.state, turned.outcome) == (operation.pk, "rolling_back", "taken back by ann: worse")
    assert sizes() == {"prefill": 3, "decode": 2}
    assert {step.state for step in turned.steps.all()} == {"skipped"}
    assert audit("rollback").after == {"state": "rolling_back"}
    assert "is rolling back already" in str(refusal(actions.rollback, ANN, operation.pk))
    assert refusal(actions.rebalance, ANN, "m", {"prefill": 1}).operation == operation.pk


def test_a_finished_operation_is_undone_by_a_new_one() -> None:
    fleet("monolithic", mixed=4)
    operation = actions.set_mode(ANN, "m", "disaggregated")
    models.Engine.objects.filter(id="m-1").update(role="prefill")
    models.Engine.objects.exclude(id="m-1").update(role="decode")
    models.Model.objects.update(served_mode="disaggregated")
    done()
    undo = actions.rollback(ANN, operation.pk)
    assert (undo.verb, undo.undoes, undo.state) == ("rollback", operation, "pending")
    assert (model().mode, sizes()) == ("monolithic", {"mixed": 4})
    assert steps(undo) == ["retask mixed"] * 4 + ["switch"]
    assert (undo.before, undo.after) == (operation.after, operation.before)


def test_what_was_overtaken_is_not_undone() -> None:
    fleet("disaggregated", free=2, prefill=2, decode=2)
    first = actions.rebalance(ANN, "m", {"decode": 3})
    done()
    actions.scale_pool(ANN, "m", "decode", 4)
    done()
    refused = refusal(actions.rollback, ANN, first.pk)
    assert (refused.kind, refused.reasons) == (
        "stale",
        (f"operation {first.pk} was overtaken: pools decode is 4 by now, not 3",),
    )


def test_a_size_is_not_overtaken_while_the_earlier_one_is_rolled_back() -> None:
    fleet("disaggregated", free=3, prefill=2, decode=2)
    operation = running(actions.scale_pool(ANN, "m", "decode", 4))
    actions.rollback(ANN, operation.pk)
    for role in ("decode", "prefill"):
        assert refusal(actions.scale_pool, ANN, "m", role, 3).operation == operation.pk


@pytest.mark.parametrize("first", ["giver", "taker"])
def test_gpus_between_two_models_are_cancelled_in_both(first: str) -> None:
    fleet("monolithic", "giver", mixed=3)
    fleet("monolithic", "taker", mixed=1)
    moved = actions.move_gpus(ANN, "giver", "mixed", "mixed", 1, to_model="taker")
    moved.refresh_from_db()
    numbers = {"giver": moved.pk, "taker": moved.after["partner"]}
    assert actions.cancel(ANN, numbers[first], reason="enough").state == "cancelled"
    states = models.Operation.objects.filter(pk__in=numbers.values()).values_list("state", "outcome")
    assert set(states) == {("cancelled", "cancelled by ann: enough")}, "the other waits for nothing"
    assert (sizes("giver"), sizes("taker")) == ({"mixed": 3}, {"mixed": 1})


@pytest.mark.parametrize(("update", "before"), [(Update(strict=True), 0), (Update(floors={"decode": 2}), 1)])
def test_an_undo_leaves_no_pool_that_is_too_small_by_now(update: Update, before: int) -> None:
    fleet("disaggregated", free=3, prefill=2, decode=before)
    if before:
        operation = actions.rebalance(ANN, "m", {"prefill": 1, "decode": 2})
    else:
        operation = actions.scale_pool(ANN, "m", "decode", 1)
    done()
    actions.update_model(ANN, "m", update)
    refused = refusal(actions.rollback, ANN, operation.pk)
    assert refused.kind == "unsafe" and f"pool decode would have {before} engines" in str(refused)


def test_an_undo_takes_no_name_that_another_model_has_by_now() -> None:
    fleet("monolithic", mixed=1)
    fleet("monolithic", "n", mixed=1)
    actions.update_model(ANN, "m", Update(aliases=["gpt"]))
    removed = actions.update_model(ANN, "m", Update(aliases=[]))
    actions.update_model(ANN, "n", Update(aliases=["gpt"]))
    refused = refusal(actions.rollback, ANN, removed.pk)
    assert refused.kind == "stale" and "the name gpt is taken by model n" in str(refused)
    assert model().aliases == []
    actions.update_model(ANN, "n", Update(aliases=[]))
    actions.rollback(ANN, removed.pk)
    assert model().aliases == ["gpt"]


def test_a_rollback_that_gets_nowhere_is_ended_where_it_is() -> None:
    fleet("disaggregated", prefill=1, decode=1)
    operation = running(actions.set_mode(ANN, "m", "monolithic"))
    models.Engine.objects.update(role="mixed")
    models.Model.objects.update(served_mode="monolithic")
    actions.rollback(ANN, operation.pk)
    assert (model().mode, sizes()) == ("disaggregated", {"prefill": 1, "decode": 1})
    assert actions.cancel(ANN, operation.pk).state == "cancelled"
    assert (model().mode, sizes()) == ("monolithic", {"mixed": 2})
    assert refusal(actions.cancel, ANN, operation.pk).kind == "invalid"


def test_an_owner_undoes_only_what_an_owner_may_do() -> None:
    fleet("disaggregated", prefill=2, decode=2)
    for name in ("search", "chat"):
        models.Team.objects.create(name=name)
    owner = Actor("olga", "owner", frozenset({"chat"}))
    given = actions.update_model(ANN, "m", Update(team="chat"))
    floor = actions.update_model(ANN, "m", Update(floors={"decode": 2}))
    drained = actions.drain_engine(ANN, "m-1")
    done()
    for operation in (given, floor, drained):
        assert refusal(actions.rollback, owner, operation.pk).kind == "forbidden"
    back = actions.rollback(ANN, floor.pk)
    assert refusal(actions.rollback, owner, back.pk).kind == "forbidden", "nor by undoing an undo"
    balanced = actions.rebalance(ANN, "m", {"prefill": 1, "decode": 3})
    assert actions.rollback(owner, balanced.pk).state == "rolling_back"


NONSENSE = "\udcff\x00"
"""What a command line may hold and PostgreSQL does not take."""


def test_text_that_no_row_can_hold_is_not_stored() -> None:
    fleet("monolithic", free=3, mixed=2)
    assert refusal(actions.rebalance, ANN, NONSENSE, {"mixed": 1}).kind == "not_found"
    assert refusal(actions.exchange_roles, ANN, "m", NONSENSE, NONSENSE).kind == "not_found"
    assert refusal(actions.move_gpus, ANN, "m", "mixed", "mixed", 1, to_model=NONSENSE).kind == "not_found"
    for verb in (
        actions.drain_engine,
        actions.restart_engine,
        actions.retry_engine,
        actions.cordon_node,
        actions.remove_node,
    ):
        assert refusal(verb, ANN, NONSENSE).kind == "not_found"
    later = timezone.now() + timedelta(hours=1)
    actions.freeze(ANN, "m", later, reason=NONSENSE)
    assert model().frozen_reason == "?"
    actions.unfreeze(ANN, "m", reason=NONSENSE)
    for end in (actions.cancel, actions.rollback):
        operation = running(actions.scale_pool(ANN, "m", "mixed", 4, reason=NONSENSE))
        assert end(ANN, operation.pk, reason=NONSENSE).outcome.endswith("by ann: ?")


def test_what_cannot_be_taken_back_says_so() -> None:
    fleet("monolithic", mixed=1)
    operation = actions.add_node(ANN, "n2")
    assert "cannot be taken back: give the opposite order instead" in str(refusal(actions.rollback, ANN, operation.pk))


def test_what_only_adds_or_ends_is_not_turned_round() -> None:
    fleet("monolithic", mixed=4)
    restart = actions.restart_engine(ANN, "m-1")
    assert "(restart_engine, pending) cannot be taken back" in str(refusal(actions.rollback, ANN, restart.pk))
    done()
    actions.set_canary(ANN, "m", "disaggregated")
    done()
    models.Engine.objects.filter(id="m-2").update(role="prefill", arm="canary")
    ended = actions.end_canary(ANN, "m")
    for steer in (actions.rollback, actions.cancel):
        assert "end_canary" in str(refusal(steer, ANN, ended.pk)), "its engines have to go back"
    assert "wait for it, or pause it" in str(refusal(actions.cancel, ANN, ended.pk)), "what can be done"


# --- freezes --------------------------------------------------------------------------------------------------------------


def test_a_frozen_model_begins_nothing_and_heals_on() -> None:
    fleet("disaggregated", free=1, prefill=2, decode=2)
    actions.freeze(ANN, "m", timezone.now() + timedelta(hours=1), reason="black friday")
    refused = refusal(actions.rebalance, ANN, "m", {"decode": 3})
    assert refused.kind == "frozen" and "(black friday): unfreeze it first" in str(refused)
    actions.drain_engine(ANN, "m-1")
    done()
    actions.unfreeze(ANN, "m")
    assert (audit("freeze").before, audit("unfreeze").after) == ({"frozen_until": None}, {"frozen_until": None})
    actions.rebalance(ANN, "m", {"decode": 3})


def test_a_freeze_of_all_models_ends_by_itself() -> None:
    fleet("monolithic", name="a", free=1, mixed=1)
    fleet("monolithic", name="b", mixed=1)
    actions.freeze(ANN, None, timezone.now() + timedelta(hours=1))
    assert {refusal(actions.scale_pool, ANN, name, "mixed", 2).kind for name in "ab"} == {"frozen"}
    models.Model.objects.update(frozen_until=timezone.now() - timedelta(seconds=1))
    actions.scale_pool(ANN, "a", "mixed", 2)


@pytest.mark.parametrize("hours", [-1, 9000])
def test_a_freeze_lasts_until_a_time_to_come(hours: float) -> None:
    fleet("monolithic", mixed=1)
    assert refusal(actions.freeze, ANN, "m", timezone.now() + timedelta(hours=hours)).kind == "invalid"


# --- two operators --------------------------------------------------------------------------------------------------------

CHANGES: dict[str, Callable[[str, int], Any]] = {
    "rebalance": lambda name, at: actions.rebalance(ANN, name, {"prefill": 1, "decode": 3}, expected_version=at),
    "scale_pool": lambda name, at: actions.scale_pool(ANN, name, "decode", 3, expected_version=at),
    "set_mode": lambda name, at: actions.set_mode(ANN, name, "monolithic", expected_version=at),
    "move_gpus": lambda name, at: actions.move_gpus(ANN, name, "prefill", "decode", 1, expected_version=at),
    "exchange_roles": lambda name, at: actions.exchange_roles(ANN, name, f"{name}-1", f"{name}-3", expected_version=at),
    "drain_engine": lambda name, at: actions.drain_engine(ANN, f"{name}-1", expected_version=at),
    "restart_engine": lambda name, at: actions.restart_engine(ANN, f"{name}-1", expected_version=at),
    "set_canary": lambda name, at: actions.set_canary(ANN, name, "monolithic", expected_version=at),
    "roll_out": lambda name, at: actions.roll_out(ANN, name, actions.RollOut(), expected_version=at),
    "retire_model": lambda name, at: actions.retire_model(ANN, name, expected_version=at),
}


@pytest.mark.django_db(transaction=True)
def test_of_two_operators_at_once_one_wins_and_the_other_hears_what_runs() -> None:
    names = {verb: f"m{index}" for index, verb in enumerate(CHANGES)}
    for name in names.values():
        fleet("disaggregated", name=name, prefill=2, decode=2)
    gpus(len(CHANGES))
    for verb, change in CHANGES.items():
        name = names[verb]
        version = model(name).version

        def change_it(change: Callable[[str, int], Any] = change, name: str = name, version: int = version) -> Any:
            return change(name, version)

        other = CHANGES["rebalance" if verb != "rebalance" else "set_mode"]
        refused = at_once(change_it, lambda other=other, name=name, version=version: other(name, version))  # type: ignore[misc]
        running_now = models.Operation.objects.get(model__name=name, finished_at=None)
        assert refused is not None, f"both won: {verb}"
        assert (refused.kind, refused.operation) == ("busy", running_now.pk), verb
        assert f"operation {running_now.pk} ({verb}) of ann still runs on {name}" in str(refused)


@pytest.mark.parametrize("verb", CHANGES)
def test_who_has_read_an_older_version_is_refused(verb: str) -> None:
    row = fleet("disaggregated", prefill=2, decode=2)
    actions.update_model(ANN, "m", actions.Update(slo_ttft_ms=900))
    refused = refusal(CHANGES[verb], "m", row.version)
    assert refused.kind == "stale" and f"version {row.version}, now {row.version + 1}" in str(refused)


@pytest.mark.parametrize("verb", CHANGES)
def test_every_change_is_refused_while_another_runs_or_the_model_is_frozen(verb: str) -> None:
    fleet("disaggregated", prefill=2, decode=2)
    other = actions.drain_engine(ANN, "m-4")
    refused = refusal(CHANGES[verb], "m", model().version)
    assert (refused.kind, refused.operation) == ("busy", other.pk)
    done()
    actions.freeze(ANN, "m", timezone.now() + timedelta(hours=1))
    if verb != "drain_engine":
        assert refusal(CHANGES[verb], "m", model().version).kind == "frozen"


@pytest.mark.django_db(transaction=True)
def test_gpus_that_cross_between_two_models_never_lock_each_other_out() -> None:
    fleet("monolithic", name="a", mixed=3)
    fleet("monolithic", name="b", mixed=3)
    refused = at_once(
        lambda: actions.move_gpus(ANN, "a", "mixed", "mixed", 1, to_model="b"),
        lambda: actions.move_gpus(ANN, "b", "mixed", "mixed", 1, to_model="a"),
    )
    assert refused is not None and refused.kind == "busy"


@pytest.mark.django_db(transaction=True)
def test_the_loop_touches_no_step_of_an_operation_that_somebody_steers() -> None:
    fleet("disaggregated", prefill=2, decode=2)
    operation = actions.rebalance(ANN, "m", {"prefill": 1, "decode": 3})
    (old,) = read_open()
    steps = tuple(replace(step, state="running", engine="m-1") for step in old.steps)
    begun = replace(old, state="running", steps=steps)
    at_once(
        lambda: actions.lock_operation(operation.pk),
        lambda: store(old, begun),
        lambda: actions.cancel(ANN, operation.pk),
    )
    operation.refresh_from_db()
    assert (operation.state, [step.state for step in operation.steps.all()]) == ("cancelled", ["skipped"])
