"""Signing in with the OpenID provider, as pages. `access.oidc` decides who is believed."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from controlplane.access import oidc
from controlplane.config import config
from controlplane.console import signin
from controlplane.console.forms import LoginForm
from controlplane.control.auditing.events import note_bad_identity

UNAVAILABLE = frozenset({"away"})


@never_cache
@require_POST
def start(request: HttpRequest) -> HttpResponse:
    """Off to the provider. A POST, so that no other site signs people in."""
    _offered()
    next_page = signin.page_after(request, request.POST.get("next", ""))
    try:
        return oidc.start(request, request.build_absolute_uri(reverse("login_provider_back")), next_page)
    except oidc.NotBelieved as error:
        return _refused(request, error)


@never_cache
@require_safe
def back(request: HttpRequest) -> HttpResponse:
    """Where the provider sends people to with a code."""
    _offered()
    try:
        found, wanted = oidc.finish(request)
        user = oidc.account_of(found, config().oidc_issuer)
    except oidc.NotBelieved as error:
        note_bad_identity(request, error.why)
        return _refused(request, error)
    return signin.proceed(request, user, signin.page_after(request, wanted), factor=found.factor)


def _offered() -> None:
    if not config().oidc_issuer:
        raise Http404


def _refused(request: HttpRequest, error: oidc.NotBelieved) -> HttpResponse:
    words = {
        "away": gettext("The provider does not answer. Try again soon."),
        "state": gettext("That took too long, or was begun in another window. Try again."),
        "role": gettext("None of your groups gives you a role here. Ask an admin."),
        "inactive": gettext("This account is switched off. Ask an admin."),
        "taken": gettext("There is another account of your name here. An admin can link it to you."),
        "name": gettext("The provider told no name that can be used here. Ask an admin."),
    }
    problem = words.get(error.why, gettext("The provider's answer was not believed. Ask an admin."))
    context = {"form": LoginForm(request), "problem": problem, "provider": signin.provider()}
    return render(request, "console/login.html", context, status=503 if error.why in UNAVAILABLE else 403)
