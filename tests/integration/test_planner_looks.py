"""The planner's looks at rows and telemetry of a real database: proposals, holds, what is carried out and what came."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from controlplane.control import actions
from controlplane.control.actor import Actor
from controlplane.control.leases import lease
from controlplane.control.models import Level, PlannerHold, Proposal
from controlplane.control.planning import outcomes, selectors, tick
from controlplane.control.planning.gather import model_now
from controlplane.fleet import models
from controlplane.fleet.models import AuditEntry, Operation
from controlplane.telemetry.tables import moment
from tests.integration.control_kit import ANN
from tests.integration.control_rows import done, fleet
from tests.integration.planner_rows import planned, proposal, sketch, traffic

pytestmark = pytest.mark.django_db

NOW = time.time() // 60 * 60 + 20
LONG_AGO = moment(NOW - 7200)


def settled() -> None:
    """What registered the model was long ago."""
    Operation.objects.update(created_at=LONG_AGO, finished_at=LONG_AGO)


def loaded(level: str = Level.APPROVE, rate: float = 6.0, prefill: int = 1, decode: int = 4, **more: Any) -> models.Model:
    """Long prompts on one prefill engine: the split does not suit them."""
    model = fleet("disaggregated", prefill=prefill, decode=decode)
    settled()
    planned(model, level)
    traffic(NOW, rate, prompt=4000, output=50, ttft_ms=9000.0, **more)
    return model


def hold(model: models.Model) -> PlannerHold:
    found = PlannerHold.objects.filter(model=model).first()
    assert found is not None
    return found


def test_the_fleet_is_seen_as_it_is() -> None:
    model = loaded(rate=2.0)
    seen = model_now(model, NOW)
    assert [(pool.role, pool.engines, pool.gpu) for pool in seen.pools] == [("prefill", 1, "l4"), ("decode", 4, "l4")]
    assert not seen.obstacle and not seen.warming and seen.operation is None and seen.manual is None
    assert {round(each.rate, 6) for each in seen.windows} == {2.0}
    recent = seen.windows[-10:]
    assert all(each.complete and each.samples == 4 for each in recent)
    assert recent[0].mix.count == 120 and recent[0].mix.prompt_tokens == 4000
    assert seen.metrics_at_s is not None and NOW - seen.metrics_at_s < seen.guards.stale_s
    assert seen.observed[-1].ttft_p99_ms == pytest.approx(9000, rel=0.02)


def test_a_change_is_proposed_once_and_kept_with_what_it_was_made_from() -> None:
    model = loaded()
    tick.look(NOW)
    row = Proposal.objects.get()
    assert row.state == "open" and row.mode == "disaggregated" and row.sizes["prefill"] > 1
    assert row.reasons and row.inputs["mix"]["cells"] and row.inputs["rate"] == pytest.approx(6.0)
    assert row.predicted["gpus"] == 5 and row.before[0] == {
        "role": "prefill",
        "engines": 1,
        "tensor_parallel": 1,
        "gpu": "l4",
    }
    tick.look(NOW + 30)
    again = Proposal.objects.get()
    assert again.pk == row.pk and again.seen_at > row.seen_at and again.expires_at == row.expires_at
    assert models.Pool.objects.get(model=model, role="prefill").desired_engines == 1, "nobody has approved it"
    assert selectors.open_count() == 1 and selectors.planner_of(model).hold is None


def test_a_hold_is_one_row_as_long_as_its_kind_stays() -> None:
    model = fleet("disaggregated", prefill=1, decode=1)
    settled()
    planned(model)
    tick.look(NOW)
    tick.look(NOW + 60)
    first = hold(model)
    assert first.code == "empty" and first.reason == "Nothing was measured yet." and PlannerHold.objects.count() == 1
    assert first.since == moment(NOW) and first.seen_at == moment(NOW + 60)
    planned(model, Level.OFF)
    tick.look(NOW + 120)
    assert hold(model).code == "off" and PlannerHold.objects.count() == 2
    tick.look(NOW + 31 * 86_400)
    assert PlannerHold.objects.count() == 1, "holds are kept for a month"


@pytest.mark.parametrize("silent", ["engines", "routers"])
def test_an_outage_of_metrics_holds(silent: str) -> None:
    model = fleet("disaggregated", prefill=2, decode=2)
    settled()
    planned(model)
    gone_s = NOW - 600
    if silent == "engines":
        traffic(gone_s, 4.0, engines_until_s=gone_s)
    else:
        traffic(NOW, lambda start: 4.0)
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM telemetry_model_minute WHERE at >= %s", [moment(gone_s)])
    tick.look(NOW)
    assert hold(model).code == "stale" and not Proposal.objects.exists()


def test_a_model_that_is_idle_is_planned_down_to_its_floor() -> None:
    model = fleet("disaggregated", prefill=3, decode=3)
    settled()
    planned(model, floors={"decode": 2}, guards={"moves_per_hour": 20})
    traffic(NOW, 0.0)
    tick.look(NOW)
    assert Proposal.objects.get().sizes == {"prefill": 1, "decode": 2}


def test_a_change_by_hand_ends_the_proposal_and_is_adopted() -> None:
    model = loaded()
    tick.look(NOW)
    actions.rebalance(ANN, "m", {"prefill": 2, "decode": 3}, reason="for the demo")
    Operation.objects.filter(verb="rebalance").update(state="done", created_at=moment(NOW), finished_at=moment(NOW))
    models.Engine.objects.filter(id="m-5").update(role="prefill")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE telemetry_model_minute SET ttft_ms = %s", [sketch(100.0)])
    tick.look(NOW + 30)
    assert Proposal.objects.get(state="superseded").decision == "The model was changed meanwhile."
    found = model_now(model, NOW + 30)
    assert found.manual is not None and (found.manual.by, found.manual.reason) == ("ann", "for the demo")
    assert hold(model).code == "manual" and hold(model).reason.startswith("ann changed it by hand (for the demo)")


def test_an_undecided_proposal_expires_and_the_audit_says_so() -> None:
    model = loaded()
    row = proposal(model, expires_at=moment(NOW - 1))
    tick.look(NOW)
    row.refresh_from_db()
    assert row.state == "expired" and row.decided_by == "planner"
    assert AuditEntry.objects.get(verb="expire_proposal").subject == f"proposal:{row.pk}"


def test_advice_lasts_as_long_as_it_is_given() -> None:
    loaded(Level.ADVISE)
    tick.look(NOW)
    first = Proposal.objects.get()
    tick.look(NOW + 30)
    assert Proposal.objects.get().expires_at == first.expires_at + timedelta(seconds=30)
    assert first.operation is None


def test_at_level_automatic_the_planner_acts_under_its_own_name() -> None:
    model = loaded(Level.AUTOMATIC)
    tick.look(NOW)
    row = Proposal.objects.get()
    assert row.state == "approved" and row.decided_by == "planner"
    operation = row.operation
    assert operation is not None and (operation.verb, operation.actor) == ("rebalance", "planner")
    assert operation.after["pools"]["prefill"] == row.sizes["prefill"]
    assert operation.reason.startswith(f"proposal {row.pk}: ")
    assert [each.verb for each in operation.audit.order_by("pk")] == ["rebalance", "approve_proposal"]
    tick.look(NOW + 60)
    assert Proposal.objects.count() == 1 and hold(model).code == "operation", "one at a time"


def test_what_cannot_be_carried_out_stays_open_and_says_why() -> None:
    model = loaded(Level.AUTOMATIC)
    models.Model.objects.filter(pk=model.pk).update(frozen_until=timezone.now() + timedelta(days=1))
    row = proposal(model)
    assert tick.act() == 0
    row.refresh_from_db()
    assert row.state == "open" and "frozen until" in row.hindrance


@pytest.mark.parametrize("guard", ["freezes", "stale"])
def test_an_older_proposal_is_not_carried_out_while_its_model_is_left_alone(guard: str) -> None:
    model = loaded()
    tick.look(NOW)
    row = Proposal.objects.get()
    setting = planned(model, Level.AUTOMATIC)
    if guard == "freezes":
        setting.guards = {"freezes": [{"since_s": 0, "until_s": 86400, "daily": True, "why": "sale"}]}
        setting.save()
    tick.look(NOW + (60 if guard == "freezes" else 300))
    row.refresh_from_db()
    assert row.state == "open" and row.hindrance == hold(model).reason
    assert hold(model).code == guard.removesuffix("s")
    setting.guards = {}
    setting.save()
    tick.look(NOW + 60)
    row.refresh_from_db()
    assert row.state == "approved" and not row.hindrance


def test_what_came_is_shown_beside_what_was_predicted() -> None:
    model = fleet("disaggregated", prefill=1, decode=2)
    planned(model)
    row = proposal(model)
    operation = actions.approve_proposal(ANN, row.pk)
    assert outcomes.settle() == 0, "it still runs"
    models.Engine.objects.filter(id="m-3").update(role="prefill")
    done()
    Operation.objects.filter(pk=operation.pk).update(finished_at=moment(NOW - 1200))
    assert outcomes.settle() == 1 and outcomes.measure() == 0, "nothing was measured yet"
    traffic(NOW, 1.0)
    side = {"ttft_ms": {"p99": 400.0}, "itl_ms": {"p99": 20.0}, "requests": 900, "gaps": []}
    Operation.objects.filter(pk=operation.pk).update(measured={"span_s": 900.0, "before": side, "after": side})
    assert outcomes.measure() == 1
    row.refresh_from_db()
    assert row.state == "executed" and row.actual["ttft_p99_ms"] == 400.0 and row.actual["requests"] == 900
    expected = row.actual["expected"]
    assert expected["rate"] == pytest.approx(1.0) and expected["gpus"] == 3 and expected["ttft_p99_ms"] > 0
    assert outcomes.measure() == 0
    assert selectors.accuracy_of(model).proposals == 1 and selectors.accuracy_of(model).ttft is None, "three at least"
    for _ in range(2):
        proposal(model, state="executed", actual={"ttft_p99_ms": 400.0, "itl_p99_ms": 20.0, "expected": None})
    found = selectors.accuracy_of(model)
    assert found.proposals == 3 and found.ttft == pytest.approx(0.25, abs=0.8) and found.itl is not None


def test_an_operation_that_fails_fails_its_proposal() -> None:
    model = fleet("disaggregated", prefill=1, decode=2)
    planned(model)
    row = proposal(model)
    operation = actions.approve_proposal(ANN, row.pk)
    Operation.objects.filter(pk=operation.pk).update(state="failed", outcome="m-3 did not drain")
    assert outcomes.settle() == 1
    row.refresh_from_db()
    assert row.state == "failed" and "m-3 did not drain" in row.hindrance


def test_gpus_of_a_lower_priority_are_proposed_with_both_forecasts_and_given_back() -> None:
    poor = fleet("disaggregated", "m", prefill=1, decode=1)
    rich = fleet("disaggregated", "n", prefill=3, decode=3)
    models.Model.objects.update(slo_itl_ms=200.0)
    settled()
    planned(poor, priority=5, guards={"moves_per_hour": 10})
    planned(rich, guards={"moves_per_hour": 10, "give_up": False})
    traffic(NOW, 1.6, model="m", prompt=1500, output=100, ttft_ms=9000.0)
    traffic(NOW, 0.02, model="n", prompt=500, output=50)
    tick.look(NOW)
    row = Proposal.objects.filter(model=poor).first()
    assert row is not None, [(each.model.name, each.code, each.reason) for each in PlannerHold.objects.all()]
    assert row.cause == "trade" and row.giver == rich and row.trade["takes"][0]["giver"] == "n"
    assert row.trade["giver_now"]["gpus"] == 6 and row.trade["giver_then"]["gpus"] < 6
    assert list(selectors.proposals_of(rich)) == [row]
    operation = actions.approve_proposal(ANN, row.pk)
    partner = Operation.objects.get(pk=operation.after["partner"])
    assert (operation.model, partner.model) == (poor, rich) and operation.after["proposal"] == partner.after["proposal"]
    done()
    outcomes.settle()
    lent = model_now(rich, NOW)
    assert lent.manual is None, "it was the planner's"
    taken = row.trade["takes"][0]["engines"]
    home = {pool.role: pool.desired_engines for pool in rich.pools.all()}
    assert sum(home.values()) == 6 - taken
    assert [each.proposal for each in tick.fleet_now(NOW).lent] == [str(row.pk)]
    back = dict(row.trade["takes"][0], proposal=str(row.pk))
    give = proposal(
        poor, key="back", cause="give_back", giver=rich, trade={"gives_back": [back]}, sizes={"prefill": 1, "decode": 1}
    )
    actions.approve_proposal(ANN, give.pk)
    done()
    outcomes.settle()
    row.refresh_from_db()
    assert row.returned and not tick.fleet_now(NOW).lent
    assert sum(pool.desired_engines for pool in rich.pools.all()) == 6


def test_an_automatic_model_takes_nothing_unasked_from_one_that_is_not() -> None:
    poor, rich = fleet("disaggregated", "m", prefill=1, decode=1), fleet("disaggregated", "n", prefill=1, decode=2)
    planned(poor, Level.AUTOMATIC)
    planned(rich, Level.APPROVE)
    lent = {"proposal": "", "giver": "n", "taker": "m", "role": "decode", "engines": 1, "at_s": NOW}
    row = proposal(poor, giver=rich, trade={"takes": [lent]}, sizes={"prefill": 1, "decode": 2})
    assert tick.act() == 0
    row.refresh_from_db()
    assert row.hindrance.startswith("n is not planned automatically")
    planned(rich, Level.AUTOMATIC)
    assert tick.act() == 1


@pytest.mark.parametrize("broken", ["kind", "histogram", "guards"])
def test_a_model_that_cannot_be_read_hinders_no_other(broken: str) -> None:
    loaded()
    other = fleet("disaggregated", "n", prefill=2, decode=2)
    settled()
    planned(other, priority=-5)
    traffic(NOW, 1.0, model="n")
    if broken == "kind":
        models.Gpu.objects.filter(reservation__rank__engine__model=other).update(kind="abacus")
    elif broken == "guards":
        planned(other, guards={"cooldown_s": "soon"})
    else:
        with connection.cursor() as cursor:
            cursor.execute("UPDATE telemetry_model_minute SET ttft_ms = 'x' WHERE model = 'n'")
    tick.look(NOW)
    assert hold(other).code == "no_hardware" and hold(other).reason.startswith("It cannot be planned for: ")
    assert Proposal.objects.get().model.name == "m"


def test_what_a_canary_changed_is_not_by_hand() -> None:
    model = fleet("disaggregated", prefill=1, decode=2)
    actions.rebalance(Actor.system("canary"), "m", {"prefill": 2, "decode": 1})
    assert model_now(model, NOW).manual is None
    Operation.objects.filter(verb="rebalance").update(actor="ann")
    assert model_now(model, NOW).manual is not None


def test_schedules_windows_and_freezes_reach_the_planner() -> None:
    model = loaded(rate=1.0)
    second = NOW % 86_400
    near = {"since_s": max(0.0, second - 60), "until_s": min(86_400.0, second + 600), "daily": True}
    planned(model, ceilings={"decode": 4}, guards={"slots": [near]}, peaks=[{**near, "rate": 6.0, "why": "the morning"}])
    until = timezone.now() + timedelta(hours=1)
    models.Model.objects.filter(pk=model.pk).update(frozen_until=until, frozen_reason="audit")
    seen = model_now(models.Model.objects.get(pk=model.pk), NOW)
    assert [(each.why, each.rate) for each in seen.peaks] == [("the morning", 6.0)]
    assert [each.daily for each in seen.guards.slots] == [True] and [each.why for each in seen.guards.freezes] == ["audit"]
    assert [pool.ceiling for pool in seen.pools] == [None, 4]
    tick.look(NOW)
    assert hold(model).code == "freeze" and hold(model).inputs["peak"] == "the morning"


def test_a_killed_look_is_made_up_for_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded()

    def die(*_: Any) -> None:
        raise SystemExit

    with monkeypatch.context() as dying:
        dying.setattr(tick, "act", die)
        with pytest.raises(SystemExit):
            tick.look(NOW)
    tick.look(NOW + 30)
    assert Proposal.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_only_one_process_looks_at_a_time() -> None:
    fleet("disaggregated", prefill=1, decode=1)
    with lease("planner", "another", 60.0) as theirs:
        assert theirs
        tick.Planner().run()
        assert not PlannerHold.objects.exists()
    tick.Planner().run()
    assert hold(models.Model.objects.get()).code == "empty"
