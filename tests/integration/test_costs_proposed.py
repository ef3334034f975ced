"""What the planner's open proposals would make of the cost: for the page of costs, the model page and over REST."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from django.test import Client

from controlplane.control.planning.gather import fleet_now
from controlplane.core.gpus import GPUS
from controlplane.fleet.models import GpuPrice
from tests.integration.control_rows import fleet
from tests.integration.planner_rows import planned, proposal
from tests.integration.test_console_changes import signed_in

pytestmark = pytest.mark.django_db


@pytest.fixture
def viewer(db: None) -> Client:
    return signed_in("look", "viewer")


def proposed(client: Client, of: str = "/data/proposed-costs") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get(of).json()["proposals"]
    return found


def test_an_open_proposal_is_priced_now_and_then_and_a_decided_one_is_not(viewer: Client) -> None:
    GpuPrice.objects.create(kind="l4", per_hour="0.80", valid_from="2026-01-01T00:00Z")
    model = fleet("disaggregated", prefill=2, decode=2)
    planned(model)
    row = proposal(model, sizes={"prefill": 2, "decode": 1}, title="2:2 → 2:1")
    (found,) = proposed(viewer)
    assert (found["model"], found["proposal"], found["title"]) == ("m", row.pk, "2:2 → 2:1")
    assert (found["now"], found["then"]) == ({"l4": 4}, {"l4": 3})
    cost = found["cost"]
    assert (cost["now_per_hour"], cost["then_per_hour"]) == pytest.approx((3.2, 2.4))
    assert cost["saved_per_month"] == pytest.approx(0.8 * 730) and cost["per_million_tokens_now"] is None
    assert any("nothing is known per token" in gap for gap in found["gaps"])
    assert proposed(viewer, "/data/models/m/proposed-cost") == [found]
    assert proposed(viewer, "/data/models/other/proposed-cost") == []
    row.state = "rejected"
    row.save()
    assert proposed(viewer, "/data/proposed-costs?again") == []


def test_a_kind_without_a_price_says_so_instead_of_a_sum(viewer: Client) -> None:
    model = fleet("disaggregated", prefill=1, decode=1)
    row = proposal(model)
    row.pools[0]["gpu"] = "h900"
    row.save()
    (found,) = proposed(viewer)
    assert found["cost"] is None and "h900" in found["why_not"] and "price book" in found["why_not"]
    (line,) = csv.DictReader(io.StringIO(viewer.get("/data/proposed-costs?format=csv").content.decode()))
    assert line["now_per_hour (US$)"] == "" and "h900" in line["not_known"]


def test_the_planner_compares_layouts_at_the_prices_of_the_price_book() -> None:
    GpuPrice.objects.create(kind="l4", per_hour="0.31", valid_from="2026-01-01T00:00Z")
    fleet("monolithic", mixed=1)
    prices = fleet_now().prices
    assert prices["l4"] == 0.31 and prices["h100-sxm"] == GPUS["h100-sxm"].price_per_hour


def test_strangers_see_no_cost() -> None:
    assert Client().get("/data/proposed-costs").status_code == 401
