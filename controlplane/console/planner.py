"""How the planner is set for one model: the form, how it stands, what held it, and how right it was."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.utils.translation import gettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from controlplane.access.who import actor_of
from controlplane.console.acts import BadBody, Body, change, order, version_of
from controlplane.console.data import answer, data
from controlplane.console.live_state import snapshot
from controlplane.console.model_facts import model_facts
from controlplane.console.modules import module_files
from controlplane.console.permissions import refusals
from controlplane.console.proposals import stance
from controlplane.control import actions
from controlplane.control.actions.planning import MAX_PRIORITY, MAX_SPANS, PARTS, RANGES
from controlplane.control.models import Level, Proposal, ProposalState
from controlplane.control.outlook import kinds_of
from controlplane.control.planning import selectors
from controlplane.control.planning.advice import advice_of
from controlplane.control.planning.gather import setting_of
from controlplane.control.planning.plain import plain
from controlplane.core.gpus import GPUS
from controlplane.core.planner import Guards
from controlplane.fleet import models
from controlplane.telemetry.queries.exports import Table, utc_or_none
from controlplane.telemetry.topics import model_topic

VERBS = ("set_planner", "set_priority")
OUTCOMES = 50
"""Newest carried-out proposals that the page lists."""
SHAPES: Mapping[str, type | tuple[type, ...]] = {
    "level": str,
    "priority": int,
    "modes": list,
    "floors": dict,
    "ceilings": dict,
    "kinds": dict,
    "degrees": dict,
    "guards": dict,
    "peaks": list,
}


@require_safe
@never_cache
@login_required
def page(request: HttpRequest, name: str) -> HttpResponse:
    """The form as it is set, beside how the planner stands to the model."""
    model = get_object_or_404(models.Model, name=name)
    first = {
        "now": time.time(),
        "frame": snapshot(model_topic(name)),
        "models": list(models.Model.objects.values_list("name", flat=True)),
        "model": model_facts(model),
        "planner": settings_of(model),
        "stance": stance(model),
        "outcomes": outcomes_of(model),
        "held": [
            {"code": each.code, "reason": each.reason, "since": each.since.timestamp(), "seen_at": each.seen_at.timestamp()}
            for each in selectors.holds_of(model, 20)
        ],
        "choices": {
            "level": list(Level.values),
            "kinds": sorted({*GPUS, *(kind for _, kind in kinds_of(model).values())}),
            "ranges": RANGES,
            "priority": MAX_PRIORITY,
            "spans": MAX_SPANS,
            "defaults": plain(Guards()),
        },
        "refused": refusals(actor_of(request), VERBS, model.team, model.name),
    }
    return render(request, "console/planner.html", {"first": first, "model": model, "modules": module_files("plannerpage")})


def settings_of(model: models.Model) -> dict[str, Any]:
    """What is set for the model; `guards` has only what is set otherwise than by default."""
    setting = setting_of(model)
    return {part: getattr(setting, part) for part in PARTS}


def outcomes_of(model: models.Model) -> list[dict[str, Any]]:
    """Carried-out proposals beside what came, the newest first. `expected`: what the planner's model gives for the load that
    really came; None: not known."""
    rows = Proposal.objects.filter(model=model, state=ProposalState.EXECUTED).exclude(actual={})[:OUTCOMES]
    return [
        {
            "number": row.pk,
            "title": row.title,
            "decided_at": row.decided_at.timestamp() if row.decided_at else None,
            "predicted": _latencies(row.predicted),
            "expected": _latencies(row.actual["expected"]) if row.actual.get("expected") else None,
            "actual": _latencies(row.actual),
            "requests": row.actual.get("requests"),
        }
        for row in rows
    ]


def _latencies(figures: Mapping[str, Any]) -> dict[str, float | None]:
    return {name: figures.get(name) for name in ("ttft_p99_ms", "itl_p99_ms")}


@order
def set_planner(request: HttpRequest, body: Body, name: str) -> HttpResponseBase:
    """{any of PARTS, "version", "reason"}: what is left out stays as it is."""
    wanted = {part: body[part] for part in PARTS if body.get(part) is not None}
    for part, value in wanted.items():
        if not isinstance(value, SHAPES[part]) or isinstance(value, bool):
            raise BadBody(gettext("%(part)s has another shape: read the page again") % {"part": part})
    return change(
        request, body, actions.set_planner, name, actions.PlannerChange(**wanted), expected_version=version_of(body)
    )


@data
def outcomes(request: HttpRequest, name: str) -> HttpResponse:
    """Predicted against actual of a model's carried-out proposals."""
    found = outcomes_of(get_object_or_404(models.Model, name=name))
    return answer(request, f"{name}-planner", lambda: found, lambda: _table(found))


def _table(found: list[dict[str, Any]]) -> Table:
    sides = ("predicted", "expected", "actual")
    columns = [f"{side}_{figure}" for side in sides for figure in ("ttft_p99_ms", "itl_p99_ms")]
    lines = [
        [
            *(each[name] for name in ("number", "title")),
            utc_or_none(each["decided_at"]),
            each["requests"],
            *((each[side] or {}).get(figure) for side in sides for figure in ("ttft_p99_ms", "itl_p99_ms")),
        ]
        for each in found
    ]
    return Table(["number", "title", "decided_at", "requests", *columns], ["", "", "UTC", "", *["ms"] * 6], lines)


@data
def advice(request: HttpRequest, name: str) -> HttpResponse:
    """Whether the model is worth disaggregating, from its own traffic of the last half hour, and how the planner stands to
    it. `advisor`: the advisor's page, filled from this model."""
    model = get_object_or_404(models.Model, name=name)
    given = plain(advice_of(model, time.time()))
    told = {
        "advice": given,
        "stance": stance(model),
        "advisor": f"{reverse('advisor')}?{urlencode({'model': name})}",
        "settings": reverse("planner_settings", args=[name]),
    }
    return answer(request, f"{name}-advice", lambda: told, lambda: _checks(given["checks"]))


CHECKS = ("name", "title", "state", "value", "unit", "threshold", "samples", "window_s", "confidence", "sentence")


def _checks(checks: list[dict[str, Any]]) -> Table:
    units = ["s" if name == "window_s" else "" for name in CHECKS]
    return Table(list(CHECKS), units, [[each[name] for name in CHECKS] for each in checks])
