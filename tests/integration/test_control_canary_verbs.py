"""A canary takes engines from the main pools and gives them back, whichever way it ends."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.control import actions
from controlplane.control.actor import Actor
from controlplane.fleet import models
from tests.integration.control_kit import ANN
from tests.integration.control_rows import done, fleet, refusal, sizes, steps

pytestmark = pytest.mark.django_db


def canary() -> models.Canary:
    return models.Canary.objects.latest("pk")


def test_a_canary_gets_engines_of_its_own_and_the_share_that_they_are() -> None:
    fleet("monolithic", mixed=8)
    operation = actions.set_canary(ANN, "m", "disaggregated", guardrails={"margin": 0.1}, reason="try it")
    assert sizes() == {"mixed": 6, "canary/prefill": 1, "canary/decode": 1}
    assert steps(operation) == ["retask canary/prefill", "retask canary/decode"]
    row = canary()
    assert (row.mode, row.state, row.share, row.shared, row.operation) == (
        "disaggregated",
        "running",
        0.25,
        False,
        operation,
    )
    assert row.guardrails == {"margin": 0.1}
    assert operation.after == {
        "pools": {"mixed": 6, "canary/prefill": 1, "canary/decode": 1},
        "canary": {"id": row.pk, "mode": "disaggregated"},
    }
    assert operation.before["canary"] is None


def test_the_largest_main_pool_gives_first_and_a_smaller_share_may_be_asked() -> None:
    fleet("disaggregated", prefill=2, decode=6)
    actions.set_canary(ANN, "m", "monolithic", engines={"mixed": 4}, share=0.1)
    assert sizes() == {"prefill": 2, "decode": 2, "canary/mixed": 4} and canary().share == 0.1


def test_a_canary_on_shared_engines_takes_none() -> None:
    fleet("disaggregated", prefill=1, decode=1)
    operation = actions.set_canary(ANN, "m", "conditional", shared=True, share=0.2, steps=[0.5, 1])
    assert (operation.state, sizes()) == ("done", {"prefill": 1, "decode": 1})
    assert (canary().shared, canary().share, canary().steps) == (True, 0.2, [0.5, 1])


@pytest.mark.parametrize(
    ("asked", "kind", "reason"),
    [
        ({"mode": "monolithic"}, "invalid", "m is monolithic already: a canary tries another mode"),
        ({"mode": "both"}, "invalid", "mode 'both': one of monolithic"),
        ({"mode": "disaggregated", "shared": True}, "invalid", "on shared engines only conditional is tried against"),
        ({"mode": "disaggregated", "engines": {"prefill": 1}}, "invalid", "needs at least one engine in each of prefill"),
        ({"mode": "disaggregated", "share": 0.9}, "invalid", "share 0.9 is more than the arm's part of the engines, 0.50"),
        ({"mode": "disaggregated", "share": 0.0}, "invalid", "shares: more than 0, at most 1"),
        ({"mode": "disaggregated", "share": 0.5, "steps": [0.4]}, "invalid", "steps: shares that rise"),
        ({"mode": "disaggregated", "steps": 5}, "invalid", "steps: a list of shares, not 5"),
        ({"mode": "disaggregated", "steps": {"a": 1}}, "invalid", "steps: a list of shares"),
        ({"mode": "disaggregated", "steps": [None]}, "invalid", "shares: more than 0, at most 1"),
        ({"mode": "disaggregated", "share": True}, "invalid", "shares: more than 0, at most 1"),
        ({"mode": "disaggregated", "shared": []}, "invalid", "shared: true or false, not []"),
        (
            {"mode": "disaggregated", "engines": {"prefill": 2, "decode": 2}},
            "unsafe",
            "the main pools must keep 1 of their 4",
        ),
        ({"mode": "disaggregated", "guardrails": {"luck": 1}}, "invalid", "unknown guardrail"),
        ({"mode": "disaggregated", "guardrails": {"margin": 7}}, "invalid", "margin must be"),
    ],
)
def test_a_canary_that_cannot_be_is_refused(asked: Any, kind: str, reason: str) -> None:
    fleet("monolithic", mixed=4)
    refused = refusal(actions.set_canary, ANN, "m", asked.pop("mode"), **asked)
    assert refused.kind == kind and reason in str(refused)


def test_one_canary_at_a_time_and_no_other_mode_meanwhile() -> None:
    fleet("monolithic", mixed=8)
    actions.set_canary(ANN, "m", "disaggregated")
    done()
    assert "promote or end it first" in str(refusal(actions.set_canary, ANN, "m", "conditional"))
    assert "promote or end it first" in str(refusal(actions.set_mode, ANN, "m", "disaggregated"))
    actions.rebalance(ANN, "m", {"mixed": 5})


def test_an_ended_canary_gives_its_engines_back() -> None:
    fleet("disaggregated", prefill=2, decode=4)
    actions.set_canary(ANN, "m", "monolithic", engines={"mixed": 2})
    models.Engine.objects.filter(id__in=["m-5", "m-6"]).update(role="mixed", arm="canary")
    done()
    reason = "errors"
    operation = actions.end_canary(Actor.system("canary"), "m", outcome="rolled_back", reason=reason)
    assert sizes() == {"prefill": 2, "decode": 4}
    assert steps(operation) == ["retask decode", "retask decode"]
    assert (canary().state, canary().reason) == ("rolled_back", "errors") and canary().ended_at
    assert operation.actor == "canary" and operation.after["canary"] is None
    done()
    assert str(refusal(actions.end_canary, ANN, "m")) == "no canary of m runs"


def test_main_pools_that_changed_meanwhile_keep_their_proportion() -> None:
    fleet("disaggregated", free=1, prefill=2, decode=4)
    actions.set_canary(ANN, "m", "monolithic", engines={"mixed": 2})
    models.Engine.objects.filter(id__in=["m-5", "m-6"]).update(role="mixed", arm="canary")
    done()
    actions.scale_pool(ANN, "m", "decode", 3)
    models.Engine.objects.create(id="m-7", model=models.Model.objects.get(), role="decode", number=7, kind="simulated")
    done()
    actions.end_canary(ANN, "m")
    assert sizes() == {"prefill": 3, "decode": 4}


def test_a_promoted_canary_goes_by_its_steps_and_then_is_the_mode() -> None:
    fleet("monolithic", mixed=8)
    actions.set_canary(ANN, "m", "disaggregated", steps=[0.5])
    done()
    step = actions.promote_canary(ANN, "m")
    assert sizes() == {"mixed": 4, "canary/prefill": 1, "canary/decode": 3}
    assert (canary().state, canary().share, canary().steps, step.after["share"]) == ("running", 0.5, [], 0.5)
    done()
    last = actions.promote_canary(ANN, "m")
    assert sizes() == {"prefill": 2, "decode": 6} and models.Model.objects.get().mode == "disaggregated"
    assert (canary().state, canary().reason) == ("promoted", "promoted by ann") and steps(last)[-1] == "switch"
    assert refusal(actions.promote_canary, ANN, "m").kind in ("busy", "not_found")


def test_a_promotion_that_fails_leaves_the_canary_running() -> None:
    fleet("monolithic", mixed=4)
    actions.set_canary(ANN, "m", "disaggregated")
    done()
    promoted = actions.promote_canary(ANN, "m", fully=True)
    models.Operation.objects.filter(pk=promoted.pk).update(state="running")
    actions.rollback(ANN, promoted.pk)
    assert (canary().state, canary().ended_at, models.Model.objects.get().mode) == ("running", None, "monolithic")
    assert sizes() == {"mixed": 2, "canary/prefill": 1, "canary/decode": 1}


def test_a_canary_whose_start_is_taken_back_ends() -> None:
    fleet("monolithic", mixed=4)
    operation = actions.set_canary(ANN, "m", "disaggregated")
    actions.rollback(ANN, operation.pk)
    assert (canary().state, sizes()) == ("cancelled", {"mixed": 4})


def test_a_canary_runs_on_when_the_undoing_of_its_start_is_undone() -> None:
    fleet("monolithic", mixed=4)
    begun = actions.set_canary(ANN, "m", "disaggregated")
    done()
    undone = actions.rollback(ANN, begun.pk)
    done()
    actions.rollback(ANN, undone.pk)
    assert (canary().state, canary().ended_at) == ("running", None), "its engines would serve nobody"
    assert sizes() == {"mixed": 2, "canary/prefill": 1, "canary/decode": 1}


def test_no_undo_puts_a_model_into_a_mode_that_its_canary_cannot_be_tried_against() -> None:
    fleet("monolithic", mixed=2)
    split = actions.set_mode(ANN, "m", "disaggregated")
    models.Model.objects.update(served_mode="disaggregated")
    models.Engine.objects.filter(id="m-1").update(role="prefill")
    models.Engine.objects.filter(id="m-2").update(role="decode")
    done()
    begun = actions.set_canary(ANN, "m", "conditional", shared=True)
    refused = refusal(actions.rollback, ANN, split.pk)
    assert refused.kind == "busy" and "promote or end it first" in str(refused)
    ended = actions.rollback(ANN, begun.pk)
    actions.rollback(ANN, split.pk)
    models.Model.objects.update(served_mode="monolithic")
    models.Engine.objects.update(role="mixed")
    done()
    refused = refusal(actions.rollback, ANN, ended.pk)
    assert refused.kind == "stale" and "only conditional is tried against disaggregated" in str(refused)
    assert canary().state == "cancelled"


def test_guardrails_change_while_a_canary_runs() -> None:
    fleet("disaggregated", prefill=1, decode=1)
    actions.set_canary(ANN, "m", "conditional", shared=True, guardrails={"margin": 0.1})
    operation = actions.update_canary(ANN, "m", {"min_sessions": 50})
    assert canary().guardrails == {"margin": 0.1, "min_sessions": 50}
    assert (operation.before["guardrails"], operation.after["guardrails"]) == ({"margin": 0.1}, canary().guardrails)
    assert refusal(actions.update_canary, ANN, "m", {"margin": -1}).kind == "invalid"
