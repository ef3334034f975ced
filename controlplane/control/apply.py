"""Carries out a plan: rows by conditional update, each action in a transaction of its own; commands and probes afterwards.

An action that finds the rows changed since the plan was made does nothing: the next tick plans anew. So it may stop between
any two lines, and be run by two workers at once. Moves of engines are in `control.apply_moves`.
"""

from __future__ import annotations

import logging
import secrets
import time

from django.db import IntegrityError, transaction
from django.db.models import F, Max, Q
from django.utils import timezone

from controlplane.control import apply_moves, commands
from controlplane.control.bind import bind_step
from controlplane.control.launches import launch_of
from controlplane.core.lifecycle import ENGINE, move
from controlplane.core.plan import (
    AbortMove,
    Action,
    BeginMove,
    Create,
    FinishMove,
    Flip,
    Halt,
    Plan,
    Probe,
    Release,
    Restart,
    Retire,
    Send,
    Verify,
)
from controlplane.core.world import Sent
from controlplane.fleet import models

log = logging.getLogger(__name__)


def apply(plan: Plan) -> int:
    """Change the rows as `plan` says. Returns how many actions did. Raises database errors; what was done until then stays
    done and is right."""
    return sum(_change(action) for action in plan.actions if not isinstance(action, Send | Probe))


def send_all(plan: Plan, sent: dict[Sent, float]) -> None:
    """The plan's probes and commands, noted in `sent`. Raises database errors and kombu's OperationalError."""
    asked = [action for action in plan.actions if isinstance(action, Probe)]
    for pair in [pair for probe in asked if (pair := apply_moves.ask(probe)) is not None]:
        commands.probe(pair)
    for action in plan.actions:
        if isinstance(action, Send) and commands.send(action):
            sent[Sent(action.engine, action.verb, action.generation, action.rank)] = time.time()
            log.info(
                "%s %s (generation %d) sent to %s: %s",
                action.verb,
                action.engine,
                action.generation,
                action.node,
                action.reason,
            )


def _change(action: Action) -> bool:
    match action:
        case Create():
            return _create(action)
        case Retire():
            return _retire(action)
        case Restart():
            return _restart(action)
        case Halt():
            return _halt(action)
        case Release():
            return _release(action)
        case BeginMove():
            return apply_moves.begin(action)
        case Verify():
            return apply_moves.verify(action)
        case FinishMove():
            return apply_moves.finish(action)
        case AbortMove():
            return apply_moves.abort(action)
        case Flip():
            return apply_moves.flip(action)
    raise TypeError(f"{type(action).__name__} changes no row")


def _create(action: Create) -> bool:
    """The engine with its ranks and reservations, if the pool still lacks one and all the GPUs are still free."""
    try:
        with transaction.atomic():
            pool = (
                models.Pool.objects.select_for_update()
                .select_related("model")
                .get(model__name=action.model, role=action.role, arm=action.arm)
            )
            if _members(pool) >= pool.desired_engines + action.surge:
                return False
            engine = _insert(pool, action)
            if not action.surge:
                bind_step(pool.model_id, "start", pool.role, pool.arm, engine.id)
    except (IntegrityError, models.Pool.DoesNotExist, models.Node.DoesNotExist) as error:
        log.info("engine for %s/%s not made now: %s", action.model, action.role, error)
        return False
    log.info(
        "engine %s (%s of %s) planned on %s: %s",
        engine.id,
        engine.label,
        action.model,
        action.placement.node,
        action.reason,
    )
    return True


def _members(pool: models.Pool) -> int:
    """Wanted engines that count for it: those that move to it do, those that move away do not."""
    stays = Q(next_role="", role=pool.role, arm=pool.arm)
    comes = Q(next_role=pool.role, next_arm=pool.arm)
    return models.Engine.objects.filter(stays | comes, model=pool.model, wanted=True).count()


def _insert(pool: models.Pool, action: Create) -> models.Engine:
    newest = models.Engine.objects.filter(model=pool.model).aggregate(newest=Max("number"))["newest"] or 0
    engine = models.Engine.objects.create(
        id=f"e-{secrets.token_hex(4)}",
        model=pool.model,
        role=pool.role,
        arm=pool.arm,
        number=newest + 1,
        kind=pool.model.engine_kind,
        tensor_parallel=pool.tensor_parallel,
        launch=launch_of(pool.model, pool.tensor_parallel, pool.pipeline_parallel).snapshot(),
        reason=action.reason,
    )
    for index, place in enumerate(action.placement.ranks):
        rank = models.Rank.objects.create(engine=engine, index=index, node=models.Node.objects.get(name=place.node))
        models.Reservation.objects.bulk_create(models.Reservation(gpu_id=uuid, rank=rank) for uuid in place.gpus)
    return engine


def _retire(action: Retire) -> bool:
    with transaction.atomic():
        row = models.Engine.objects.select_for_update().filter(id=action.engine, wanted=True).first()
        if row is None:
            return False
        models.Engine.objects.filter(id=row.id).update(wanted=False, reason=action.reason)
        bind_step(row.model_id, "stop", row.role, row.arm, row.id)
    log.info("engine %s is retired: %s", action.engine, action.reason)
    return True


def _restart(action: Restart) -> bool:
    row = models.Engine.objects.filter(id=action.engine, wanted=True, spec_generation=action.generation)
    state = row.values_list("state", flat=True).first()
    if state is None:
        return False
    changed = row.filter(state=state).update(
        state=move(ENGINE, state, "starting"),
        state_since=timezone.now(),
        spec_generation=F("spec_generation") + 1,
        reason=action.reason[:500],
    )
    if changed:
        # It comes up in the role it has: it was not moved there, as a process.
        models.Engine.objects.filter(id=action.engine, move_phase__in=("", "aborted")).update(move_phase="", move_since=None)
        log.info("engine %s starts again as generation %d: %s", action.engine, action.generation + 1, action.reason)
    return bool(changed)


def _halt(action: Halt) -> bool:
    row = models.Engine.objects.filter(id=action.engine, wanted=False)
    state = row.values_list("state", flat=True).first()
    if state is None:
        return False
    target = move(ENGINE, state, action.state)
    changed = row.filter(state=state).update(state=target, state_since=timezone.now(), reason=action.reason)
    return bool(changed) and state != target


def _release(action: Release) -> bool:
    held = models.Reservation.objects.filter(
        rank__engine_id=action.engine, rank__engine__wanted=False, rank__engine__state="stopped"
    )
    return held.delete()[0] > 0
