"""Operations that run already: held, ended where they are, or taken back; and times in which none may begin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from controlplane.control.actions.canaries import running_canary, unfit
from controlplane.control.actions.change import (
    Change,
    NewStep,
    begin,
    forbid,
    link,
    lock_models,
    record_audit,
    record_change,
)
from controlplane.control.actions.registration import lock_names, names_taken
from controlplane.control.actions.sizes import leaving_engines, main_pools, replace_steps, size_steps, too_small
from controlplane.control.actor import Actor
from controlplane.control.desire import Desire, begin_rollback, end, overtaken, pool_key, restore
from controlplane.control.refused import Refused, refuse_all
from controlplane.core.lifecycle import ENDED, OPERATION, move
from controlplane.core.storable import storable_text
from controlplane.fleet import models

UNDOABLE = frozenset(
    {
        *("set_mode", "rebalance", "scale_pool", "move_gpus", "drain_engine", "undrain_engine", "update_model", "roll_out"),
        *("set_canary", "rollback", "apply_model"),
    }
)
"""Verbs whose operation can be taken back after it has ended."""
TURNABLE = UNDOABLE | {"promote_canary", "retire_model", "exchange_roles"}
"""Verbs whose operation can be turned round while it runs."""
NOWHERE_TO_STAY = frozenset({"retire_model", "roll_out", "set_canary", "promote_canary", "end_canary"})
"""Verbs of which half is no state to stay in: they are taken back, or go on."""
WITH_FLOORS = frozenset({"rebalance", "set_mode", "move_gpus"})
"""Verbs that keep the floors of pools, and so do their undoings."""
CANCELLABLE = frozenset({"pending", "running", "paused", "rolling_back"})
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
    that are being started for it are stopped. Who waits for its GPUs in another model ends with it. Returns the cancelled
    operation."""
    with transaction.atomic():
        row, *partners = _lock_all(actor, "cancel", operation_id)
        if row.state not in CANCELLABLE:
            raise Refused("invalid", f"operation {row.pk} is {row.state}: there is nothing to cancel")
        for each in (row, *partners):
            if each.state in CANCELLABLE:
                _cancel(actor, each, reason)
        return row


def _cancel(actor: Actor, row: models.Operation, reason: str) -> None:
    if row.model is not None:
        if row.verb in NOWHERE_TO_STAY:
            may_turn = row.verb in TURNABLE and row.state != "rolling_back"
            remedy = f"{'roll it back' if may_turn else 'wait for it'}, or pause it"
            raise Refused("invalid", f"operation {row.pk} ({row.verb}) cannot end half-way: {remedy}")
        restore(row.model, _where_it_is(row, row.model))
    end(row, "cancelled", f"cancelled by {actor.name}" + (f": {reason}" if reason else ""))
    _steer(actor, "cancel", row, "cancelled", reason)


def rollback(actor: Actor, operation_id: int, *, reason: str = "") -> models.Operation:
    """Take an operation back. One that runs is turned round and returned; for one that has ended a new operation begins,
    if what it made desired still is. GPUs that moved between two models go back in both."""
    with transaction.atomic():
        if models.Operation.objects.filter(pk=operation_id, before__settings__has_key="aliases").exists():
            lock_names()
        row, *_ = rows = _lock_all(actor, "rollback", operation_id)
        turned = [each for each in rows if each.state not in ENDED]
        for each in turned:
            _turn_round(actor, each, reason)
        ended = [each for each in rows if each not in turned and (each is row or each.state == "done")]
        undone = _undo(actor, ended, reason)
        return row if row in turned else undone[0]


def _partners(operation_id: int) -> list[int]:
    """The other operation of GPUs that move between two models."""
    other = models.Operation.objects.filter(pk=operation_id).values_list("after__partner", flat=True).first()
    return [other] if isinstance(other, int) else []


def _turn_round(actor: Actor, row: models.Operation, reason: str) -> None:
    before = {"state": row.state}
    if row.verb not in TURNABLE:
        raise Refused("invalid", _no_way_back(row))
    if not begin_rollback(row, f"taken back by {actor.name}" + (f": {reason}" if reason else "")):
        raise Refused("invalid", f"operation {row.pk} is rolling back already" if row.model else _no_way_back(row))
    row.refresh_from_db()
    record_audit("rollback", actor, reason, f"operation:{row.pk}", row, before, {"state": row.state})


def _undo(actor: Actor, rows: Sequence[models.Operation], reason: str) -> list[models.Operation]:
    """New operations that make desired again what was before `rows`: all of them first, so that what one gives back is
    there for the other."""
    changes: list[tuple[models.Operation, Change]] = []
    for row in rows:
        if row.model is None or row.verb not in UNDOABLE or row.state != "done":
            raise Refused("invalid", _no_way_back(row))
        change = begin(actor, "rollback", row.model.name, reason=reason)
        for verb in _rights(row.before):
            forbid(actor, verb, row.model.team, row.model.name)
        refuse_all("stale", (f"operation {row.pk} was overtaken: {each}" for each in _overtaken(row, row.model)))
        canary = running_canary(row.model)
        if canary is not None and "mode" in row.before:
            raise Refused("busy", f"canary {canary.pk} of {row.model.name} runs: promote or end it first")
        restore(row.model, row.before)
        if canary is None and (again := running_canary(row.model)):
            refuse_all("stale", unfit(change.model, again.mode, again.shared))
        refuse_all("unsafe", _empties(row, change.model.pk))
        changes.append((row, change))
    freed = frozenset().union(*(leaving_engines(change.model) for _, change in changes))
    undone: list[models.Operation] = []
    for row, change in changes:
        steps = [*size_steps(change, freed), *_other_steps(change, row.before)]
        undone.append(change.record(steps, undoes=row, done=not steps))
    link(*undone)
    return undone


def _overtaken(row: models.Operation, model: models.Model) -> Iterator[str]:
    """Why what `row` made desired is not any more, or what was before it cannot be."""
    yield from overtaken(model, row.after)
    aliases = row.before.get("settings", {}).get("aliases")
    if aliases is not None:
        yield from names_taken([model.name, *aliases], besides=model)


def _rights(wanted: Desire) -> Iterator[str]:
    """Verbs that write the same: who may not do them must not come by them through an undo."""
    if "team" in wanted.get("settings", {}):
        yield "set_owner"
    if any(part in wanted for part in ("settings", "floors", "selectors")):
        yield "update_model"
    if "held" in wanted:
        yield "drain_engine"


def _empties(row: models.Operation, model_id: int) -> Iterator[str]:
    """Pools that are too small by now for what was restored. `scale_pool` may go below floors, and so may its undoing."""
    model = models.Model.objects.get(pk=model_id)
    wanted, pools = row.before.get("pools", {}), main_pools(model)
    sizes = {role: pool.desired_engines for role, pool in pools.items()}
    floors = {role: pool.floor if role in wanted and row.verb in WITH_FLOORS else 0 for role, pool in pools.items()}
    changed = wanted or "strict" in row.before.get("settings", {})
    if changed and (row.verb in WITH_FLOORS or any(sizes.values())):
        yield from too_small(model, model.mode, sizes, floors)


def _other_steps(change: Change, wanted: Desire) -> list[NewStep]:
    """Steps beside those of sizes that `wanted`, which was just written, leads to."""
    held = [(engine, held) for engine, held in wanted.get("held", {}).items() if engine in change.old["held"]]
    steps = [NewStep("hold" if held else "release", engine=engine) for engine, held in held]
    steps += replace_steps(change.model) if "settings" in wanted else []
    if wanted.get("mode", change.model.served_mode) != change.model.served_mode:
        steps.append(NewStep("switch"))
    return steps


def freeze(
    actor: Actor, name: str | None, until: datetime, *, reason: str = "", expected_version: int | None = None
) -> models.Operation:
    """Forbid changes of one model, or of all there are (`name` None), until then. Running operations go on."""
    if not timezone.now() < until <= timezone.now() + MAX_FREEZE:
        raise Refused("invalid", f"until: a time to come within {MAX_FREEZE.days} days, not {until:%Y-%m-%d %H:%M}")
    return _freeze(actor, "freeze", name, until, reason, expected_version)


def unfreeze(actor: Actor, name: str | None, *, reason: str = "", expected_version: int | None = None) -> models.Operation:
    """Allow changes again."""
    return _freeze(actor, "unfreeze", name, None, reason, expected_version)


def _freeze(
    actor: Actor, verb: str, name: str | None, until: datetime | None, reason: str, expected_version: int | None
) -> models.Operation:
    fields: dict[str, Any] = {"frozen_until": until, "frozen_reason": storable_text(reason)[:500] if until else ""}
    after = {"frozen_until": until.isoformat() if until else None}
    with transaction.atomic():
        if name is None:
            forbid(actor, verb)
            lock_models(*models.Model.objects.values_list("name", flat=True))
            models.Model.objects.update(version=F("version") + 1, **fields)
            return record_change(verb, actor, reason, "fleet", after=after, done=True)
        change = begin(actor, verb, name, reason=reason, expected_version=expected_version)
        was = change.model.frozen_until
        models.Model.objects.filter(pk=change.model.pk).update(**fields)
        before = {"frozen_until": was.isoformat() if was else None}
        return record_change(verb, actor, reason, f"model:{name}", model=change.model, before=before, after=after, done=True)


def _lock_all(actor: Actor, verb: str, operation_id: int) -> list[models.Operation]:
    """The operation's row and, after it, the other one of GPUs that move between two models."""
    _lock_models_of(operation_id)
    return [_lock_operation(actor, verb, each) for each in (operation_id, *_partners(operation_id))]


def lock_operation(operation_id: int) -> None:
    """Until the transaction ends nobody steers this operation but the caller; does nothing if there is none."""
    _lock_models_of(operation_id)
    models.Operation.objects.select_for_update(of=("self",)).filter(pk=operation_id).first()


def _lock_models_of(operation_id: int) -> None:
    numbers = [operation_id, *_partners(operation_id)]
    names = models.Operation.objects.filter(pk__in=numbers).exclude(model=None).values_list("model__name", flat=True)
    lock_models(*names)


def _lock_operation(actor: Actor, verb: str, operation_id: int) -> models.Operation:
    """The operation's row, locked after its model's (in the order in which every action locks)."""
    found = models.Operation.objects.filter(pk=operation_id).select_related("model").first()
    if found is None:
        raise Refused("not_found", f"there is no operation {operation_id}")
    forbid(actor, verb, *((found.model.team, found.model.name) if found.model else ()))
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
    together = models.Engine.objects.filter(model=model, move_phase="together")
    if together:
        desire["roles"] = dict(together.values_list("id", "role"))
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
