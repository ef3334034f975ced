"""The page of one model: what its requests saw, how its pools worked, what moved between them."""

from __future__ import annotations

import time

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from controlplane.access.who import actor_of
from controlplane.console.live_state import snapshot
from controlplane.console.model_facts import model_facts
from controlplane.console.modules import module_files
from controlplane.console.permissions import refusals
from controlplane.fleet import models
from controlplane.telemetry.topics import model_topic

VERBS = ("rebalance", "set_mode", "set_canary", "promote_canary", "end_canary")


@require_safe
@never_cache
@login_required
def some_model(request: HttpRequest) -> HttpResponse:
    """To the page of the first model; without one to the fleet page, which says how to add it."""
    found = models.Model.objects.first()
    return redirect("model", name=found.name) if found else redirect("fleet")


@require_safe
@never_cache
@login_required
def page(request: HttpRequest, name: str) -> HttpResponse:
    """With the model as it is and its newest live rows; charts and figures come from `/data/models/…`."""
    model = get_object_or_404(models.Model, name=name)
    first = {
        "now": time.time(),
        "model": model_facts(model),
        "models": list(models.Model.objects.values_list("name", flat=True)),
        "frame": snapshot(model_topic(name)),
        "refused": refusals(actor_of(request), VERBS, model.team, model.name),
    }
    return render(request, "console/model.html", {"first": first, "model": model, "modules": module_files("model")})
