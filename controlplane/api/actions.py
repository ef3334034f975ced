"""Tokens with which programs use the API: made and revoked, each with operation and audit entry.

A token itself is in nobody's hands but its user's: the row has its digest, operation and audit have neither.
"""

from __future__ import annotations

import re
from datetime import timedelta

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction

from controlplane.api.models import ApiToken
from controlplane.control.actions import record_change
from controlplane.control.actor import RANK, Actor
from controlplane.control.refused import Refused
from controlplane.fleet import models

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
MAX_DAYS = 3650


def add_token(actor: Actor, username: str, name: str, *, days: int | None, reason: str = "") -> tuple[models.Operation, str]:
    """Let a program in as this user. Returns the operation and the token, which nobody can read again. `days` None: it does
    not expire."""
    _forbid(actor)
    if not NAME.fullmatch(name):
        raise Refused("invalid", f"token name {name!r:.80}: letters, digits, '.', '_' and '-', at most 63")
    if days is not None and not 1 <= days <= MAX_DAYS:
        raise Refused("invalid", f"days: 1 to {MAX_DAYS}; leave it out for a token that does not expire")
    with transaction.atomic():
        user = _user(username)
        try:
            with transaction.atomic():
                _, token = ApiToken.objects.create(user, timedelta(days=days) if days else None, name=name)
        except IntegrityError as error:
            raise Refused("invalid", f"{username} has a token {name} already: choose another name, or revoke it") from error
        after = {"user": username, "days": days}
        return record_change("add_token", actor, reason, f"token:{username}/{name}", after=after, done=True), token


def revoke_token(actor: Actor, username: str, name: str, *, reason: str = "") -> models.Operation:
    """Let nobody in with this token any more."""
    _forbid(actor)
    with transaction.atomic():
        removed, _ = ApiToken.objects.filter(user=_user(username), name=name).delete()
        if not removed:
            known = ", ".join(ApiToken.objects.filter(user=_user(username)).values_list("name", flat=True)[:20])
            raise Refused("not_found", f"{username} has no token {name!r:.80}; tokens: {known or 'none'}")
        return record_change("revoke_token", actor, reason, f"token:{username}/{name}", done=True)


def _forbid(actor: Actor) -> None:
    if RANK[actor.role] < RANK["admin"]:
        raise Refused("forbidden", f"tokens are an admin's; {actor.name} is {actor.role}")


def _user(username: str) -> User:
    user = User.objects.filter(username=username).first()
    if user is None:
        raise Refused("not_found", f"there is no user {username!r:.80}")
    return user
