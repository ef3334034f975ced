"""One look of the planner: rows and telemetry -> core.planner -> proposals, holds and, where it may, operations.

Level-triggered: a look computes everything from rows and figures, so it may die at any line or be skipped. What is carried
out is decided and begun in one transaction (`actions.approve_proposal`).
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Mapping

from django.db import Error as DatabaseError
from django.db import close_old_connections

from controlplane.control import actions
from controlplane.control.actor import Actor
from controlplane.control.leases import lease
from controlplane.control.models import Level, Proposal, ProposalState
from controlplane.control.planning import keep, outcomes
from controlplane.control.planning.gather import fleet_now, setting_of
from controlplane.control.planning.history import PLANNER
from controlplane.control.refused import Refused
from controlplane.core.planner import Decision, propose
from controlplane.core.proposals import expired, review
from controlplane.core.sketches import BadSketch

log = logging.getLogger(__name__)

LEASE_S = 120.0
"""Longer than a look at a large fleet takes."""


class Planner:
    """The looks of this process. `run` may be called from any thread at any time."""

    def __init__(self) -> None:
        self._holder = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._busy = threading.Lock()
        self._trouble = ""

    def run(self) -> None:
        """Look once, unless this process or another one does. What hinders it is said once."""
        if not self._busy.acquire(blocking=False):
            return
        trouble = ""
        try:
            close_old_connections()
            with lease("planner", self._holder, LEASE_S) as mine:
                if mine:
                    look(time.time())
        except (DatabaseError, BadSketch) as error:
            trouble = f"nothing is planned now: {type(error).__name__}: {str(error).partition(chr(10))[0]:.200}"
            close_old_connections()
        finally:
            self._busy.release()
        if trouble != self._trouble:
            log.log(logging.WARNING if trouble else logging.INFO, "%s", trouble or "the planner looks again")
            self._trouble = trouble


def look(now_s: float) -> Decision:
    """One look at `now_s` (Unix seconds) and what came of it. Raises django.db.Error and BadSketch; what it has written by
    then is right, and the next look goes on from there."""
    outcomes.settle()
    outcomes.measure()
    keep.end((*expired(keep.standing(), now_s), *keep.overtaken()), now_s)
    fleet = fleet_now(now_s)
    decision = propose(fleet, now_s)
    keep.write(review(decision, keep.standing(), keep.rejections(fleet, now_s)), now_s)
    act({each.model: each.reason for each in decision.holds})
    return decision


def act(held: Mapping[str, str] | None = None) -> int:
    """Carry out open proposals of models whose level is automatic; returns how many were begun. What is refused stays open,
    with the reason, and is tried again at the next look. `held`: why models are left alone at this look: a proposal of
    theirs is older (of an open question, or refused then) and waits until it is made again."""
    begun = 0
    for row in Proposal.objects.filter(state=ProposalState.OPEN).select_related("model", "giver").order_by("pk"):
        if setting_of(row.model).level != Level.AUTOMATIC:
            continue
        hindrance = (held or {}).get(row.model.name, "") or _asks_first(row)
        try:
            if not hindrance:
                operation = actions.approve_proposal(Actor.system(PLANNER), row.pk)
                log.info("%s: operation %d carries out proposal %d: %s", row.model.name, operation.pk, row.pk, row.title)
                begun += 1
        except Refused as refused:
            hindrance = str(refused)
        if hindrance[:500] != row.hindrance:
            Proposal.objects.filter(pk=row.pk, state=ProposalState.OPEN).update(hindrance=hindrance[:500])
    return begun


def _asks_first(row: Proposal) -> str:
    """Why somebody must be asked although the model's level is automatic; empty: nobody must."""
    if row.giver is not None and setting_of(row.giver).level != Level.AUTOMATIC:
        return f"{row.giver.name} is not planned automatically: somebody must approve that its GPUs change"
    return ""
