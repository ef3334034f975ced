"""How people come in: name and password or a provider, then a code where their account needs one."""

from __future__ import annotations

from typing import Any

import segno
from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.auth.views import LoginView
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from controlplane.access import factors, pending, sessions
from controlplane.access.sealing import BadSeal
from controlplane.config import config
from controlplane.console.forms import LoginForm
from controlplane.control.auditing.events import note_wrong_code

MAX_CODE = 40


class Login(LoginView):
    template_name = "console/login.html"
    authentication_form = LoginForm
    redirect_authenticated_user = True

    def form_valid(self, form: Any) -> HttpResponseRedirect:
        return proceed(self.request, form.get_user(), self.get_success_url())

    def get_context_data(self, **more: Any) -> dict[str, Any]:
        return super().get_context_data(provider=provider(), **more)


def provider() -> str:
    """What the button of the OpenID provider says; "" without one."""
    return config().oidc_name if config().oidc_issuer else ""


def proceed(request: HttpRequest, user: User, next_page: str, *, factor: bool = False) -> HttpResponseRedirect:
    """On from a right password or a provider's word: signed in, or to the page that asks for a code. `factor`: the provider
    has asked for a second one."""
    if not factor and (factors.has_factor(user) or factors.required(user)):
        pending.put(request, user, next_page)
        return redirect("login_code")
    sessions.begin(request, user, factor=factor)
    return HttpResponseRedirect(next_page)


def page_after(request: HttpRequest, wanted: str) -> str:
    """An address of ours, or the first page."""
    ours = url_has_allowed_host_and_scheme(wanted, {request.get_host()}, request.is_secure())
    return wanted if ours else reverse(settings.LOGIN_REDIRECT_URL)


def locked_out(request: HttpRequest, _original: Any, _credentials: Any) -> HttpResponse:
    """What django-axes answers after too many wrong passwords: the login page with the reason and how long it lasts."""
    reason = gettext("Too many wrong passwords. Signing in with this name from here is locked for %(minutes)d minutes.")
    context = {
        "form": LoginForm(request),
        "locked": reason % {"minutes": round(settings.AXES_COOLOFF_TIME * 60)},
        "provider": provider(),
    }
    answer = render(request, "console/login.html", context, status=429)
    answer.headers["Retry-After"] = str(round(settings.AXES_COOLOFF_TIME * 3600))
    return answer


@never_cache
@sensitive_post_parameters("code")
@require_http_methods(["GET", "HEAD", "POST"])
def code(request: HttpRequest) -> HttpResponse:
    """Asks whoever is half in for a code; or shows who must have a second factor and has none how to set one up."""
    found = pending.get(request)
    if found is None:
        return redirect("login")
    user, kept = found
    typed = request.POST.get("code", "")[:MAX_CODE]
    if kept["secret"]:
        return _set_up(request, user, kept, typed)
    context: dict[str, Any] = {"name": user.get_username()}
    if request.method == "POST":
        checked = factors.check(user, typed)
        if checked.ok:
            pending.drop(request)
            sessions.begin(request, user, factor=True)
            return HttpResponseRedirect(kept["next"])
        note_wrong_code(user.get_username(), request)
        return refused_code(request, "console/code.html", context, checked)
    return render(request, "console/code.html", context)


def refused_code(request: HttpRequest, template: str, context: dict[str, Any], checked: factors.Checked) -> HttpResponse:
    """The page again with what was wrong: 429 with how long to wait, else 400."""
    if checked.wait_s:
        wait = gettext("Too many wrong codes. Try again in %(seconds)d seconds.") % {"seconds": checked.wait_s}
        answer = render(request, template, {**context, "problem": wait}, status=429)
        answer.headers["Retry-After"] = str(checked.wait_s)
        return answer
    problem = gettext("This second factor cannot be read any more. An admin must reset it.")
    if not checked.broken:
        problem = gettext("That code is wrong, or was used already.")
    return render(request, template, {**context, "problem": problem}, status=400)


def _set_up(request: HttpRequest, user: User, kept: dict[str, Any], typed: str) -> HttpResponse:
    try:
        codes = factors.enrol(user, kept["secret"], typed) if request.method == "POST" else None
    except BadSeal:
        return redirect("login")
    if codes is None:
        wrong = request.method == "POST"
        context = {**setting_up(user, kept["secret"]), "forced": True}
        return render(request, "console/factor.html", {**context, **_wrong(wrong)}, status=400 if wrong else 200)
    pending.drop(request)
    sessions.begin(request, user, factor=True)
    return render(request, "console/codes.html", {"codes": codes, "next": kept["next"]})


def setting_up(user: User, secret: str) -> dict[str, str]:
    """What the page shows of a secret that is to be a second factor. Raises BadSeal."""
    picture = segno.make(factors.address_of(user, secret), error="m")
    svg = picture.svg_inline(scale=5, border=4, svgclass="qr", lineclass=None, omitsize=True)
    return {"qr": svg, "secret": factors.shown_secret(secret)}


def _wrong(wrong: bool) -> dict[str, str]:
    return {"problem": gettext("That code is wrong. Check that the phone's clock is right.")} if wrong else {}
