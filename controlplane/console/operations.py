"""Operations: the list with its filters in the address, and one with its steps."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from django.contrib.auth.decorators import login_required
from django.db.models import Q
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from controlplane.access.who import actor_of
from controlplane.console.history import signed_in
from controlplane.console.live_state import snapshot
from controlplane.console.modules import module_files
from controlplane.console.permissions import refusals
from controlplane.control.actions.steering import UNDOABLE
from controlplane.core.lifecycle import OPERATION
from controlplane.fleet import models
from controlplane.telemetry.fleet_view import read_operations, read_steps
from controlplane.telemetry.queries.models import model_series
from controlplane.telemetry.queries.windows import MAX_SPAN_S, Window
from controlplane.telemetry.recent import lost_between
from controlplane.telemetry.topics import operation_topic

PAGE = 50
STEERING = ("pause", "resume", "cancel", "rollback")
FILTERS = ("model", "verb", "state", "actor")
MARGIN_S = 60.0
"""Shown of the time before an operation began and after it ended."""


@require_safe
@never_cache
@login_required
def operations(request: HttpRequest) -> HttpResponse:
    """?model=&verb=&state=&actor=&before=: the newest that match, PAGE at a time."""
    asked = {name: request.GET.get(name, "")[:150].replace("\x00", "") for name in FILTERS}
    before = request.GET.get("before", "")
    which = Q(pk__lt=int(before)) if before.isascii() and before.isdigit() and len(before) < 19 else Q()
    rows = read_operations(which & _matching(asked), PAGE + 1)
    teams = dict(models.Model.objects.values_list("name", "team"))
    actor = actor_of(request)
    first = {
        "now": time.time(),
        "rows": [asdict(row) for row in rows[:PAGE]],
        "more": len(rows) > PAGE,
        "newest": not before,
        "asked": asked,
        "choices": _choices(list(teams)),
        "undoable": sorted(UNDOABLE),
        "refused": {name: refusals(actor, ("rollback",), team, name) for name, team in teams.items()},
    }
    return render(request, "console/operations.html", {"first": first, "modules": module_files("operations")})


def _matching(asked: dict[str, str]) -> Q:
    fields = {"model": "model__name", "verb": "verb", "state": "state", "actor": "actor"}
    return Q(**{fields[name]: value for name, value in asked.items() if value})


def _choices(names: list[str]) -> dict[str, list[str]]:
    rows = models.Operation.objects.order_by()
    return {
        "model": names,
        "verb": sorted(rows.values_list("verb", flat=True).distinct()),
        "state": list(OPERATION),
        "actor": sorted(rows.values_list("actor", flat=True).distinct()),
    }


@require_safe
@never_cache
@login_required
def operation(request: HttpRequest, number: int) -> HttpResponse:
    """One operation: what it changes, its steps live, and afterwards what it brought."""
    row = get_object_or_404(models.Operation.objects.select_related("model"), pk=number)
    owned = (row.model.team, row.model.name) if row.model else ()
    first = {
        "now": time.time(),
        "refused": refusals(actor_of(request), STEERING, *owned),
        "undoable": sorted(UNDOABLE),
        **operation_facts(row),
    }
    return render(
        request,
        "console/operation.html",
        {"first": first, "number": number, "row": row, "modules": module_files("operation")},
    )


def operation_facts(row: models.Operation) -> dict[str, Any]:
    """An operation for a page's data block: its live frame, and what does not change while it runs."""
    return {
        "number": row.pk,
        "frame": _frame(row),
        "before": row.before,
        "after": row.after,
        "measured": row.measured,
        "undone_by": row.undone_by.values_list("pk", flat=True).first(),
        "audit": [
            {"at": entry.at.timestamp(), "actor": entry.actor, "verb": entry.verb, "reason": entry.reason}
            for entry in models.AuditEntry.objects.filter(operation=row).order_by("pk")
        ],
    }


def _frame(row: models.Operation) -> dict[str, Any]:
    """The topic's newest state; of an operation that ended long ago its rows as the database has them."""
    live = snapshot(operation_topic(row.pk))
    if live is not None and any(each["type"] == "operation" for each in live["rows"]):
        return live
    labels = {engine.id: engine.label for engine in models.Engine.objects.filter(model=row.model)} if row.model else {}
    steps = read_steps(Q(pk=row.pk), labels).get(row.pk, ())
    rows = [*map(asdict, read_operations(Q(pk=row.pk))), *map(asdict, steps)]
    if row.model and row.finished_at:
        started, ended = row.created_at.timestamp(), row.finished_at.timestamp()
        lost = lost_between(row.model.name, started, ended)
        rows.append({"id": f"traffic:{row.pk}", "type": "traffic", "requests": None, "lost": lost, "since": started})
    return {"topic": operation_topic(row.pk), "kind": "snapshot", "seq": None, "at": time.time(), "rows": rows}


@require_safe
@never_cache
@signed_in
def rows(request: HttpRequest, number: int) -> JsonResponse:
    """The page's data anew, for one that lost the live topic."""
    row = get_object_or_404(models.Operation.objects.select_related("model"), pk=number)
    return JsonResponse({"now": time.time(), **operation_facts(row)})


@require_safe
@never_cache
@signed_in
def history(request: HttpRequest, number: int) -> JsonResponse:
    """How the model's latencies went from a minute before the operation to a minute after it."""
    row = get_object_or_404(models.Operation.objects.select_related("model"), pk=number)
    if row.model is None:
        return JsonResponse({"cell_s": 0, "starts": [], "ttft_p99": [], "itl_p99": []})
    now = time.time()
    until = min(row.finished_at.timestamp() + MARGIN_S, now) if row.finished_at else now
    since = max(row.created_at.timestamp() - MARGIN_S, until - MAX_SPAN_S)
    found = model_series(row.model.name, Window(since, until, now))
    ttft, itl = found.ttft.p99, found.itl.p99
    return JsonResponse({"cell_s": ttft.step_s, "starts": ttft.starts, "ttft_p99": ttft.values, "itl_p99": itl.values})
