"""Models that are given to single users: they may do with them what an owner of the model's team may, for a time or until
it is taken back."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from controlplane.control.actions.change import begin, record_change
from controlplane.control.actor import Actor
from controlplane.control.refused import Refused
from controlplane.core.storable import storable_text
from controlplane.fleet import models

MAX_GRANTS = 200
"""Of one model; more people are a team."""
MAX_DAYS = 3650


def grant_model(
    actor: Actor,
    name: str,
    username: str,
    *,
    until: datetime | None = None,
    reason: str = "",
    expected_version: int | None = None,
) -> models.Operation:
    """Let a user do with a model what an owner may, until then (None: until it is taken back). Again is no mistake: what is
    said last holds."""
    now = timezone.now()
    if until is not None and not now < until <= now + timedelta(days=MAX_DAYS):
        raise Refused("invalid", f"until: a time to come within {MAX_DAYS} days, not {until:%Y-%m-%d %H:%M}")
    with transaction.atomic():
        model = begin(actor, "grant_model", name, reason=reason, expected_version=expected_version).model
        user = User.objects.filter(username=storable_text(username)).first()
        if user is None:
            raise Refused("not_found", f"there is no user {username!r:.80}")
        others = model.grants.exclude(user=user)
        others.exclude(models.good_grants(now)).delete()
        if others.count() >= MAX_GRANTS:
            raise Refused("invalid", f"{name} is given to {MAX_GRANTS} users: give it to a team instead")
        was = model.grants.filter(user=user).first()
        after = {"user": username, "until": _told(until)}
        operation = record_change(
            "grant_model",
            actor,
            reason,
            f"model:{name}",
            before={"user": username, "until": _told(was.until)} if was else {},
            after=after,
            done=True,
        )
        given = {"until": until, "created_at": now, "given_by": operation.actor, "reason": operation.reason}
        models.Grant.objects.update_or_create(model=model, user=user, defaults=given)
        return operation


def ungrant_model(
    actor: Actor, name: str, username: str, *, reason: str = "", expected_version: int | None = None
) -> models.Operation:
    """Take that back."""
    with transaction.atomic():
        model = begin(actor, "ungrant_model", name, reason=reason, expected_version=expected_version).model
        row = model.grants.filter(user__username=storable_text(username)).first()
        if row is None:
            raise Refused("not_found", f"{name} was not given to {username!r:.80}")
        row.delete()
        before = {"user": username, "until": _told(row.until)}
        return record_change("ungrant_model", actor, reason, f"model:{name}", before=before, done=True)


def _told(until: datetime | None) -> str | None:
    return until.isoformat(timespec="seconds") if until else None
