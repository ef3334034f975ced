"""Asks who is signed in to show anew that it is they, before they make what outlives their session: tokens, keys, second
factors. Whoever has only stolen the session knows neither password nor code.

The form that was sent is kept in the page that asks, and carried out by the same answer that proves: nothing is typed twice.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.auth import authenticate
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext

from controlplane.access import factors, sessions
from controlplane.console.signin import MAX_CODE, refused_code
from controlplane.control.auditing.events import note_wrong_code

PASSWORD, CODE = "proof_password", "proof_code"
OWN = frozenset({PASSWORD, CODE, "csrfmiddlewaretoken"})
View = Callable[..., HttpResponse]


def proved(view: View) -> View:
    """Of a form by somebody who is signed in (`account.form`): carried out once they have proved lately who they are."""
    return _checked(view, asks_code=False)


def proved_beside_code(view: View) -> View:
    """The same of a view that checks a code of the second factor itself (`code`): none is asked beside it."""
    return _checked(view, asks_code=True)


def _checked(view: View, asks_code: bool) -> View:
    @wraps(view)
    def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not sessions.proved_lately(request.session):
            refused = _ask(request, asks_code and "code" in request.POST)
            if refused is not None:
                return refused
        return view(request, *args, **kwargs)

    return checked


def _ask(request: HttpRequest, has_own_code: bool) -> HttpResponse | None:
    """None once it is proved, or if only the code is wanted that the view checks, else the page that asks."""
    user = request.user
    assert isinstance(user, User)
    wants_password, has = user.has_usable_password(), factors.has_factor(user)
    wants_code = has and not has_own_code
    context: dict[str, Any] = {
        "name": user.get_username(),
        "wants_password": wants_password,
        "wants_code": wants_code,
        "kept": [(name, value) for name, values in request.POST.lists() if name not in OWN for value in values],
    }
    if not (wants_password or has):
        return render(request, "console/proof.html", {**context, "stuck": True}, status=403)
    if PASSWORD not in request.POST and CODE not in request.POST:
        if not (wants_password or wants_code):
            return None  # the form's own code is the proof
        return render(request, "console/proof.html", context, status=403)
    if wants_password and not _knows_password(request, user):
        problem = gettext("The present password is another one.")
        return render(request, "console/proof.html", {**context, "problem": problem}, status=403)
    if wants_code:
        shown = factors.check(user, request.POST.get(CODE, "")[:MAX_CODE])
        if not shown.ok:
            note_wrong_code(user.get_username(), request)
            return refused_code(request, "console/proof.html", context, shown)
    sessions.prove(request.session)
    return None


def _knows_password(request: HttpRequest, user: User) -> bool:
    """Wrong ones count as wrong passwords at the door do."""
    typed = request.POST.get(PASSWORD, "")
    return authenticate(request, username=user.get_username(), password=typed) is not None
