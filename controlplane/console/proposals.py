"""Proposals of the planner: the list with its filters in the address, one with all that it was made from, and decisions."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from django.contrib.auth.decorators import login_required
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, render
from django.utils.translation import gettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from controlplane.access.who import actor_of
from controlplane.console.acts import Act, BadBody, Body, change, order, sizes_of
from controlplane.console.data import answer, data, fresh
from controlplane.console.history import signed_in
from controlplane.console.live_state import snapshot
from controlplane.console.modules import module_files
from controlplane.console.permissions import refusals
from controlplane.control import actions
from controlplane.control.models import Proposal, ProposalState
from controlplane.control.planning import live, selectors
from controlplane.control.planning.gather import setting_of
from controlplane.control.planning.plain import plain
from controlplane.fleet import models
from controlplane.telemetry.queries.exports import Cell, Table, utc_or_none
from controlplane.telemetry.rows import ProposalRow
from controlplane.telemetry.topics import PROPOSALS

PAGE = 50
MOST = 10_000
"""Proposals of one file."""
FILTERS = ("model", "state")
DECISIONS = ("approve_proposal", "modify_proposal", "reject_proposal")
COLUMNS = {
    "number": "",
    "model": "",
    "giver": "",
    "state": "",
    "level": "",
    "cause": "",
    "title": "",
    "moves": "engines",
    "reason": "",
    "ttft_p99_present": "ms",
    "ttft_p99_predicted": "ms",
    "itl_p99_present": "ms",
    "itl_p99_predicted": "ms",
    "created_at": "UTC",
    "expires_at": "UTC",
    "decided_at": "UTC",
    "decided_by": "",
    "decision": "",
    "operation": "",
}
FIGURES = {
    "ttft_p99_ms": "ms",
    "itl_p99_ms": "ms",
    "attained": "share",
    "busy": "share",
    "strain": "",
    "gpus": "GPUs",
    "cost_per_hour": "US$/h",
    "cost_per_million_tokens": "US$",
}
"""Of a layout, with their units (core.planner.Estimate)."""


@require_safe
@never_cache
@login_required
def page(request: HttpRequest) -> HttpResponse:
    """?model=&state=&before=<number>: those that are open, then the newest that match, PAGE at a time."""
    asked = _asked(request)
    before = request.GET.get("before", "")
    older = Q(pk__lt=int(before)) if before.isascii() and before.isdigit() and len(before) < 19 else Q()
    matching = _matching(asked)
    ended = live.rows(matching.filter(older).exclude(state=ProposalState.OPEN), PAGE + 1)
    open_now = () if before else live.rows(matching.filter(state=ProposalState.OPEN))
    teams = dict(models.Model.objects.values_list("name", "team"))
    actor = actor_of(request)
    first = {
        "now": time.time(),
        "frame": snapshot(PROPOSALS),
        "rows": [asdict(row) for row in (*open_now, *ended[:PAGE])],
        "more": len(ended) > PAGE,
        "newest": not before,
        "asked": asked,
        "choices": {"model": list(teams), "state": list(ProposalState.values)},
        "planners": [stance(model) for model in models.Model.objects.filter(retiring=False)],
        "refused": {name: refusals(actor, DECISIONS, team, name) for name, team in teams.items()},
    }
    return render(request, "console/proposals.html", {"first": first, "modules": module_files("proposals")})


@fresh
def planners(request: HttpRequest) -> HttpResponse:
    """How the planner stands to each model, anew; `?format=csv` or `json` to take away."""
    found = [stance(model) for model in models.Model.objects.filter(retiring=False)]
    return answer(request, "planners", lambda: {"planners": found}, lambda: _stances(found))


def stance(model: models.Model) -> dict[str, Any]:
    """How the planner stands to one model, in short: its level, why it holds, how far its predictions were off."""
    found = selectors.planner_of(model)
    hold = found.hold
    return {
        "model": model.name,
        "level": found.setting.level,
        "priority": found.setting.priority,
        "proposal": found.proposal.pk if found.proposal else None,
        "hold": {
            "code": hold.code,
            "reason": hold.reason,
            "since": hold.since.timestamp(),
            "seen_at": hold.seen_at.timestamp(),
        }
        if hold
        else None,
        "accuracy": plain(found.accuracy),
    }


@require_safe
@never_cache
@login_required
def proposal(request: HttpRequest, number: int) -> HttpResponse:
    """One: what it changes, why, from which figures, what else was looked at, and what came of it."""
    row = get_object_or_404(selectors.all_proposals(), pk=number)
    first = {"now": time.time(), "frame": snapshot(PROPOSALS), **facts_of(row, request)}
    return render(request, "console/proposal.html", {"first": first, "number": number, "modules": module_files("proposal")})


@require_safe
@never_cache
@signed_in
def facts(request: HttpRequest, number: int) -> JsonResponse:
    """The page's data anew."""
    return JsonResponse({"now": time.time(), **facts_of(get_object_or_404(selectors.all_proposals(), pk=number), request)})


def facts_of(row: Proposal, request: HttpRequest) -> dict[str, Any]:
    """A proposal for a page's data block, as the API tells it, with its model as it is now."""
    model = row.model
    return {
        "row": asdict(live.row_of(row)),
        "proposal": {
            name: getattr(row, name)
            for name in (
                *("before", "pools", "reasons", "alternatives", "inputs", "present", "predicted", "trade"),
                *("modified", "actual", "returned"),
            )
        },
        "model": {
            "name": model.name,
            "mode": model.mode,
            "slo": {"ttft_ms": model.slo_ttft_ms, "itl_ms": model.slo_itl_ms},
            "level": setting_of(model).level,
        },
        "operation": row.operation.state if row.operation else "",
        "accuracy": plain(selectors.accuracy_of(model)),
        "refused": refusals(actor_of(request), DECISIONS, model.team, model.name),
    }


DECIDE: dict[str, Act] = {"approve": actions.approve_proposal, "reject": actions.reject_proposal}


@order
def decide(request: HttpRequest, body: Body, number: int, verb: str) -> HttpResponseBase:
    """{"reason", "dry_run"}: approve it as it is, or reject it."""
    return change(request, body, DECIDE[verb], number)


@order
def modify(request: HttpRequest, body: Body, number: int) -> HttpResponseBase:
    """{"sizes": {role: engines}, "mode", "reason", "dry_run"}: carry out that instead."""
    mode = body.get("mode", "")
    if not isinstance(mode, str):
        raise BadBody(gettext("mode: a text"))
    return change(request, body, actions.modify_proposal, number, sizes_of(body.get("sizes")), mode=mode[:40])


@data
def rows(request: HttpRequest) -> HttpResponse:
    """As the page's list; `?format=csv` or `json`: MOST at most, as a file."""
    limit = MOST if request.GET.get("format") else PAGE
    found = live.rows(_matching(_asked(request)), limit)
    return answer(request, "proposals", lambda: [asdict(row) for row in found], lambda: _table(found))


@data
def alternatives(request: HttpRequest, number: int) -> HttpResponse:
    """The layouts that were looked at for one proposal: the present, the proposed, the others."""
    row = get_object_or_404(Proposal, pk=number)
    shown = [
        {"what": "present", "mode": row.mode_before, "pools": row.before, "estimate": row.present, "why_not": ""},
        {"what": "proposed", "mode": row.mode, "pools": row.pools, "estimate": row.predicted, "why_not": ""},
        *({"what": "other", **each} for each in row.alternatives),
    ]
    return answer(request, f"proposal-{number}", lambda: shown, lambda: _layouts(shown))


def _asked(request: HttpRequest) -> dict[str, str]:
    return {name: request.GET.get(name, "")[:128].replace("\x00", "") for name in FILTERS}


def _matching(asked: dict[str, str]) -> QuerySet[Proposal]:
    """A model's are those that take GPUs from it, too."""
    which = Q(state=asked["state"]) if asked["state"] else Q()
    if asked["model"]:
        which &= Q(model__name=asked["model"]) | Q(giver__name=asked["model"])
    return selectors.all_proposals().filter(which)


def _table(found: Iterable[ProposalRow]) -> Table:
    lines = []
    for row in found:
        pairs: dict[str, Cell] = {
            "ttft_p99_present": row.ttft_p99_ms[0],
            "ttft_p99_predicted": row.ttft_p99_ms[1],
            "itl_p99_present": row.itl_p99_ms[0],
            "itl_p99_predicted": row.itl_p99_ms[1],
        }
        pairs |= {name: utc_or_none(getattr(row, name)) for name, unit in COLUMNS.items() if unit == "UTC"}
        lines.append([pairs[name] if name in pairs else getattr(row, name) for name in COLUMNS])
    return Table(list(COLUMNS), list(COLUMNS.values()), lines)


def _stances(found: Iterable[dict[str, Any]]) -> Table:
    lines: list[list[Cell]] = [
        [
            *(each[name] for name in ("model", "level", "priority", "proposal")),
            *((each["hold"] or {}).get(name) for name in ("code", "reason")),
            *(utc_or_none((each["hold"] or {}).get(name)) for name in ("since", "seen_at")),
        ]
        for each in found
    ]
    columns = ["model", "level", "priority", "proposal", "hold", "hold_reason", "hold_since", "hold_seen_at"]
    return Table(columns, ["", "", "", "", "", "", "UTC", "UTC"], lines)


def _layouts(shown: Iterable[dict[str, Any]]) -> Table:
    lines = [
        [each["what"], each["mode"], _layout(each["pools"]), *map(each["estimate"].get, FIGURES), each["why_not"]]
        for each in shown
    ]
    return Table(["what", "mode", "layout", *FIGURES, "why_not"], ["", "", "", *FIGURES.values(), ""], lines)


def _layout(pools: Iterable[dict[str, Any]]) -> str:
    return " + ".join(f"{each['role']} {each['engines']}xTP{each['tensor_parallel']}@{each['gpu']}" for each in pools)
