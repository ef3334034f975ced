"""Which nodes there are, and which of them get new engines."""

from __future__ import annotations

from collections.abc import Mapping

from django.db import IntegrityError, transaction

from controlplane.control.actions.change import forbid, record_change
from controlplane.control.actor import Actor
from controlplane.control.refused import Refused
from controlplane.core.names import check_node_name
from controlplane.fleet import models


def add_node(actor: Actor, name: str, *, labels: Mapping[str, str] | None = None, reason: str = "") -> models.Operation:
    """Let an agent of this name join. Its GPUs appear once the agent reports."""
    forbid(actor, "add_node")
    try:
        check_node_name(name)
    except ValueError as error:
        raise Refused("invalid", str(error)) from error
    with transaction.atomic():
        try:
            with transaction.atomic():
                models.Node.objects.create(name=name, labels=dict(labels or {}))
        except IntegrityError as error:
            raise Refused("invalid", f"node {name} exists already") from error
        return record_change("add_node", actor, reason, f"node:{name}", after={"labels": dict(labels or {})}, done=True)
