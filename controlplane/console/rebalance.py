"""The rebalance page: choose a split, see what it would do, start it, follow it."""

from __future__ import annotations

import time
from typing import Any, cast

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from controlplane.access.who import actor_of
from controlplane.console.history import signed_in
from controlplane.console.live_state import snapshot
from controlplane.console.model_facts import model_facts
from controlplane.console.modules import module_files
from controlplane.console.operations import STEERING, operation_facts
from controlplane.console.permissions import refusals
from controlplane.control.actions.steering import UNDOABLE
from controlplane.control.outlook import Basis, layout_text, outlook
from controlplane.core.protocol import ROLES_OF_MODE, Mode
from controlplane.fleet import models
from controlplane.telemetry.topics import model_topic

MAX_SPLITS = 32
MAX_ENGINES = 4096


@require_safe
@never_cache
@login_required
def some_model(request: HttpRequest) -> HttpResponse:
    """To the page of the first model that has two pools to balance, else of the first."""
    found = models.Model.objects.exclude(mode="monolithic").first() or models.Model.objects.first()
    return redirect("rebalance", name=found.name) if found else redirect("fleet")


@require_safe
@never_cache
@login_required
def page(request: HttpRequest, name: str) -> HttpResponse:
    """With the model as it is, the newest live rows and, if one runs, its operation in it."""
    model = get_object_or_404(models.Model, name=name)
    facts = model_facts(model)
    running = models.Operation.objects.select_related("model").filter(pk=facts["running"]).first()
    first = {
        "now": time.time(),
        "model": facts,
        "models": list(models.Model.objects.values_list("name", flat=True)),
        "frame": snapshot(model_topic(name)),
        "operation": operation_facts(running) if running else None,
        "refused": refusals(actor_of(request), ("rebalance", *STEERING), model.team, model.name),
        "undoable": sorted(UNDOABLE),
    }
    return render(request, "console/rebalance.html", {"first": first, "model": model, "modules": module_files("rebalance")})


@require_safe
@never_cache
@signed_in
def facts(request: HttpRequest, name: str) -> JsonResponse:
    """The model as it is now, and what the viewer may not do with it: what a dialog starts from."""
    model = get_object_or_404(models.Model, name=name)
    verbs = (
        "rebalance",
        "set_mode",
        "set_canary",
        "promote_canary",
        "end_canary",
        "drain_engine",
        "undrain_engine",
        "restart_engine",
        "retry_engine",
    )
    return JsonResponse({"model": model_facts(model), "refused": refusals(actor_of(request), verbs, model.team, model.name)})


@require_safe
@never_cache
@signed_in
def forecast(request: HttpRequest, name: str) -> JsonResponse:
    """?mode=disaggregated&split=7:6&split=5:8: {"basis", "splits": {"7:6": {"figures"} | {"refused"} | null}}. null: it is
    being made, ask again. Engines by the roles of the mode, in their order."""
    model = get_object_or_404(models.Model, name=name)
    mode = request.GET.get("mode") or model.mode
    if mode not in ROLES_OF_MODE:
        return JsonResponse({"error": gettext("There is no such mode.")}, status=400)
    roles = ROLES_OF_MODE[cast(Mode, mode)]
    asked = {text: _sizes(text, roles) for text in request.GET.getlist("split")[:MAX_SPLITS]}
    if not all(asked.values()):
        return JsonResponse({"error": gettext("A split names a number of engines for each role of the mode.")}, status=400)
    basis = outlook().basis(model)
    if isinstance(basis, str):
        return JsonResponse({"basis": None, "refused": basis, "splits": {}})
    texts = {text: layout_text(cast(Mode, mode), sizes, basis.kinds) for text, sizes in asked.items() if sizes}
    known = outlook().of(basis.question, texts.values())
    return JsonResponse({"basis": _basis(basis), "splits": {text: known[layout] for text, layout in texts.items()}})


def _sizes(text: str, roles: tuple[str, ...]) -> dict[str, int] | None:
    parts = text.split(":")
    if len(parts) != len(roles) or not all(part.isascii() and part.isdigit() and len(part) < 6 for part in parts):
        return None
    sizes = dict(zip(roles, map(int, parts), strict=True))
    return sizes if 0 < sum(sizes.values()) <= MAX_ENGINES else None


def _basis(basis: Basis) -> dict[str, Any]:
    return {
        "minutes": basis.traffic.minutes,
        "requests": basis.traffic.requests,
        "rate": basis.question.rate,
        "prompt_tokens": basis.question.prompt_tokens,
        "output_tokens": basis.question.output_tokens,
        "length_cv": basis.question.length_cv,
        "prefix_cached": basis.question.prefix_cached,
    }
