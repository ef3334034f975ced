"""The page of grants: models that single users may change as owners of its team may. Given and taken back by plain forms;
everybody who is signed in may look."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext

from controlplane.access.who import actor_of
from controlplane.console.account import form, opened
from controlplane.console.forms import GrantForm
from controlplane.console.permissions import why_not
from controlplane.control import actions
from controlplane.core.storable import storable_text
from controlplane.fleet.models import Grant, Model

SHOWN = 500
NAMES = 1000
"""Of models and users, offered while one types."""


def show(request: HttpRequest, status: int = 200, **more: Any) -> HttpResponse:
    """The page (?model=: of one model), with what just happened in `more`."""
    refused = why_not(actor_of(request), "grant_model")
    asked = request.GET.get("model", "")[:128].replace("\x00", "")
    found = Grant.objects.select_related("model", "user").order_by("model__name", "user__username")
    rows = list((found.filter(model__name=asked) if asked else found)[: SHOWN + 1])
    now = timezone.now()
    context = {
        "rows": [{"grant": row, "good": row.is_good(now)} for row in rows[:SHOWN]],
        "more": len(rows) > SHOWN,
        "asked": asked,
        "refused": refused,
        "form": GrantForm(request.POST) if "days" in request.POST else GrantForm(initial={"model": asked}),
        "names": {} if refused else _names(),
    }
    return render(request, "console/grants.html", {**context, **more}, status=status)


def _names() -> dict[str, list[str]]:
    users = User.objects.filter(is_active=True).order_by("username")
    return {
        "models": list(Model.objects.order_by("name").values_list("name", flat=True)[:NAMES]),
        "users": list(users.values_list("username", flat=True)[:NAMES]),
    }


page, posted = opened(show), form(show)


@posted
def give(request: HttpRequest) -> HttpResponse:
    """For some days, or until a time: that is how what was taken back is given again."""
    asked = GrantForm(request.POST)
    if not asked.is_valid():
        return show(request, 400, form=asked)
    given = asked.cleaned_data
    until: datetime | None = given["until"]
    if given["days"] is not None:
        until = timezone.now() + timedelta(days=given["days"])
    actions.grant_model(actor_of(request), given["model"], given["user"], until=until, reason=given["reason"])
    done = gettext("%(user)s may change %(model)s now.") % given
    return show(request, done=done, form=GrantForm())


@posted
def take(request: HttpRequest) -> HttpResponse:
    """Take one back; the page offers to give it again as it was."""
    name, user = request.POST.get("model", "")[:256], request.POST.get("user", "")[:150]
    actor = actor_of(request)
    row = Grant.objects.filter(model__name=storable_text(name), user__username=storable_text(user)).first()
    actions.ungrant_model(actor, name, user, reason=request.POST.get("reason", "")[:500])
    taken = gettext("%(user)s may change %(model)s no more by a grant.") % {"user": user, "model": name}
    if row is None or not row.is_good(timezone.now()):
        return show(request, done=taken, form=GrantForm())
    again = {"model": name, "user": user, "until": row.until}
    return show(request, taken=taken, again=again, form=GrantForm())
