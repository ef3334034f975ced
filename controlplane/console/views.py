"""The console's pages. Each view parses, calls one thing and shapes the answer."""

from __future__ import annotations

import time

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from controlplane.console.live_state import snapshot
from controlplane.console.modules import module_files


@require_safe
@never_cache
def healthz(_request: HttpRequest) -> HttpResponse:
    """200 as soon as the process can answer. Needs no database, no broker and no login."""
    return HttpResponse("ok\n", content_type="text/plain")


@require_safe
@never_cache
@login_required
def fleet(request: HttpRequest) -> HttpResponse:
    """The fleet page with the newest rows in it, so that the first paint has real numbers."""
    first = {"now": time.time(), "frame": snapshot("fleet")}
    return render(request, "console/fleet.html", {"first": first, "modules": module_files("fleet")})
