"""The page of inference keys: made, rotated and revoked by plain forms. A key is in the answer to its form alone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.debug import sensitive_post_parameters

from controlplane.access.who import actor_of
from controlplane.console.account import form, opened
from controlplane.console.forms import KeyForm
from controlplane.console.permissions import why_not
from controlplane.console.proving import proved
from controlplane.control import keys
from controlplane.control.actor import Actor
from controlplane.control.newkey import ALL_MODELS, NewKey
from controlplane.telemetry.queries.uses import digests_of, last_use, last_uses

MAX_REASON = 500


def show(request: HttpRequest, status: int = 200, **more: Any) -> HttpResponse:
    """The page, with what just happened in `more`."""
    actor, now = actor_of(request), timezone.now()
    rows = list(keys.keys_seen_by(actor))
    uses = last_uses(digests_of(rows), now.timestamp())
    teams = sorted(actor.teams) if actor.role == "owner" else []
    context = {
        "rows": [_row(actor, row, now, last_use(row, uses)) for row in rows],
        "add_refused": why_not(actor, "add_key", teams[0] if teams else ""),
        "form": KeyForm(request.POST) if "team" in request.POST else _empty(request),
        "overlap_hours": 24,
    }
    return render(request, "console/keys.html", {**context, **more}, status=status)


def _empty(request: HttpRequest) -> KeyForm:
    teams = sorted(actor_of(request).teams)
    return KeyForm(initial={"team": teams[0] if teams else ""})


def _row(actor: Actor, row: Any, now: datetime, used_at: float | None) -> dict[str, Any]:
    return {
        "key": row,
        "state": keys.state_of(row, now),
        "models": ", ".join(row.model_names),
        "former_until": keys.former_until(row, now),
        "used_at": datetime.fromtimestamp(used_at, UTC) if used_at else None,
        "refused": why_not(actor, "rotate_key", row.team),
    }


page, posted = opened(show), form(show)


@sensitive_post_parameters()
@posted
@proved
def add(request: HttpRequest) -> HttpResponse:
    asked = KeyForm(request.POST)
    if not asked.is_valid():
        return show(request, 400, form=asked)
    given = asked.cleaned_data
    new = NewKey(
        name=given["name"],
        team=given["team"],
        model_names=tuple(given["models"].replace(",", " ").split()) or (ALL_MODELS,),
        requests_per_minute=given["requests_per_minute"],
        tokens_per_minute=given["tokens_per_minute"],
        days=given["days"],
    )
    _, secret = keys.add_key(actor_of(request), new, reason=given["reason"])
    return show(request, new_key=secret, new_key_name=new.name, form=_empty(request))


@sensitive_post_parameters()
@posted
@proved
def rotate(request: HttpRequest, name: str) -> HttpResponse:
    hours = request.POST.get("overlap_hours", "")
    overlap = int(hours) if hours.isdecimal() and len(hours) < 6 else -1
    actor = actor_of(request)
    _, secret = keys.rotate_key(actor, name, overlap_hours=overlap, reason=_reason(request))
    return show(request, new_key=secret, new_key_name=name)


@posted
def revoke(request: HttpRequest, name: str) -> HttpResponse:
    keys.revoke_key(actor_of(request), name, reason=_reason(request))
    return redirect("keys")


def _reason(request: HttpRequest) -> str:
    return request.POST.get("reason", "")[:MAX_REASON]
