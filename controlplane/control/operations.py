"""Moves open operations and their steps along by what the fleet shows (core.progress)."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from controlplane.control.desire import begin_rollback
from controlplane.core.lifecycle import ENDED
from controlplane.core.progress import OperationState, Scene, StepState, advance
from controlplane.fleet import models

log = logging.getLogger(__name__)


def read_open() -> tuple[OperationState, ...]:
    """Open operations, oldest first. To be read before the world: an operation must never be judged by a world that does
    not hold its own desired rows yet."""
    rows = models.Operation.objects.exclude(state__in=ENDED).select_related("model").prefetch_related("steps").order_by("id")
    return tuple(_read(row) for row in rows)


def advance_operations(operations: Iterable[OperationState], scene: Scene) -> int:
    """One tick's progress of every open operation. Returns how many were turned round: what is desired has changed then.
    Raises database errors."""
    turned = 0
    for old in operations:
        new = advance(old, scene)
        if new != old:
            turned += store(old, new)
    return turned


def forget_retired() -> None:
    """The rows of models that are offered no more, once nothing of them is left and no operation runs on them."""
    for model in models.Model.objects.filter(retiring=True):
        with transaction.atomic():
            row = models.Model.objects.select_for_update().filter(pk=model.pk, retiring=True).first()
            alive = Q(wanted=True) | ~Q(state="stopped") | Q(ranks__reservations__isnull=False)
            if row is None or row.engines.filter(alive).exists() or row.operations.exclude(state__in=ENDED).exists():
                continue
            row.delete()
        log.info("model %s is gone", model.name)


def _read(row: models.Operation) -> OperationState:
    steps = tuple(StepState(s.index, s.verb, s.role, s.engine, s.state, s.reason, s.arm) for s in row.steps.all())
    return OperationState(row.pk, row.model.name if row.model else "", row.state, steps, row.outcome, row.verb)


def store(old: OperationState, new: OperationState) -> bool:
    """Whether it was turned round. Rows are locked in the order of every action: model, operation, steps."""
    now = timezone.now()
    with transaction.atomic():
        row = models.Operation.objects.filter(pk=old.id, state=old.state)
        if new.state == "rolling_back":
            models.Model.objects.select_for_update().filter(pk__in=row.values("model")).first()
        if row.select_for_update(of=("self",)).first() is None:
            return False  # somebody has steered it since it was read: the next tick judges it anew
        for before, after in zip(old.steps, new.steps, strict=True):
            if after == before:
                continue
            step = models.Step.objects.filter(operation_id=old.id, index=before.index)
            step.filter(state=before.state).update(state=after.state, reason=after.reason[:500])
            if before.state == "waiting" and after.state != "waiting":
                step.filter(started_at=None).update(started_at=now)
            if after.state in ("done", "failed", "skipped"):
                step.filter(finished_at=None).update(finished_at=now)
        if (new.state, new.outcome) == (old.state, old.outcome):
            return False
        if new.state == "rolling_back":
            return _turn_round(new)
        finished = now if new.state in ENDED else None
        changed = models.Operation.objects.filter(pk=old.id, state=old.state)
        if changed.update(state=new.state, outcome=new.outcome, finished_at=finished) and finished:
            log.info("operation %d is %s: %s", new.id, new.state, new.outcome)
    return False


def _turn_round(operation: OperationState) -> bool:
    row = models.Operation.objects.filter(pk=operation.id).first()
    if row is None or row.model_id is None:
        return False
    if not begin_rollback(row, operation.outcome):
        return False
    log.warning("operation %d is rolled back: %s", operation.id, operation.outcome)
    return True
