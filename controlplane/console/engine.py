"""The engine page: what it is, how it is, what was done with it, whom it hands KV to, and the end of its log."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.utils.translation import gettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from controlplane.access.who import actor_of
from controlplane.console.engine_facts import engine_facts
from controlplane.console.engine_log import MAX_LINES, LogAway, reader
from controlplane.console.history import signed_in
from controlplane.console.live_state import snapshot
from controlplane.console.modules import module_files
from controlplane.console.permissions import refusals, why_not
from controlplane.fleet import models
from controlplane.telemetry.topics import model_topic

VERBS = ("drain_engine", "undrain_engine", "restart_engine", "retry_engine", "engine_log")


@require_safe
@never_cache
@login_required
def page(request: HttpRequest, engine_id: str) -> HttpResponse:
    """With the engine as its rows have it, its model's newest live rows, and what the viewer may not do."""
    row = _engine(engine_id)
    first = {
        "now": time.time(),
        "engine": engine_facts(row),
        "frame": snapshot(model_topic(row.model.name)),
        "refused": refusals(actor_of(request), VERBS, row.model.team, row.model.name),
    }
    return render(request, "console/engine.html", {"first": first, "row": row, "modules": module_files("enginepage")})


@require_safe
@never_cache
@signed_in
def rows(request: HttpRequest, engine_id: str) -> JsonResponse:
    """The facts anew, for a page that saw the engine change."""
    return JsonResponse({"now": time.time(), "engine": engine_facts(_engine(engine_id))})


@require_safe
@never_cache
@signed_in
def log(request: HttpRequest, engine_id: str) -> JsonResponse:
    """?lines=200&rank=0&seen=<stamp>: the end of the log, or {"same": true} if it is as `seen`. 403 says who may read it,
    503 why it cannot be had now."""
    row = _engine(engine_id)
    if refusal := why_not(actor_of(request), "engine_log", row.model.team, row.model.name):
        return JsonResponse({"error": refusal}, status=403)
    rank = row.ranks.select_related("node").filter(index=_number(request, "rank", 0)).first()
    if rank is None:
        return JsonResponse({"error": gettext("It has no place on a node now.")}, status=404)
    if rank.node.lost:
        words = gettext("Node %(node)s is lost: its agent cannot be asked.") % {"node": rank.node.name}
        return JsonResponse({"error": words}, status=503)
    try:
        tail = reader.tail(rank.node.name, row.id, rank.index, _number(request, "lines", MAX_LINES))
    except LogAway as error:
        return JsonResponse({"error": str(error)}, status=503)
    if tail.stamp == request.GET.get("seen"):
        return JsonResponse({"same": True})
    return JsonResponse({"node": rank.node.name, **asdict(tail)})


def _engine(engine_id: str) -> models.Engine:
    known = models.Engine.objects.select_related("model")
    return get_object_or_404(known, id=engine_id.replace("\x00", ""))


def _number(request: HttpRequest, name: str, default: int) -> int:
    text: Any = request.GET.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else default
