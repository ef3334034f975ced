"""Asks for one change and follows its operation to the end."""

from __future__ import annotations

import time
from collections.abc import Callable

from controlplane.control import actions
from controlplane.control.actor import Actor
from controlplane.control.refused import Refused
from controlplane.core.lifecycle import ENDED
from controlplane.fleet import models
from controlplane.proof.schedule import Change, Ended

STUCK_S = 90.0
"""An operation that has not ended by then has hung."""
EVERY_S = 0.02
REASON = "proof that changes lose nothing"


def ask(model: str, change: Change) -> models.Operation:
    """Raises Refused and database errors."""
    actor = Actor.command_line()
    if change.verb == "rebalance":
        return actions.rebalance(actor, model, change.sizes, reason=REASON)
    if change.verb == "exchange":
        first, second = models.Engine.objects.filter(model__name=model, wanted=True).values_list("id", flat=True)
        return actions.exchange_roles(actor, model, first, second, reason=REASON)
    split = None if change.mode == "monolithic" else change.sizes
    return actions.set_mode(actor, model, change.mode, split=split, reason=REASON)


def carry_out(model: str, change: Change, look: Callable[[], None]) -> Ended:
    """Ask for `change` and wait for its operation's end; `look` is called again and again meanwhile."""
    began = time.monotonic()
    try:
        operation = ask(model, change)
    except Refused as refusal:
        return Ended(change, 0, "refused", "; ".join(refusal.reasons), time.monotonic() - began)
    while operation.state not in ENDED:
        if time.monotonic() - began > STUCK_S:
            return Ended(change, operation.pk, "stuck", _where(operation), time.monotonic() - began)
        look()
        time.sleep(EVERY_S)
        operation.refresh_from_db(fields=["state", "outcome"])
    look()
    outcome = operation.outcome if operation.state == "done" else f"{operation.outcome} [{_where(operation)}]"
    return Ended(change, operation.pk, operation.state, outcome, time.monotonic() - began)


def _where(operation: models.Operation) -> str:
    """Its steps, for whoever looks for what went wrong."""
    told = (
        f"{row.verb} {row.engine or '-'} to {row.role or '-'} {row.state}: {row.reason}" for row in operation.steps.all()
    )
    return "; ".join(told)
