"""What people decide on proposals, and how they set the planner: by action, command line and REST API."""

from __future__ import annotations

import json
import time
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from controlplane.control import actions
from controlplane.control.actions import PlannerChange
from controlplane.control.actor import Actor
from controlplane.control.models import Level, PlannerHold, PlannerSetting, Proposal
from controlplane.control.planning import keep
from controlplane.control.planning.advice import advice_of
from controlplane.control.planning.gather import model_now
from controlplane.core.planner import Hold
from controlplane.core.proposals import Review, Void
from controlplane.fleet import models
from controlplane.fleet.models import AuditEntry
from tests.console_web import Web
from tests.integration.api_kit import Client, one_model, problem, shared_web, token_of
from tests.integration.control_kit import ANN
from tests.integration.control_rows import at_once, done, fleet, refusal, sizes, steps
from tests.integration.planner_rows import planned, proposal, traffic

pytestmark = pytest.mark.django_db


@pytest.fixture
def model() -> models.Model:
    row = fleet("disaggregated", prefill=2, decode=2)
    planned(row)
    return row


def test_an_approved_proposal_is_an_operation_like_any_other(model: models.Model) -> None:
    row = proposal(model)
    operation = actions.approve_proposal(ANN, row.pk, reason="looks right")
    assert (operation.verb, operation.actor) == ("rebalance", "ann")
    assert operation.reason == f"proposal {row.pk}: looks right" and operation.after["proposal"] == row.pk
    assert steps(operation) == ["retask prefill"] and sizes() == {"prefill": 3, "decode": 1}
    row.refresh_from_db()
    assert (row.state, row.decided_by, row.decision, row.operation) == ("approved", "ann", "looks right", operation)
    entry = AuditEntry.objects.get(verb="approve_proposal")
    assert (entry.subject, entry.reason, entry.operation) == (f"proposal:{row.pk}", "looks right", operation)
    again = refusal(actions.approve_proposal, ANN, row.pk)
    assert again.kind == "stale" and "is approved" in str(again)


def test_a_mode_that_is_proposed_is_set(model: models.Model) -> None:
    row = proposal(model, mode="monolithic", sizes={"mixed": 4})
    operation = actions.approve_proposal(ANN, row.pk)
    assert operation.verb == "set_mode" and sizes() == {"mixed": 4}


def test_a_proposal_for_what_is_no_more_is_refused(model: models.Model) -> None:
    row = proposal(model)
    actions.rebalance(ANN, "m", {"prefill": 1, "decode": 3})
    busy = refusal(actions.approve_proposal, ANN, row.pk)
    assert busy.kind == "stale" and "has changed since" in str(busy)
    assert Proposal.objects.get().state == "open"


def test_a_proposal_waits_while_another_operation_runs(model: models.Model) -> None:
    row = proposal(model)
    actions.restart_engine(ANN, "m-1")
    assert refusal(actions.approve_proposal, ANN, row.pk).kind == "busy"


def test_a_void_proposal_is_refused(model: models.Model) -> None:
    row = proposal(model, expires_at="2026-01-01T00:00:00Z")
    assert refusal(actions.approve_proposal, ANN, row.pk).kind == "stale"
    assert refusal(actions.approve_proposal, ANN, row.pk + 999).kind == "not_found"


def test_advice_is_not_carried_out(model: models.Model) -> None:
    planned(model, Level.ADVISE)
    assert "only advises for m: set its level to approve" in str(refusal(actions.approve_proposal, ANN, proposal(model).pk))


def test_pools_of_another_shape_are_not_made_by_a_click(model: models.Model) -> None:
    row = proposal(model)
    row.pools[0]["tensor_parallel"] = 2
    row.save()
    assert "register_model NAME --tp 2" in str(refusal(actions.approve_proposal, ANN, row.pk))
    role, kind = row.pools[0]["role"], row.pools[0]["gpu"]
    row.pools[0] |= {"tensor_parallel": row.before[0]["tensor_parallel"], "gpu": "h200-sxm"}
    row.save()
    told = str(refusal(actions.approve_proposal, ANN, row.pk))
    assert f"of kind h200-sxm instead of {kind}: `manage.py update_model m --gpu-kind {role}=h200-sxm`" in told
    assert "`manage.py roll_out m`" in told and "`manage.py rebalance m " in told


def test_what_a_person_makes_of_a_proposal_counts_as_done_by_hand(model: models.Model) -> None:
    row = proposal(model)
    operation = actions.modify_proposal(ANN, row.pk, {"prefill": 1, "decode": 3}, reason="the other way")
    assert sizes() == {"prefill": 1, "decode": 3} and "proposal" not in operation.after
    row.refresh_from_db()
    assert row.state == "approved" and row.sizes == {"prefill": 1, "decode": 3}
    assert row.modified == {"mode": "disaggregated", "pools": {"prefill": 1, "decode": 3}}


def test_a_rejection_needs_a_reason_and_is_kept(model: models.Model) -> None:
    row = proposal(model)
    assert refusal(actions.reject_proposal, ANN, row.pk, reason=" ").kind == "invalid"
    actions.reject_proposal(ANN, row.pk, reason="audit week")
    row.refresh_from_db()
    assert (row.state, row.decided_by, row.decision) == ("rejected", "ann", "audit week")
    assert AuditEntry.objects.get(verb="reject_proposal").reason == "audit week" and sizes() == {"prefill": 2, "decode": 2}


@pytest.mark.django_db(transaction=True)
def test_of_two_who_decide_at_once_the_second_is_told() -> None:
    row = fleet("disaggregated", prefill=2, decode=2)
    planned(row)
    number = proposal(row).pk
    refused = at_once(
        lambda: actions.approve_proposal(ANN, number), lambda: actions.reject_proposal(ANN, number, reason="no")
    )
    assert refused is not None and refused.kind == "stale"
    assert Proposal.objects.get().state == "approved" and sizes() == {"prefill": 3, "decode": 1}


@pytest.mark.django_db(transaction=True)
def test_a_look_and_a_decision_at_once_do_not_wait_for_each_other() -> None:
    row = fleet("disaggregated", prefill=2, decode=2)
    planned(row)
    number = proposal(row).pk
    gone = Review((), (), (Void(number, "superseded", "It keeps its targets."),), (Hold("m", "good", "It keeps."),))
    assert at_once(lambda: actions.approve_proposal(ANN, number), lambda: keep.write(gone, time.time())) is None
    assert Proposal.objects.get().state == "approved" and PlannerHold.objects.get().code == "good"


def test_an_owner_decides_for_the_teams_models_but_takes_no_gpus_from_others(model: models.Model) -> None:
    models.Team.objects.create(name="search")
    models.Model.objects.update(team="search")
    owner = Actor("ola", "owner", frozenset({"search"}))
    fleet("disaggregated", "n", prefill=1, decode=2)
    other = models.Model.objects.get(name="n")
    lent = {"proposal": "", "giver": "n", "taker": "m", "role": "decode", "engines": 1, "at_s": 0.0}
    row = proposal(model, giver=other, trade={"takes": [lent]}, sizes={"prefill": 2, "decode": 3})
    refused = refusal(actions.approve_proposal, owner, row.pk)
    assert refused.kind == "forbidden" and "move_gpus" in str(refused)
    assert refusal(actions.modify_proposal, owner, row.pk, {"decode": 1}).kind == "invalid"
    actions.reject_proposal(owner, row.pk, reason="no")
    actions.approve_proposal(owner, proposal(model).pk)


def test_the_planner_is_set_part_by_part(model: models.Model) -> None:
    before = models.Model.objects.get().version
    night = {"since_s": 79_200.0, "until_s": 21_600.0, "daily": True, "why": "night"}
    change = PlannerChange(
        level="automatic",
        priority=3,
        modes=["monolithic", "disaggregated"],
        floors={"prefill": 2},
        ceilings={"decode": 6},
        guards={"cooldown_s": 300, "slots": [night], "min_samples": None},
        peaks=[{"since_s": 28_800.0, "until_s": 36_000.0, "rate": 9.0, "daily": True}],
    )
    operation = actions.set_planner(ANN, "m", change, reason="ready for it")
    row = PlannerSetting.objects.get()
    assert (row.level, row.priority, row.floors) == ("automatic", 3, {"prefill": 2})
    kept = {"lifetime_s": 86_400.0}
    assert row.guards == kept | {"cooldown_s": 300, "slots": [night]}, "what was set before stays, null takes it back"
    assert operation.before["planner"]["level"] == "approve" and operation.after["planner"]["level"] == "automatic"
    assert models.Model.objects.get().version == before + 1
    actions.set_planner(ANN, "m", PlannerChange(guards={"slots": None}))
    row.refresh_from_db()
    assert row.guards == kept | {"cooldown_s": 300} and row.level == "automatic"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (PlannerChange(level="bold"), "level 'bold': one of off, advise, approve, automatic"),
        (PlannerChange(priority=10**9), "priority: a whole number"),
        (PlannerChange(modes=["quick"]), "mode 'quick'"),
        (PlannerChange(floors={"prefill": 3}, ceilings={"prefill": 2}), "its floor 3 is above its ceiling 2"),
        (PlannerChange(floors={"cook": 1}), "there is no pool 'cook'"),
        (PlannerChange(ceilings={"decode": True}), "pool decode: 1 to"),
        (PlannerChange(kinds={"cook": ["h100-sxm"]}), "kinds: there is no pool 'cook'"),
        (PlannerChange(kinds={"decode": ["abacus"]}), "kinds: pool decode: 'abacus': one of "),
        (PlannerChange(kinds={"decode": "h100-sxm"}), "kinds: pool decode: a list of "),
        (PlannerChange(degrees={"decode": [True]}), "degrees: pool decode: True: one of 1 to"),
        (PlannerChange(degrees={"decode": [10**9]}), "degrees: pool decode: 1000000000: one of 1 to"),
        (PlannerChange(guards={"luck": 1}), "there is no guard 'luck'"),
        (PlannerChange(guards={"moves_per_hour": -1}), "moves_per_hour: 0 to 1000"),
        (PlannerChange(guards={"moves_per_hour": 1.5}), "moves_per_hour"),
        (PlannerChange(guards={"cooldown_s": float("nan")}), "cooldown_s: 0 to"),
        (PlannerChange(guards={"give_up": "yes"}), "give_up: true or false"),
        (PlannerChange(guards={"freezes": [{"since_s": 5.0, "until_s": 1.0}]}), "until_s must be later"),
        (PlannerChange(guards={"freezes": "always"}), "freezes: a list"),
        (PlannerChange(guards={"slots": [{"since_s": "now", "until_s": 1.0}]}), "slots[0].since_s"),
        (PlannerChange(peaks=[{"since_s": 0.0, "until_s": 9.0, "rate": 0.0}]), "rate: more than 0"),
    ],
)
def test_what_cannot_be_set_is_refused_with_the_remedy(model: models.Model, change: PlannerChange, why: str) -> None:
    before = list(PlannerSetting.objects.values())
    refused = refusal(actions.set_planner, ANN, "m", change)
    assert refused.kind == "invalid" and why in str(refused)
    assert list(PlannerSetting.objects.values()) == before


def test_the_command_line_lists_shows_and_decides(model: models.Model) -> None:
    row = proposal(model, alternatives=[{"mode": "monolithic", "pools": [], "why_not": "It is nearer to its limits."}])

    def told(*args: Any, **options: Any) -> list[dict[str, Any]]:
        out = StringIO()
        call_command("proposal", *args, stdout=out, **options)
        return [json.loads(line) for line in out.getvalue().splitlines()]

    assert [each["proposal"] for each in told("list", "--state", "open", "--model", "m")] == [row.pk]
    assert told("list", "--state", "rejected") == []
    assert told("show", row.pk)[0]["reasons"] == ["The split does not suit the traffic."]
    plan = told("approve", row.pk, "--dry-run")[0]
    assert plan and Proposal.objects.get().state == "open"
    assert told("approve", row.pk)[0]["state"] == "pending"
    done()
    second = proposal(models.Model.objects.get(), key="other")
    told("modify", second.pk, "--pool", "prefill=2", "--pool", "decode=2")
    assert sizes() == {"prefill": 2, "decode": 2}
    done()
    third = proposal(models.Model.objects.get(), key="third")
    with pytest.raises(CommandError, match="a rejection needs a reason"):
        told("reject", third.pk)
    assert told("reject", third.pk, "--reason", "no")[0]["state"] == "done"
    for wrong in (("show", 999_999), ("approve",), ("show", 1 << 64)):
        with pytest.raises(CommandError, match="proposal"):
            told(*wrong)


def test_advice_is_made_from_the_models_own_requests(model: models.Model) -> None:
    now = time.time()
    nothing = advice_of(model, now)
    assert nothing.verdict in ("not_enough_data", "no") and nothing.checks[0].samples == 0
    traffic(now, 2.0, prompt=210, output=40, told=20)
    planned(model, Level.OFF)
    found = advice_of(model, now, forecast=True)
    assert found.verdict == "no" and "210 prompt and 40 output tokens" in found.sentence
    checks = {each.name: each for each in found.checks}
    assert checks["short_prompts"].samples and checks["short_prompts"].samples >= 400
    assert checks["gpus"].state == "fail" and {each.mode for each in found.forecasts} == {
        "monolithic",
        "disaggregated",
        "conditional",
    }


@pytest.mark.django_db(transaction=True)
def test_the_api_tells_and_decides(valkey_url: str, django_db_setup: None) -> None:
    web: Web = shared_web()
    row = one_model()
    asked = proposal(row, sizes={"prefill": 3, "decode": 1})
    with Client(web.url, token_of("operator")) as client, Client(web.url, token_of("viewer")) as viewer:
        planner = client.get("models/m/planner").json()
        assert (planner["level"], planner["proposal"], planner["guards"]["moves_per_hour"]) == ("advise", asked.pk, 6)
        assert client.patch("models/m/planner", json={"level": "approve", "guards": {"cooldown_s": 60}}).status_code == 202
        planner = client.get("models/m/planner").json()
        assert (planner["level"], planner["guards"]["cooldown_s"]) == ("approve", 60)
        assert planner["accuracy"] == {"proposals": 0, "ttft": None, "itl": None}
        problem(client.patch("models/m/planner", json={"guards": {"luck": 1}}), 422, "invalid")
        problem(client.patch("models/m/planner", json={"level": "bold"}), 400, "invalid_fields")
        problem(viewer.patch("models/m/planner", json={"level": "off"}), 403, "forbidden")
        listed = viewer.get("proposals", params={"state": "open", "model": "m"}).json()["items"]
        assert [each["id"] for each in listed] == [asked.pk] and listed[0]["sizes"] == {"prefill": 3, "decode": 1}
        assert viewer.get(f"proposals/{asked.pk}").json()["reasons"] == ["The split does not suit the traffic."]
        problem(viewer.get("proposals/999999"), 404, "not_found")
        problem(viewer.post(f"proposals/{asked.pk}/approve", json={}), 403, "forbidden")
        plan = client.post(f"proposals/{asked.pk}/approve", json={}, params={"dry_run": "true"})
        assert plan.status_code == 200 and plan.json()["steps"] and Proposal.objects.get().state == "open"
        for _ in range(2):
            answer = client.post(f"proposals/{asked.pk}/approve", json={}, headers={"idempotency-key": "a"})
            assert answer.status_code == 202 and answer.json()["verb"] == "rebalance"
        problem(client.post(f"proposals/{asked.pk}/reject", json={"reason": "no"}), 412, "stale")
        problem(client.post(f"proposals/{asked.pk}/reject", json={}), 400, "invalid_fields")
        assert client.get("models/m/advice").json()["verdict"] in ("not_enough_data", "no")


def test_the_command_line_sets_the_planner_and_says_why_it_holds(model: models.Model) -> None:
    def told(*args: str) -> dict[str, Any]:
        out = StringIO()
        call_command("planner", "m", *args, stdout=out)
        found: dict[str, Any] = json.loads(out.getvalue())
        return found

    night = '[{"since_s": 79200, "until_s": 21600, "daily": true}]'
    assert (
        told("--level", "automatic", "--floor", "decode=2", "--guard", "cooldown_s=60", "--slots", night)["state"] == "done"
    )
    shown = told()
    assert (shown["level"], shown["floors"], shown["guards"]["cooldown_s"]) == ("automatic", {"decode": 2}, 60)
    assert shown["guards"]["slots"][0]["daily"] is True and shown["hold"] is None and shown["proposal"] is None
    told("--kind", "decode=h100-sxm", "--degree", "decode=2,4", "--degree", "prefill=")
    shown = told()
    assert (shown["kinds"], shown["degrees"]) == ({"decode": ["h100-sxm"]}, {"decode": [2, 4]})
    assert {each.role: (each.kinds, each.degrees) for each in model_now(model, time.time()).pools} == {
        "prefill": ((), ()),
        "decode": (("h100-sxm",), (2, 4)),
    }
    for wrong in (
        ("--degree", "decode=many"),
        ("--guard", "cooldown_s=soon"),
        ("--peaks", "{"),
        ("--slots", "{}"),
        ("--guard", "luck=1"),
    ):
        with pytest.raises(CommandError):
            told(*wrong)
    with pytest.raises(CommandError, match="there is no model"):
        call_command("planner", "none")
