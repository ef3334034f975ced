"""The page of costs: what a month cost by model, pool, team, key and day, the same as files for finance, and prices."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils.translation import gettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from controlplane.access.who import actor_of
from controlplane.console.acts import BadBody, Body, change, order
from controlplane.console.data import BadQuery, answer, data, fresh
from controlplane.console.modules import module_files
from controlplane.console.permissions import refusals
from controlplane.control import actions
from controlplane.control.whatif import ProposalCost, at_proposals
from controlplane.core.gpus import GPUS
from controlplane.fleet.models import Gpu
from controlplane.telemetry.queries import costs
from controlplane.telemetry.queries.exports import Cell, Table
from controlplane.telemetry.queries.months import month_of
from controlplane.telemetry.queries.prices import prices

TABLES = tuple(costs.TABLES)


@require_safe
@never_cache
@login_required
def page(request: HttpRequest) -> HttpResponse:
    """?month=2026-11: the page asks for the month in the viewer's zone."""
    kinds = {*GPUS, *Gpu.objects.values_list("kind", flat=True).distinct()}
    first = {
        "now": time.time(),
        "month": request.GET.get("month", "")[:7],
        "kinds": sorted(kinds),
        "refusals": refusals(actor_of(request), ("set_price", "remove_price")),
    }
    return render(request, "console/costs.html", {"first": first, "modules": module_files("costs")})


@data
def month(request: HttpRequest) -> HttpResponse:
    """?month=2026-11&zone=Europe/Berlin (without: the present month, UTC); ?by=lines, models, pools or usage for a file."""
    by = request.GET.get("by") or "lines"
    if by not in TABLES:
        raise BadQuery(gettext("A file of costs is by one of: %(offered)s") % {"offered": ", ".join(TABLES)})
    asked = month_of(request.GET.get("month", ""), request.GET.get("zone") or "UTC", time.time())
    found = costs.monthly(asked)
    return answer(request, f"{by}-{found.month}", lambda: found, lambda: costs.table(found, by))


@data
def proposed(request: HttpRequest, name: str = "") -> HttpResponse:
    """What the planner's open proposals, or that for one model, would make of the cost: {"proposals": […]}."""
    found = at_proposals(time.time(), name)
    return answer(request, "proposed-cost", lambda: {"proposals": found}, lambda: _proposed_table(found))


COSTS = ("now_per_hour", "then_per_hour", "saved_per_hour", "saved_per_month")
TOKENS = ("per_million_tokens_now", "per_million_tokens_then")


def _proposed_table(found: list[ProposalCost]) -> Table:
    rows: list[list[Cell]] = [
        [
            each.model,
            each.proposal,
            each.title,
            *(getattr(each.cost, name, None) for name in (*COSTS, *TOKENS)),
            each.why_not,
        ]
        for each in found
    ]
    columns = ["model", "proposal", "title", *COSTS, *TOKENS, "not_known"]
    return Table(columns, ["", "", "", *["US$"] * 6, ""], rows)


@fresh
def book(request: HttpRequest) -> HttpResponse:
    """The price book as {"prices": [...]}; `?format=csv` or `json` to take away."""
    found = [row.document() for row in prices()]
    return answer(request, "prices", lambda: {"prices": found}, lambda: _price_table(found))


PRICE_COLUMNS = {
    "kind": "",
    "per_hour": "US$",
    "terms": "",
    "valid_from": "UTC",
    "valid_until": "UTC",
    "guess": "",
    "gpus": "GPUs",
}


def _price_table(found: list[dict[str, Any]]) -> Table:
    lines: list[list[Cell]] = [[row[name] for name in PRICE_COLUMNS] for row in found]
    return Table(list(PRICE_COLUMNS), list(PRICE_COLUMNS.values()), lines)


@order
def set_price(request: HttpRequest, body: Body) -> HttpResponseBase:
    """{"kind", "per_hour": "2.60", "terms": owned|hourly, "valid_from": "2026-12-01T00:00Z" or "", "reason"}."""
    texts = {name: body.get(name, "") for name in ("kind", "per_hour", "terms", "valid_from")}
    if not all(isinstance(each, str) for each in texts.values()):
        raise BadBody(gettext("kind, per_hour, terms and valid_from are texts"))
    since = _moment(texts["valid_from"]) if texts["valid_from"] else None
    return change(
        request,
        body,
        actions.set_price,
        texts["kind"].strip()[:60],
        texts["per_hour"].strip()[:40],
        terms=texts["terms"][:20],
        valid_from=since,
    )


@order
def remove_price(request: HttpRequest, body: Body, number: int) -> HttpResponseBase:
    """{"reason"}: take a price out of the book."""
    return change(request, body, actions.remove_price, number)


def _moment(text: Any) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadBody(gettext("A time is written like 2026-11-30T12:00Z.")) from error
    return at if at.tzinfo else at.replace(tzinfo=UTC)
