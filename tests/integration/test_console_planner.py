"""What the planner's pages are drawn from, and how their orders are checked; pages in a browser: test_console_proposals."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode

import pytest
from django.test import Client

from controlplane.control.models import Proposal
from controlplane.control.planning.live import live_proposals
from controlplane.fleet import models
from controlplane.telemetry.live_rows import proposals_row
from tests.integration.planner_rows import planned
from tests.integration.proposal_rows import carried_out, rich
from tests.integration.test_console_changes import first, model, ops, post, signed_in, url

__all__ = ["model", "ops"]  # fixtures
pytestmark = pytest.mark.django_db


@pytest.fixture
def number(model: models.Model) -> int:
    planned(model)
    carried_out(model)
    return rich(model).pk


def asked_in_the_bar(client: Client) -> str | None:
    found = re.search(r"data-proposals(?: data-count=\"(\d+)\")?", client.get(url("proposals")).content.decode())
    assert found
    return found[1]


def test_live_topics_tell_of_proposals_in_one_query_and_the_bar_counts_those_that_wait(
    ops: Client, number: int, django_assert_num_queries: Any
) -> None:
    with django_assert_num_queries(1):
        rows = live_proposals()
    assert [(row.number, row.state) for row in rows] == [(number, "open"), (number - 1, "executed")]
    assert (proposals_row(rows).open, proposals_row(rows).asked, asked_in_the_bar(ops)) == (1, 1, "1")
    Proposal.objects.filter(pk=number).update(level="automatic")
    assert (proposals_row(live_proposals()).asked, asked_in_the_bar(ops)) == (0, None)
    Proposal.objects.filter(pk=number).update(hindrance="the other model is not planned automatically")
    assert (proposals_row(live_proposals()).asked, asked_in_the_bar(ops)) == (1, "1")


def test_the_list_has_open_ones_on_its_first_page_alone(ops: Client, number: int) -> None:
    page = first(ops.get(url("proposals")).content.decode())
    assert [row["number"] for row in page["rows"]] == [number, number - 1] and not page["more"]
    older = first(ops.get(url("proposals"), {"before": number}).content.decode())
    assert [row["number"] for row in older["rows"]] == [number - 1] and not older["newest"]
    assert first(ops.get(url("proposals"), {"state": "rejected", "model": "x\x00"}).content.decode())["rows"] == []
    assert page["planners"][0]["accuracy"] == {"proposals": 1, "ttft": None, "itl": None}


@pytest.mark.parametrize(
    ("verb", "body", "why"),
    [
        ("approve_proposal", {}, "Say why"),
        ("modify_proposal", {"sizes": {"prefill": "3"}, "reason": "r"}, "sizes: a number of engines"),
        ("modify_proposal", {"sizes": {"prefill": 1}, "mode": 7, "reason": "r"}, "mode: a text"),
        ("reject_proposal", {"reason": " "}, "Say why"),
    ],
)
def test_what_is_no_order_is_said_and_decides_nothing(
    ops: Client, number: int, verb: str, body: dict[str, Any], why: str
) -> None:
    answer = post(ops, url(verb, number), body)
    assert answer.status_code == 400 and why in answer.json()["reasons"][0]
    assert Proposal.objects.get(pk=number).state == "open"


def test_a_plan_decides_nothing_and_who_may_not_is_told(ops: Client, number: int) -> None:
    plan = post(ops, url("modify_proposal", number), {"sizes": {"prefill": 1, "decode": 3}, "dry_run": True})
    assert plan.status_code == 200 and plan.json()["plan"]["after"]["pools"] == {"prefill": 1, "decode": 3}
    guest = signed_in("guest", "viewer")
    assert post(guest, url("reject_proposal", number), {"reason": "no"}).status_code == 403
    assert first(guest.get(url("proposal", number)).content.decode())["refused"].keys() == {
        *("approve_proposal", "modify_proposal", "reject_proposal")
    }
    assert Proposal.objects.get(pk=number).state == "open"
    assert post(ops, url("reject_proposal", number), {"reason": "no"}).status_code == 202
    late = post(ops, url("approve_proposal", number), {"reason": "yes"})
    assert late.status_code == 412 and "is rejected: no" in late.json()["reasons"][0]
    assert ops.get(url("proposal", number + 99)).status_code == 404


def test_settings_of_another_shape_are_refused_and_an_owner_sets_no_priority(ops: Client, model: models.Model) -> None:
    address = url("set_planner", model.name)
    for wrong in ({"floors": [1]}, {"priority": True}, {"modes": "monolithic"}, {"guards": 7}):
        answer = post(ops, address, {**wrong, "version": model.version, "reason": "r"})
        assert answer.status_code == 400 and "has another shape" in answer.json()["reasons"][0]
    owner = signed_in("ola", "owner", team="search")
    refused = post(owner, address, {"priority": 3, "version": model.version, "reason": "r"})
    assert refused.status_code == 403
    taken = post(owner, address, {"level": "approve", "version": model.version, "reason": "r"})
    assert taken.status_code == 202
    old = post(owner, address, {"level": "off", "version": model.version, "reason": "r"})
    assert old.status_code == 412 and old.json()["kind"] == "stale" and old.json()["model"]["version"] > model.version


def test_advice_leads_to_the_advisor_and_outcomes_are_taken_away(ops: Client, model: models.Model) -> None:
    told = ops.get(url("data_advice", model.name)).json()
    assert told["advisor"] == f"/advisor?{urlencode({'model': model.name})}"
    assert len(told["advice"]["checks"]) == 6 and told["stance"]["level"] == "advise"
    table = ops.get(url("data_planner", model.name), {"format": "json"}).json()
    assert table["rows"] == [] and table["columns"][0]["name"] == "number"
