"""Tokens with which machines join as nodes: made and revoked here, exchanged by `control.admission`."""

from __future__ import annotations

import secrets
from datetime import timedelta

from django.db import IntegrityError, transaction
from django.utils import timezone

from controlplane.config import config
from controlplane.control.actions.change import forbid, record_change
from controlplane.control.actor import Actor
from controlplane.control.joined import state_of, still_open
from controlplane.control.refused import Refused
from controlplane.core.joining import MAX_TOKEN_HOURS, TOKEN_HOURS, token_secret
from controlplane.core.names import check_node_name
from controlplane.fleet import models


def add_join_token(
    actor: Actor, node: str, *, hours: float = TOKEN_HOURS, reason: str = ""
) -> tuple[models.Operation, models.JoinToken, bytes]:
    """A token with which one machine joins as `node`, once, within `hours`; the node's row is made if it is missing. Earlier
    tokens of the node that were not used are revoked. Returns the operation, the row and the token's secret. A node that
    has joined stays as it is until somebody joins with the new token; then its old credentials are worth nothing.
    Raises Refused, BadKey."""
    forbid(actor, "add_join_token")
    try:
        check_node_name(node)
    except ValueError as error:
        raise Refused("invalid", str(error)) from error
    if not 0 < hours <= MAX_TOKEN_HOURS:
        raise Refused("invalid", f"hours: more than 0 and at most {MAX_TOKEN_HOURS:g}")
    fleet_secret, now = config().fleet_secret(), timezone.now()
    with transaction.atomic():
        row = _locked(node)
        replaced = still_open(now).filter(node=row).update(revoked_at=now)
        token = models.JoinToken.objects.create(
            node=row, salt=secrets.token_hex(32), created_by=actor.name[:150], expires_at=now + timedelta(hours=hours)
        )
        after = {"token": token.pk, "expires_at": token.expires_at.isoformat(timespec="seconds"), "replaced": replaced}
        operation = record_change("add_join_token", actor, reason, f"node:{node}", after=after, done=True)
    return operation, token, token_secret(fleet_secret, token.pk, token.salt)


def revoke_join_token(actor: Actor, number: int, *, reason: str = "") -> models.Operation:
    """Let nobody join with this token any more. What joined with it already stays: remove the node for that."""
    forbid(actor, "revoke_join_token")
    with transaction.atomic():
        token = models.JoinToken.objects.select_for_update().select_related("node").filter(pk=number).first()
        if token is None:
            raise Refused("not_found", f"there is no join token {number}: list_join_tokens shows them")
        if (state := state_of(token, timezone.now())) != "valid":
            raise Refused("invalid", f"join token {number} is {state} already")
        token.revoked_at = timezone.now()
        token.save(update_fields=["revoked_at"])
        subject = f"node:{token.node.name}"
        return record_change("revoke_join_token", actor, reason, subject, before={"token": number}, done=True)


def _locked(name: str) -> models.Node:
    """The node's row, made if it is missing."""
    try:
        with transaction.atomic():
            models.Node.objects.get_or_create(name=name)
    except IntegrityError:
        pass  # somebody else made it just now
    return models.Node.objects.select_for_update().get(name=name)
