"""What is known of tokens with which nodes join. Reads alone."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Literal

from django.db.models import Q, QuerySet
from django.utils import timezone

from controlplane.common.jointoken import JoinToken as WireToken
from controlplane.common.jointoken import join_url, without_user
from controlplane.config import config
from controlplane.core.joining import ANSWER_S, token_secret
from controlplane.fleet.models import JoinToken

State = Literal["valid", "used", "revoked", "expired"]


def state_of(token: JoinToken, now: datetime) -> State:
    """A token that was used stays used, whatever happens later."""
    if token.used_at is not None:
        return "used"
    if token.revoked_at is not None:
        return "revoked"
    return "valid" if token.expires_at > now else "expired"


def still_open(now: datetime) -> QuerySet[JoinToken]:
    """Those with which somebody may still join."""
    return JoinToken.objects.filter(used_at=None, revoked_at=None, expires_at__gt=now)


def still_asked(now: datetime) -> QuerySet[JoinToken]:
    """Those whose holder may ask now: to join, or for the answer again."""
    fresh = Q(used_at__gt=now - timedelta(seconds=ANSWER_S))
    return JoinToken.objects.filter(fresh | Q(pk__in=still_open(now).values("pk"))).select_related("node")


def token_text(token: JoinToken, address: str = "") -> str:
    """The token itself, for a machine that reaches Valkey at `address` (empty: the setting, else as we do); "" unless it is
    still good. Its node's row must be loaded. Raises BadToken for no address."""
    if state_of(token, timezone.now()) != "valid":
        return ""
    found = config()
    broker, telemetry = (url.get_secret_value() if url else "" for url in (found.valkey_url, found.telemetry_url))
    secret = token_secret(found.fleet_secret(), token.pk, token.salt)
    url = join_url(broker, address or found.join_address)
    return WireToken(token.pk, token.node.name, secret.hex(), url, without_user(telemetry)).text()


def described(token: JoinToken, now: datetime) -> dict[str, Any]:
    """What everybody who may see nodes may know of it, as JSON takes it. The node's row must be loaded."""
    return {
        "token": token.pk,
        "node": token.node.name,
        "state": state_of(token, now),
        "created_by": token.created_by,
        "created_at": _time(token.created_at),
        "expires_at": _time(token.expires_at),
        "used_at": _time(token.used_at),
        "revoked_at": _time(token.revoked_at),
    }


def _time(at: datetime | None) -> str | None:
    return at.isoformat(timespec="seconds") if at else None
