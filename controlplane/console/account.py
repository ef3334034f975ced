"""The page of one's own account: password, second factor, sessions and tokens of the API. Plain forms; what is secret is in
the one answer to the form that made it, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_safe

from controlplane.access import accounts, factors, scopes, sessions, tokens
from controlplane.access.sealing import BadSeal
from controlplane.access.who import actor_of
from controlplane.console.forms import OwnPasswordForm, TokenForm
from controlplane.console.proving import proved, proved_beside_code
from controlplane.console.signin import MAX_CODE, refused_code, setting_up
from controlplane.control.auditing.events import note_refusal, note_wrong_code
from controlplane.control.refused import STATUS_OF_KIND, Refused, told

SETTING_UP = "factor_secret"
View = Callable[..., HttpResponse]


def form(show: View) -> Callable[[View], View]:
    """A form that somebody who is signed in has sent. What is refused comes back as the page (`show`) with the reasons; so
    does who comes to its address without a form, by signing in or by choosing another language."""

    def decorate(view: View) -> View:
        @require_http_methods(["GET", "HEAD", "POST"])
        @never_cache
        @login_required
        @wraps(view)
        def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if request.method != "POST":
                return show(request)
            try:
                return view(request, *args, **kwargs)
            except Refused as refused:
                told.note(refused)
                match = request.resolver_match
                note_refusal(request.user.get_username(), refused, f"POST {match.route if match else ''}", kwargs)
                return show(request, status=STATUS_OF_KIND[refused.kind], problems=list(refused.reasons))

        return checked

    return decorate


def opened(show: View) -> View:
    """The page itself, for who is signed in."""
    return require_safe(never_cache(login_required(show)))


def show(request: HttpRequest, status: int = 200, **more: Any) -> HttpResponse:
    """The page, with what just happened in `more`."""
    user = _user(request)
    has = factors.has_factor(user)
    context = {
        "teams": sorted(actor_of(request).teams),
        "has_password": user.has_usable_password(),
        "factor": has,
        "factor_required": factors.required(user),
        "codes_left": factors.codes_left(user) if has else 0,
        "tokens": tokens.tokens_of(user.get_username()),
        "scopes": scopes.SCOPES,
        "password_form": OwnPasswordForm(user),
        "token_form": TokenForm(),
    }
    return render(request, "console/account.html", {**context, **more}, status=status)


page, posted = opened(show), form(show)


@sensitive_post_parameters()
@posted
def password(request: HttpRequest) -> HttpResponse:
    """A new password for oneself; the other sessions end."""
    user = _user(request)
    asked = OwnPasswordForm(user, request.POST, request=request)
    if not asked.is_valid():
        return show(request, 400, password_form=asked)
    accounts.change_own_password(user, asked.cleaned_data["new_password1"])
    update_session_auth_hash(request, user)
    return show(request, done=gettext("The password is changed. You are signed out everywhere else."))


@sensitive_post_parameters()
@posted
@proved
def factor(request: HttpRequest) -> HttpResponse:
    """Set up a second factor: without a code a new secret is shown, with one it is taken."""
    user, typed = _user(request), request.POST.get("code", "")[:MAX_CODE]
    if factors.has_factor(user):
        raise Refused("invalid", gettext("There is a second factor already: remove it first."))
    secret = request.session.get(SETTING_UP) if typed else None
    if not secret:
        secret = request.session[SETTING_UP] = factors.new_secret()
    try:
        codes = factors.enrol(user, secret, typed) if typed else None
        if codes is None:
            wrong = {"problem": gettext("That code is wrong. Check that the phone's clock is right.")} if typed else {}
            context = {**setting_up(user, secret), **wrong}
            return render(request, "console/factor.html", context, status=400 if typed else 200)
    except BadSeal:
        del request.session[SETTING_UP]
        return redirect("account")
    del request.session[SETTING_UP]
    _with_factor(request)
    return render(request, "console/codes.html", {"codes": codes, "next": ""})


@sensitive_post_parameters()
@posted
@proved_beside_code
def codes(request: HttpRequest) -> HttpResponse:
    """New recovery codes, for a code."""
    refused = _ask_code(request)
    if refused is not None:
        return refused
    return render(request, "console/codes.html", {"codes": factors.renew_codes(_user(request)), "next": ""})


@sensitive_post_parameters()
@posted
@proved_beside_code
def remove_factor(request: HttpRequest) -> HttpResponse:
    """Do without a second factor, for a code, where it is not required."""
    user = _user(request)
    if factors.required(user):
        raise Refused("forbidden", gettext("Your role needs a second factor. An admin can reset it."))
    refused = _ask_code(request)
    if refused is not None:
        return refused
    factors.remove(actor_of(request), user)
    return show(request, done=gettext("The second factor is removed."))


@posted
def end_sessions(request: HttpRequest) -> HttpResponse:
    """Sign out everywhere else."""
    user = _user(request)
    ended = accounts.end_own_sessions(user, but=request.session.session_key)
    return show(request, done=gettext("Other sessions that ended: %(count)d.") % {"count": ended})


@sensitive_post_parameters()
@posted
@proved
def add_token(request: HttpRequest) -> HttpResponse:
    """A token of one's own, shown in this answer alone."""
    asked = TokenForm(request.POST)
    if not asked.is_valid():
        return show(request, 400, token_form=asked)
    given = asked.cleaned_data
    name = _user(request).get_username()
    actor = actor_of(request)
    _, token = tokens.add_token(actor, name, given["name"], days=given["days"], scopes=given["scopes"])
    return show(request, new_token=token, new_token_name=given["name"])


@posted
def revoke_token(request: HttpRequest, name: str) -> HttpResponse:
    tokens.revoke_token(actor_of(request), _user(request).get_username(), name)
    return redirect("account")


def _ask_code(request: HttpRequest) -> HttpResponse | None:
    """None for a right code, else the page that says what was wrong."""
    user = _user(request)
    checked = factors.check(user, request.POST.get("code", "")[:MAX_CODE])
    if checked.ok:
        return None
    note_wrong_code(user.get_username(), request)
    return refused_code(request, "console/code.html", {"name": user.get_username(), "back": True}, checked)


def _with_factor(request: HttpRequest) -> None:
    """This session has shown the second factor: it goes on under a new key."""
    request.session.cycle_key()
    request.session[sessions.FACTOR] = True


def _user(request: HttpRequest) -> User:
    user = request.user
    assert isinstance(user, User)
    return user
