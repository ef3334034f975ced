"""The console's pages. Each view parses, calls one thing and shapes the answer."""

from __future__ import annotations

import time
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.contrib.auth.views import LoginView
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from controlplane.console.forms import LoginForm
from controlplane.console.live_state import snapshot
from controlplane.console.modules import module_files


class Login(LoginView):
    template_name = "console/login.html"
    authentication_form = LoginForm
    redirect_authenticated_user = True


def locked_out(request: HttpRequest, _original: Any, _credentials: Any) -> HttpResponse:
    """What django-axes answers after too many wrong passwords: the login page with the reason and how long it lasts."""
    reason = gettext("Too many wrong passwords. Signing in with this name from here is locked for %(minutes)d minutes.")
    context = {"form": LoginForm(request), "locked": reason % {"minutes": round(settings.AXES_COOLOFF_TIME * 60)}}
    return render(request, "console/login.html", context, status=429)


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
