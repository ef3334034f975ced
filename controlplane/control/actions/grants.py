"""Models that are given to single users: they may do with them what an owner of the model's team may."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.db import transaction

from controlplane.control.actions.change import begin, record_change
from controlplane.control.actor import Actor
from controlplane.control.refused import Refused
from controlplane.core.storable import storable_text
from controlplane.fleet import models

MAX_GRANTS = 200
"""Of one model; more people are a team."""


def grant_model(
    actor: Actor, name: str, username: str, *, reason: str = "", expected_version: int | None = None
) -> models.Operation:
    """Let a user do with a model what an owner may. Again is no mistake."""
    with transaction.atomic():
        model = begin(actor, "grant_model", name, reason=reason, expected_version=expected_version).model
        user = User.objects.filter(username=storable_text(username)).first()
        if user is None:
            raise Refused("not_found", f"there is no user {username!r:.80}")
        if model.grants.count() >= MAX_GRANTS:
            raise Refused("invalid", f"{name} is given to {MAX_GRANTS} users: give it to a team instead")
        models.Grant.objects.get_or_create(model=model, user=user)
        return record_change("grant_model", actor, reason, f"model:{name}", after={"user": username}, done=True)


def ungrant_model(
    actor: Actor, name: str, username: str, *, reason: str = "", expected_version: int | None = None
) -> models.Operation:
    """Take that back."""
    with transaction.atomic():
        model = begin(actor, "ungrant_model", name, reason=reason, expected_version=expected_version).model
        removed, _ = model.grants.filter(user__username=storable_text(username)).delete()
        if not removed:
            raise Refused("not_found", f"{name} was not given to {username!r:.80}")
        return record_change("ungrant_model", actor, reason, f"model:{name}", before={"user": username}, done=True)
