"""Operations that run already: held, ended where they are, or taken back; and times in which none may begin."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from controlplane.control.actions.change import Change, NewStep, begin, forbid, record_audit, record_change
from controlplane.control.actions.sizes import size_steps
from controlplane.control.actor import Actor
from controlplane.control.desire import Desire, begin_rollback, desire_of, overtaken, pool_key, restore, skip_open_steps
from controlplane.control.refused import Refused, refuse_all
from controlplane.core.lifecycle import ENDED, OPERATION, move, observe
from controlplane.fleet import models

UNDOABLE = frozenset(
    {
        *("set_mode", "rebalance", "scale_pool", "move_gpus", "drain_engine", "undrain_engine", "update_model", "roll_out"),
        *("set_canary", "rollback"),
    }
)
"""Verbs whose operation can be taken back after it has ended."""
MAX_FREEZE = timedelta(days=366)


def pause(actor: Actor, operation_id: int, *, reason: str = "") -> models.Operation:
    """Begin nothing new of a running operation; moves in progress finish. Healing goes on."""
    with transaction.atomic():
        row = _lock_operation(actor, "pause", operation_id)
        if row.state not in ("pending", "running"):
            raise Refused("invalid", f"operation {row.pk} is {row.state}: only one that runs can be paused")
        return _steer(actor, "pause", row, move(OPERATION, row.state, "paused"), reason)


def resume(actor: Actor, operation_id: int, *, reason: str = "") -> models.Operation:
    """Go on with a paused operation."""
    with transaction.atomic():
        row = _lock_operation(actor, "resume", operation_id)
        if row.state != "paused":
            raise Refused("invalid", f"operation {row.pk} is {row.state}, not paused")
        return _steer(actor, "resume", row, move(OPERATION, row.state, "running"), reason)


def cancel(actor: Actor, operation_id: int, *, reason: str = "") -> models.Operation:
    """End a running operation where it is: what is there now becomes what is desired. Moves in progress finish, engines
    that are being started for it are stopped. Returns the cancelled operation."""
    with transaction.atomic():
        row = _lock_operation(actor, "cancel", operation_id)
        if row.state not in ("pending", "running", "paused"):
            raise Refused("invalid", f"operation {row.pk} is {row.state}: there is nothing to cancel")
        if row.model is not None:
            if row.verb == "retire_model":
                raise Refused("invalid", f"{row.model.name} is offered no more: rollback operation {row.pk} to keep it")
            restore(row.model, _where_it_is(row, row.model))
        skip_open_steps(row.steps.all(), f"cancelled by {actor.name}")
        outcome = f"cancelled by {actor.name}: {reason}" if reason else f"cancelled by {actor.name}"
        state = observe(OPERATION, row.state, "cancelled")
        models.Operation.objects.filter(pk=row.pk).update(outcome=outcome[:500], finished_at=timezone.now())
        return _steer(actor, "cancel", row, state, reason)


def rollback(actor: Actor, operation_id: int, *, reason: str = "") -> models.Operation:
    """Take an operation back. One that runs is turned round and returned; for one that has ended a new operation begins,
    if what it made desired still is."""
    with transaction.atomic():
        row = _lock_operation(actor, "rollback", operation_id)
        if row.state not in ENDED:
            if not begin_rollback(row, f"taken back by {actor.name}" + (f": {reason}" if reason else "")):
                raise Refused("invalid", f"operation {row.pk} is {row.state} already" if row.model else _no_way_back(row))
            row.refresh_from_db()
            return _steer(actor, "rollback", row, row.state, reason)
        if row.model is None or row.verb not in UNDOABLE or row.state != "done":
            raise Refused("invalid", _no_way_back(row))
        return _undo(actor, row, row.model, reason)


def _undo(actor: Actor, row: models.Operation, model: models.Model, reason: str) -> models.Operation:
    change = begin(actor, "rollback", model.name, reason=reason)
    refuse_all("stale", (f"operation {row.pk} was overtaken: {each}" for each in overtaken(model, row.after)))
    before = desire_of(model)
    restore(model, row.before)
    steps = [*size_steps(model), *steps_of(change, row.before, before)]
    return change.record(steps, undoes=row, done=not steps)


def steps_of(change: Change, wanted: Desire, before: Desire) -> list[NewStep]:
    """Steps beside those of sizes that `wanted`, which was just written, leads to."""
    steps = [
        NewStep("hold" if held else "release", engine=engine)
        for engine, held in wanted.get("held", {}).items()
        if engine in before["held"]
    ]
    if wanted.get("mode", change.model.served_mode) != change.model.served_mode:
        steps.append(NewStep("switch"))
    return steps


def freeze(actor: Actor, name: str | None, until: datetime, *, reason: str = "") -> models.Operation:
    """Forbid changes of one model, or of all there are (`name` None), until then. Running operations go on."""
    if not timezone.now() < until <= timezone.now() + MAX_FREEZE:
        raise Refused("invalid", f"until: a time to come within {MAX_FREEZE.days} days, not {until:%Y-%m-%d %H:%M}")
    return _freeze(actor, "freeze", name, until, reason)


def unfreeze(actor: Actor, name: str | None, *, reason: str = "") -> models.Operation:
    """Allow changes again."""
    return _freeze(actor, "unfreeze", name, None, reason)


def _freeze(actor: Actor, verb: str, name: str | None, until: datetime | None, reason: str) -> models.Operation:
    fields: dict[str, Any] = {"frozen_until": until, "frozen_reason": reason[:500] if until else ""}
    after = {"frozen_until": until.isoformat() if until else None}
    with transaction.atomic():
        if name is None:
            forbid(actor, verb)
            models.Model.objects.update(version=F("version") + 1, **fields)
            return record_change(verb, actor, reason, "fleet", after=after, done=True)
        change = begin(actor, verb, name, reason=reason)
        was = change.model.frozen_until
        models.Model.objects.filter(pk=change.model.pk).update(**fields)
        before = {"frozen_until": was.isoformat() if was else None}
        return record_change(verb, actor, reason, f"model:{name}", model=change.model, before=before, after=after, done=True)


def _lock_operation(actor: Actor, verb: str, operation_id: int) -> models.Operation:
    """The operation's row, locked after its model's (in the order in which every action locks)."""
    found = models.Operation.objects.filter(pk=operation_id).select_related("model").first()
    if found is None:
        raise Refused("not_found", f"there is no operation {operation_id}")
    forbid(actor, verb, found.model.team if found.model else "")
    if found.model is not None:
        models.Model.objects.select_for_update().filter(pk=found.model.pk).first()
    row: models.Operation = models.Operation.objects.select_for_update(of=("self",)).get(pk=operation_id)
    return row


def _steer(actor: Actor, verb: str, row: models.Operation, state: str, reason: str) -> models.Operation:
    """Write the operation's new state and who asked for it; no operation of its own, an audit entry."""
    models.Operation.objects.filter(pk=row.pk).update(state=state)
    record_audit(verb, actor, reason, f"operation:{row.pk}", row, {"state": row.state}, {"state": state})
    row.refresh_from_db()
    return row


def _where_it_is(row: models.Operation, model: models.Model) -> Desire:
    """The part of a desire that makes an operation satisfied as far as it has come."""
    desire: Desire = {}
    if "mode" in row.after:
        desire["mode"] = model.served_mode
    coming = set(row.steps.filter(verb="start", state__in=("waiting", "running")).values_list("engine", flat=True))
    members: dict[str, int] = {}
    for id, role, arm, next_role, next_arm in models.Engine.objects.filter(model=model, wanted=True).values_list(
        "id", "role", "arm", "next_role", "next_arm"
    ):
        if id not in coming:
            key = pool_key(next_role or role, next_arm or arm)
            members[key] = members.get(key, 0) + 1
    for key, then in row.after.get("pools", {}).items():
        low, high = sorted((then, row.before.get("pools", {}).get(key, 0)))
        desire.setdefault("pools", {})[key] = min(max(members.get(key, 0), low), high)
    return desire


def _no_way_back(row: models.Operation) -> str:
    return f"operation {row.pk} ({row.verb}, {row.state}) cannot be taken back: give the opposite order instead"
