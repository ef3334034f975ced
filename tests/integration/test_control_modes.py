"""Changes of modes and pools as they are written: desired rows, steps, operation and audit entry, or a refusal."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.control import actions
from controlplane.fleet import models
from tests.integration.control_kit import ANN
from tests.integration.control_rows import done, fleet, gpus, node, refusal, sizes, steps

pytestmark = pytest.mark.django_db


def model(name: str = "m") -> models.Model:
    return models.Model.objects.get(name=name)


# --- rebalance ------------------------------------------------------------------------------------------------------------


def test_a_rebalance_moves_engines_between_pools() -> None:
    before = fleet("disaggregated", prefill=3, decode=2)
    operation = actions.rebalance(ANN, "m", {"prefill": 1, "decode": 4}, reason="long answers")
    assert sizes() == {"prefill": 1, "decode": 4}
    assert steps(operation) == ["retask decode", "retask decode"]
    assert (operation.state, operation.actor, operation.reason) == ("pending", "ann", "long answers")
    assert model().version > before.version
    entry = operation.audit.get()
    assert (entry.actor, entry.verb, entry.subject, entry.reason) == ("ann", "rebalance", "model:m", "long answers")
    assert (entry.before, entry.after) == ({"pools": {"prefill": 3, "decode": 2}}, {"pools": {"prefill": 1, "decode": 4}})


def test_what_does_not_move_is_started_and_stopped() -> None:
    fleet("disaggregated", free=2, prefill=2, decode=2)
    assert steps(actions.rebalance(ANN, "m", {"prefill": 1, "decode": 5})) == [
        "retask decode",
        "start decode",
        "start decode",
    ]
    done()
    models.Pool.objects.filter(role="prefill").update(desired_engines=2)
    assert steps(actions.rebalance(ANN, "m", {"decode": 1})) == ["stop decode"]


def test_pools_of_other_shapes_give_their_gpus_not_their_engines() -> None:
    fleet("disaggregated", prefill=3, decode=2)
    models.Pool.objects.filter(role="decode").update(tensor_parallel=2)
    assert steps(actions.rebalance(ANN, "m", {"prefill": 1, "decode": 3})) == [
        "start decode",
        "stop prefill",
        "stop prefill",
    ]


def test_a_rebalance_to_what_is_there_already_is_done_at_once() -> None:
    fleet("disaggregated", prefill=2, decode=2)
    operation = actions.rebalance(ANN, "m", {"prefill": 2})
    assert (operation.state, operation.before, operation.steps.count()) == ("done", {}, 0)


@pytest.mark.parametrize(
    ("asked", "kind", "reason"),
    [
        ({"prefill": 0}, "unsafe", "pool prefill would have 0 engines and its floor is 1: give it that many"),
        ({"prefill": 9}, "no_capacity", "pool m/prefill: 0 of 7 more engines would fit"),
        ({"mixed": 1}, "invalid", "there is no pool 'mixed'; pools: prefill, decode"),
        ({"prefill": -1}, "invalid", "pool prefill: 0 to 1024 engines, not -1"),
        ({"prefill": 1.5}, "invalid", "pool prefill: 0 to 1024 engines, not 1.5"),
        ({"prefill": True}, "invalid", "pool prefill: 0 to 1024 engines, not True"),
        ({}, "invalid", "name at least one pool and its size"),
    ],
)
def test_a_rebalance_that_cannot_be_is_refused(asked: Any, kind: str, reason: str) -> None:
    fleet("disaggregated", prefill=2, decode=2)
    refused = refusal(actions.rebalance, ANN, "m", asked)
    assert refused.kind == kind and reason in str(refused)


def test_a_strict_model_keeps_an_engine_in_each_pool_whatever_its_floors() -> None:
    fleet("disaggregated", prefill=2, decode=2)
    models.Pool.objects.update(floor=0)
    models.Model.objects.update(strict=True)
    refused = refusal(actions.rebalance, ANN, "m", {"prefill": 0, "decode": 4})
    assert refused.kind == "unsafe" and "pool prefill would have 0 engines and m is strict" in str(refused)
    assert refusal(actions.scale_pool, ANN, "m", "prefill", 0).kind == "unsafe"
    models.Pool.objects.create(model=models.Model.objects.get(), role="mixed", floor=0, desired_engines=1)
    assert actions.scale_pool(ANN, "m", "mixed", 0).state != "refused", "a pool that its mode does not use is needed"
    models.Pool.objects.filter(role="mixed").delete()
    models.Operation.objects.update(state="done")
    models.Model.objects.update(strict=False)
    assert steps(actions.rebalance(ANN, "m", {"prefill": 0, "decode": 4})) == ["retask decode", "retask decode"]


def test_the_only_pool_of_a_strict_model_is_not_emptied() -> None:
    fleet("monolithic", mixed=2)
    models.Model.objects.update(strict=True)
    refused = refusal(actions.scale_pool, ANN, "m", "mixed", 0)
    assert refused.kind == "unsafe" and "m is strict" in str(refused)
    assert sizes() == {"mixed": 2}


def test_a_floor_is_kept() -> None:
    fleet("disaggregated", prefill=2, decode=3)
    models.Pool.objects.filter(role="decode").update(floor=3)
    assert "pool decode would have 2 engines and its floor is 3" in str(refusal(actions.rebalance, ANN, "m", {"decode": 2}))


# --- mode -----------------------------------------------------------------------------------------------------------------


def test_a_model_becomes_disaggregated_with_a_third_for_prefill() -> None:
    fleet("monolithic", mixed=6)
    operation = actions.set_mode(ANN, "m", "disaggregated")
    assert (model().mode, model().served_mode, sizes()) == ("disaggregated", "monolithic", {"prefill": 2, "decode": 4})
    assert steps(operation) == ["retask prefill"] * 2 + ["retask decode"] * 4 + ["switch"]
    assert operation.before == {"mode": "monolithic", "pools": {"mixed": 6, "prefill": 0, "decode": 0}}
    assert operation.after == {"mode": "disaggregated", "pools": {"mixed": 0, "prefill": 2, "decode": 4}}


def test_the_split_may_be_given_and_the_way_back_is_as_wide() -> None:
    fleet("monolithic", free=1, mixed=3)
    assert steps(actions.set_mode(ANN, "m", "disaggregated", split={"prefill": 2, "decode": 2})) == [
        *["retask prefill", "retask prefill", "retask decode", "start decode", "switch"]
    ]
    models.Model.objects.update(served_mode="disaggregated")
    done()
    assert sizes() == {"prefill": 2, "decode": 2}
    actions.set_mode(ANN, "m", "monolithic")
    assert sizes() == {"mixed": 4}


def test_thresholds_of_conditional_need_no_step() -> None:
    fleet("conditional", prefill=1, decode=1)
    operation = actions.set_mode(ANN, "m", "conditional", min_uncached_tokens=256, min_uncached_ratio=0.5)
    assert (operation.state, sizes()) == ("done", {"prefill": 1, "decode": 1})
    assert operation.after == {"settings": {"conditional_min_uncached_tokens": 256, "conditional_min_uncached_ratio": 0.5}}


def test_conditional_and_disaggregated_share_their_pools() -> None:
    fleet("disaggregated", prefill=1, decode=3)
    assert steps(actions.set_mode(ANN, "m", "conditional")) == ["switch"]
    assert sizes() == {"prefill": 1, "decode": 3}


@pytest.mark.parametrize(
    ("change", "asked", "kind", "reason"),
    [
        ({}, {"mode": "both"}, "invalid", "mode 'both': one of monolithic, disaggregated, conditional"),
        ({}, {"mode": "disaggregated", "min_uncached_tokens": 1}, "invalid", "thresholds belong to mode conditional"),
        ({}, {"mode": "conditional", "min_uncached_tokens": -1}, "invalid", "min_uncached_tokens: a whole number"),
        ({}, {"mode": "conditional", "min_uncached_ratio": float("nan")}, "invalid", "min_uncached_ratio: a number from 0"),
        (
            {},
            {"mode": "disaggregated", "split": {"mixed": 2}},
            "invalid",
            "there is no pool 'mixed'; pools: prefill, decode",
        ),
        ({}, {"mode": "disaggregated", "split": {"prefill": 1}}, "unsafe", "pool decode would have 0 engines"),
        ({}, {"mode": "disaggregated", "split": {"prefill": 2, "decode": 9}}, "no_capacity", "more engines would fit"),
        ({"connector": "none"}, {"mode": "disaggregated"}, "invalid", "m has no connector"),
    ],
)
def test_a_mode_that_cannot_be_is_refused(change: Any, asked: Any, kind: str, reason: str) -> None:
    fleet("monolithic", mixed=3)
    models.Model.objects.update(**change)
    refused = refusal(actions.set_mode, ANN, "m", asked.pop("mode"), **asked)
    assert refused.kind == kind and reason in str(refused)


def test_one_engine_cannot_be_split() -> None:
    fleet("monolithic", mixed=1)
    assert refusal(actions.set_mode, ANN, "m", "disaggregated").kind == "unsafe"


def test_engines_that_fit_no_other_cannot_hand_over() -> None:
    fleet("monolithic", mixed=3)
    models.Engine.objects.filter(id="m-1").update(compat="old")
    assert "1 engines of m differ from all others" in str(refusal(actions.set_mode, ANN, "m", "disaggregated"))


# --- between pools and models ---------------------------------------------------------------------------------------------


def test_gpus_move_between_the_pools_of_a_model() -> None:
    fleet("disaggregated", prefill=2, decode=2)
    assert steps(actions.move_gpus(ANN, "m", "prefill", "decode", 1)) == ["retask decode"]
    assert sizes() == {"prefill": 1, "decode": 3}


def test_gpus_move_between_models_in_two_operations_that_know_each_other() -> None:
    fleet("monolithic", name="a", mixed=3)
    fleet("monolithic", name="b", mixed=1)
    models.Pool.objects.filter(model__name="b").update(tensor_parallel=2)
    gives = actions.move_gpus(ANN, "a", "mixed", "mixed", 2, to_model="b", reason="b is busy")
    gets = models.Operation.objects.get(pk=gives.after["partner"])
    assert (steps(gives), steps(gets)) == (["stop mixed", "stop mixed"], ["start mixed"])
    assert (sizes("a"), sizes("b")) == ({"mixed": 1}, {"mixed": 2})
    assert gets.after["partner"] == gives.pk and gets.model is not None and gets.model.name == "b"
    assert models.AuditEntry.objects.filter(verb="move_gpus", reason="b is busy").count() == 2
    done()
    back = actions.rollback(ANN, gives.pk)
    assert (sizes("a"), sizes("b")) == ({"mixed": 3}, {"mixed": 1})
    assert models.Operation.objects.filter(undoes=gets).exists() and back.undoes == gives


@pytest.mark.parametrize(
    ("asked", "kind", "reason"),
    [
        (("prefill", "decode", 3), "invalid", "pool prefill has 2 engines of 1 GPUs: it cannot give 3"),
        (("prefill", "decode", 2), "unsafe", "pool prefill would have 0 engines"),
        (("prefill", "prefill", 1), "invalid", "a pool cannot give to itself"),
        (("prefill", "mixed", 1), "not_found", "m has no pool 'mixed'"),
        (("prefill", "decode", 0), "invalid", "gpus: 1 to 1024, not 0"),
    ],
)
def test_gpus_that_cannot_move_are_refused(asked: Any, kind: str, reason: str) -> None:
    fleet("disaggregated", prefill=2, decode=2)
    refused = refusal(actions.move_gpus, ANN, "m", *asked)
    assert refused.kind == kind and reason in str(refused)


def test_gpus_that_make_no_whole_engine_are_refused() -> None:
    fleet("disaggregated", prefill=3, decode=1)
    models.Pool.objects.filter(role="decode").update(tensor_parallel=2)
    assert "an engine of pool decode has 2 GPUs" in str(refusal(actions.move_gpus, ANN, "m", "prefill", "decode", 1))
    assert "there is no model 'x'" in str(refusal(actions.move_gpus, ANN, "m", "prefill", "decode", 1, to_model="x"))


# --- what may overtake what -----------------------------------------------------------------------------------------------


def test_a_size_overtakes_a_size_of_the_same_pool_only() -> None:
    fleet("disaggregated", free=4, prefill=2, decode=2)
    older = actions.scale_pool(ANN, "m", "decode", 4)
    refused = refusal(actions.scale_pool, ANN, "m", "prefill", 3)
    assert (refused.kind, refused.operation) == ("busy", older.pk)
    newer = actions.scale_pool(ANN, "m", "decode", 3)
    assert {step.reason for step in older.steps.all()} == {f"superseded by operation {newer.pk}"}
    assert refusal(actions.rebalance, ANN, "m", {"decode": 2}).operation == newer.pk


def test_a_split_of_engines_that_all_come_up_yet_is_open_until_they_do() -> None:
    """Nothing takes more room, and another operator must not find the model free."""
    fleet("disaggregated", free=1, prefill=2, decode=2)
    models.Engine.objects.all().delete()
    operation = actions.rebalance(ANN, "m", {"prefill": 1, "decode": 3})
    assert (operation.state, steps(operation)) == ("pending", ["start decode"])
    assert refusal(actions.set_mode, ANN, "m", "monolithic").operation == operation.pk


def test_room_that_a_cordoned_node_has_does_not_count() -> None:
    fleet("monolithic", mixed=1)
    gpus(4, on="n2")
    actions.cordon_node(ANN, "n2")
    assert "n2: is cordoned" in str(refusal(actions.scale_pool, ANN, "m", "mixed", 2))
    actions.uncordon_node(ANN, node("n2").name)
    assert steps(actions.scale_pool(ANN, "m", "mixed", 2)) == ["start mixed"]


def test_engines_that_are_missing_already_keep_no_change_from_being_made() -> None:
    fleet("disaggregated", prefill=3, decode=2)
    models.Engine.objects.filter(id="m-5").update(wanted=False, state="stopped")  # its GPU is held: there is no room
    assert steps(actions.rebalance(ANN, "m", {"prefill": 2, "decode": 3})) == ["retask decode"]
