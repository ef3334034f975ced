"""Moves open operations and their steps along by what the fleet shows (core.progress)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from django.db import transaction
from django.utils import timezone

from controlplane.core.lifecycle import ENDED
from controlplane.core.progress import OperationState, StepState, advance
from controlplane.core.world import World
from controlplane.fleet import models

log = logging.getLogger(__name__)


def read_open() -> tuple[OperationState, ...]:
    """Open operations, oldest first. To be read before the world: an operation must never be judged by a world that does
    not hold its own desired rows yet."""
    rows = models.Operation.objects.exclude(state__in=ENDED).select_related("model").prefetch_related("steps").order_by("id")
    return tuple(_read(row) for row in rows)


def advance_operations(
    operations: Iterable[OperationState], world: World, waiting: Mapping[str, str], roles_listed: Mapping[str, str]
) -> None:
    """One tick's progress of every open operation. Raises database errors."""
    for old in operations:
        new = advance(old, world, waiting, roles_listed)
        if new != old:
            _write(old, new)


def _read(row: models.Operation) -> OperationState:
    steps = tuple(StepState(s.index, s.verb, s.role, s.engine, s.state, s.reason) for s in row.steps.all())
    return OperationState(row.pk, row.model.name if row.model else "", row.state, steps, row.outcome)


def _write(old: OperationState, new: OperationState) -> None:
    now = timezone.now()
    with transaction.atomic():
        for before, after in zip(old.steps, new.steps, strict=True):
            if after == before:
                continue
            row = models.Step.objects.filter(operation_id=old.id, index=before.index, state=before.state)
            row.update(state=after.state, reason=after.reason[:500])
            row = models.Step.objects.filter(operation_id=old.id, index=before.index)
            if before.state == "waiting" and after.state != "waiting":
                row.filter(started_at=None).update(started_at=now)
            if after.state in ("done", "failed", "skipped"):
                row.filter(finished_at=None).update(finished_at=now)
        if (new.state, new.outcome) == (old.state, old.outcome):
            return
        finished = now if new.state in ENDED else None
        changed = models.Operation.objects.filter(pk=old.id, state=old.state)
        if changed.update(state=new.state, outcome=new.outcome, finished_at=finished) and finished:
            log.info("operation %d is %s: %s", new.id, new.state, new.outcome)
