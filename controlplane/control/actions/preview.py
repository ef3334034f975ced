"""What an action would do, without doing it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from django.db import transaction

from controlplane.control.actor import Actor
from controlplane.control.facts import Facts
from controlplane.control.gather import gather
from controlplane.core.preview import Estimate, PlannedStep, Preview, estimate
from controlplane.core.rehearsal import Rehearsal
from controlplane.core.world import World
from controlplane.fleet import models

REMEMBERED = 50
"""Earlier operations that an estimate is made from."""
SHOWN_AT_ONCE = frozenset({"hold", "release", "stop"})
"""Steps that the action itself has put on an engine; the rest shows in the rehearsal."""


def preview(action: Callable[..., models.Operation], actor: Actor, *args: Any, **options: Any) -> Preview:
    """Run `action` with these arguments, take it back, and rehearse what would have followed. Raises Refused as it would."""
    with transaction.atomic():
        operation = action(actor, *args, **options)
        names = _models(operation)
        world = gather(Facts(), now=time.time(), link_since=0.0) if names else None
        steps = list(operation.steps.filter(verb__in=SHOWN_AT_ONCE).exclude(engine=""))
        labels = dict(_labels(names))
        transaction.set_rollback(True)
    rehearsal = Rehearsal(world, names) if world is not None else None
    if rehearsal is not None:
        rehearsal.run()
    return _shown(operation, [_planned(step, labels, world) for step in steps], rehearsal)


def _shown(operation: models.Operation, first: list[PlannedStep], rehearsal: Rehearsal | None) -> Preview:
    known = {(step.verb, step.engine) for step in first if step.engine}
    later = rehearsal.steps if rehearsal else []
    steps = (*first, *(step for step in later if not step.engine or (step.verb, step.engine) not in known))
    return Preview(
        verb=operation.verb,
        model=operation.model.name if operation.model else "",
        steps=steps,
        instant=not any(step.verb in ("start", "stop") for step in steps),
        pools=rehearsal.courses if rehearsal else (),
        waits=rehearsal.waits if rehearsal else (),
        complete=rehearsal.complete if rehearsal else True,
        estimate=_estimate(operation.verb) if steps else None,
        before=operation.before,
        after=operation.after,
    )


def _models(operation: models.Operation) -> list[str]:
    partner = models.Operation.objects.filter(pk=operation.after.get("partner")).select_related("model").first()
    return [each.model.name for each in (operation, partner) if each is not None and each.model is not None]


def _labels(names: Iterable[str]) -> Iterable[tuple[str, str]]:
    return ((row.id, row.label) for row in models.Engine.objects.filter(model__name__in=names))


def _planned(step: models.Step, labels: dict[str, str], world: World | None) -> PlannedStep:
    row = world.by_id.get(step.engine) if world else None
    node = row.ranks[0].node if row and row.ranks else ""
    return PlannedStep(step.verb, step.engine, labels.get(step.engine, ""), step.role, step.arm, node, "asked for")


def _estimate(verb: str) -> Estimate | None:
    done = models.Operation.objects.filter(verb=verb, state="done", steps__isnull=False).distinct()
    times = done.order_by("-pk").values_list("created_at", "finished_at")[:REMEMBERED]
    return estimate([(finished - created).total_seconds() for created, finished in times if finished])
