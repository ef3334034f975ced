"""The requests page: what may be chosen in its filters. The requests themselves come from `/data/requests`."""

from __future__ import annotations

import time

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from controlplane.console.modules import module_files
from controlplane.console.requests_data import CLOSED
from controlplane.fleet import models


@require_safe
@never_cache
@login_required
def page(request: HttpRequest) -> HttpResponse:
    """Its address is the filter, as requests_data.filter_of reads it, with `open=` (a request's id) and `order=`."""
    engines = models.Engine.objects.select_related("model").only("id", "role", "number", "model__name")
    keys = models.InferenceKey.objects.values_list("team", flat=True)
    first = {
        "now": time.time(),
        "choices": {
            "model": list(models.Model.objects.values_list("name", flat=True)),
            "team": sorted({*models.Team.objects.values_list("name", flat=True), *keys}),
            **CLOSED,
        },
        "engines": [[engine.id, engine.label, engine.role, engine.model.name] for engine in engines],
    }
    return render(request, "console/requests.html", {"first": first, "modules": module_files("requests")})
