"""The page of join tokens: made and revoked by plain forms. A token is in the answer to its form alone."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.debug import sensitive_post_parameters

from controlplane.access.who import actor_of
from controlplane.common.jointoken import BadToken, join_url
from controlplane.console.account import form, opened
from controlplane.console.forms import JoinTokenForm
from controlplane.console.permissions import why_not
from controlplane.console.proving import proved
from controlplane.control import actions
from controlplane.control.auditing.events import note_secret
from controlplane.control.joined import state_of, token_text
from controlplane.control.refused import Refused
from controlplane.fleet.models import JoinToken

SHOWN = 100


def show(request: HttpRequest, status: int = 200, **more: Any) -> HttpResponse:
    """The page, with what just happened in `more`."""
    now = timezone.now()
    rows = JoinToken.objects.select_related("node")[:SHOWN]
    context = {
        "rows": [{"token": row, "state": state_of(row, now)} for row in rows],
        "refused": why_not(actor_of(request), "add_join_token"),
        "form": JoinTokenForm(request.POST) if "node" in request.POST else JoinTokenForm(),
    }
    return render(request, "console/joining.html", {**context, **more}, status=status)


page, posted = opened(show), form(show)


@sensitive_post_parameters()
@posted
@proved
def add(request: HttpRequest) -> HttpResponse:
    asked = JoinTokenForm(request.POST)
    if not asked.is_valid():
        return show(request, 400, form=asked)
    given, actor = asked.cleaned_data, actor_of(request)
    try:
        join_url("redis://valkey:6379/0", given["address"])
    except BadToken as error:
        raise Refused("invalid", str(error)) from error
    _, row, _ = actions.add_join_token(actor, given["node"], hours=given["hours"], reason=given["reason"])
    note_secret(actor.name, f"node:{given['node']}")
    return show(request, new_token=token_text(row, given["address"]), new_node=given["node"], form=JoinTokenForm())


@posted
def revoke(request: HttpRequest, number: int) -> HttpResponse:
    actions.revoke_join_token(actor_of(request), number)
    return redirect("join_tokens")
