"""Tokens with which programs use the REST API: made and revoked, each with operation and audit entry. Everybody has their
own; an admin has everybody's.

A token itself is in nobody's hands but its user's: the row has its digest, operation and audit have neither.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone
from knox.models import get_token_model

from controlplane.access import scopes as known_scopes
from controlplane.control.actions import forbid, record_change
from controlplane.control.actor import Actor
from controlplane.control.refused import Refused, refuse_all
from controlplane.core.storable import storable_text
from controlplane.fleet import models

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
MAX_DAYS = 3650
MAX_TOKENS = 50
"""Of one user."""
USE_NOTED_EVERY = timedelta(minutes=5)


def add_token(
    actor: Actor,
    username: str,
    name: str,
    *,
    days: int | None,
    scopes: Collection[str] = known_scopes.SCOPES,
    reason: str = "",
) -> tuple[models.Operation, str]:
    """Let a program in as this user. Returns the operation and the token, which nobody can read again. `days` None: it does
    not expire."""
    _forbid(actor, "add_token", username)
    if not NAME.fullmatch(name):
        raise Refused("invalid", f"token name {name!r:.80}: letters, digits, '.', '_' and '-', at most 63")
    if days is not None and not 1 <= days <= MAX_DAYS:
        raise Refused("invalid", f"days: 1 to {MAX_DAYS}; leave it out for a token that does not expire")
    refuse_all("invalid", known_scopes.problems(scopes))
    kept = [scope for scope in known_scopes.SCOPES if scope in scopes]
    with transaction.atomic():
        user = user_named(username, lock=True)
        if _tokens().filter(user=user).count() >= MAX_TOKENS:
            raise Refused("invalid", f"{username} has {MAX_TOKENS} tokens: revoke some first")
        try:
            with transaction.atomic():
                lasts = timedelta(days=days) if days else None
                _, token = _tokens().create(user, lasts, name=name, scopes=kept)
        except IntegrityError as error:
            raise Refused("invalid", f"{username} has a token {name} already: choose another name, or revoke it") from error
        after = {"user": username, "days": days, "scopes": kept}
        return record_change("add_token", actor, reason, f"token:{username}/{name}", after=after, done=True), str(token)


def revoke_token(actor: Actor, username: str, name: str, *, reason: str = "") -> models.Operation:
    """Let nobody in with this token any more."""
    _forbid(actor, "revoke_token", username)
    with transaction.atomic():
        own = _tokens().filter(user=user_named(username))
        removed, _ = own.filter(name=storable_text(name)).delete()
        if not removed:
            known = ", ".join(own.values_list("name", flat=True)[:20])
            raise Refused("not_found", f"{username} has no token {name!r:.80}; tokens: {known or 'none'}")
        return record_change("revoke_token", actor, reason, f"token:{username}/{name}", done=True)


def tokens_of(username: str) -> list[Any]:
    """Rows of those that are good still, by name."""
    good = Q(expiry=None) | Q(expiry__gt=timezone.now())
    return list(_tokens().filter(good, user__username=username).order_by("name"))


def note_use(token: Any, now: datetime) -> None:
    """Remember that a token was used, to some minutes: not every request writes."""
    if token.used_at is None or now - token.used_at >= USE_NOTED_EVERY:
        _tokens().filter(pk=token.pk).update(used_at=now)


def user_named(username: str, *, lock: bool = False) -> User:
    """Raises Refused."""
    rows = User.objects.select_for_update() if lock else User.objects.all()
    user = rows.filter(username=storable_text(username)).first()
    if user is None:
        raise Refused("not_found", f"there is no user {username!r:.80}")
    return user


def _forbid(actor: Actor, verb: str, username: str) -> None:
    if actor.name != username:
        forbid(actor, verb)


def _tokens() -> Any:
    return get_token_model().objects
