"""Somebody whose password (or provider) was right and whose second factor is still to come. Nothing but the page that asks
for it knows them: they are not signed in."""

from __future__ import annotations

import hmac
import time
from typing import Any

from django.contrib.auth.models import User
from django.http import HttpRequest

from controlplane.access import factors

KEY = "pending"
LASTS_S = 600


def put(request: HttpRequest, user: User, next_page: str) -> None:
    """Keep it in the visitor's session, under a new key."""
    request.session.cycle_key()
    request.session[KEY] = {
        "user": user.pk,
        "hash": user.get_session_auth_hash(),
        "at": int(time.time()),
        "next": next_page,
        "secret": "" if factors.has_factor(user) else factors.new_secret(),
    }
    request.session.set_expiry(LASTS_S)


def get(request: HttpRequest) -> tuple[User, dict[str, Any]] | None:
    """Who it is, while it is fresh, their password is the same and they may still come in."""
    kept = request.session.get(KEY)
    if not isinstance(kept, dict) or not 0 <= time.time() - kept["at"] <= LASTS_S:
        return None
    user = User.objects.filter(pk=kept["user"], is_active=True).first()
    if user is None or not hmac.compare_digest(user.get_session_auth_hash(), kept["hash"]):
        return None
    return user, kept


def drop(request: HttpRequest) -> None:
    request.session.pop(KEY, None)
