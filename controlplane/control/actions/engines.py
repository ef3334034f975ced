"""Single engines."""

from __future__ import annotations

from collections.abc import Iterator

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from controlplane.control.actions.change import Change, NewStep, begin, record_change
from controlplane.control.actor import Actor
from controlplane.control.capacity import why_not
from controlplane.control.desire import pool_key
from controlplane.control.refused import Refused, refuse_all
from controlplane.core.storable import storable_text
from controlplane.fleet import models


def exchange_roles(
    actor: Actor, model_name: str, first: str, second: str, *, reason: str = "", expected_version: int | None = None
) -> models.Operation:
    """Swap the roles of two ready engines of one model. They keep running: a role is how routers use an engine.

    Where both pools keep their floors without them each is moved and verified like any other; else they serve on as they
    are until KV was seen to move as it will, and change places in the same moment.
    """
    with transaction.atomic():
        change = begin(actor, "exchange_roles", model_name, reason=reason, expected_version=expected_version)
        model = change.model
        named = [storable_text(each) for each in (first, second)]
        rows = {row.id: row for row in models.Engine.objects.select_for_update().filter(model=model, id__in=named)}
        refuse_all("not_found", (f"{model_name} has no engine {id!r:.40}" for id in (first, second) if id not in rows))
        one, two = rows[first], rows[second]
        refuse_all("invalid", _exchange_problems(one, two))
        spare = not any(_left(one)) and not any(_left(two))
        for row, role in ((one, two.role), (two, one.role)):
            moved = {"move_phase": "leaving", "move_since": timezone.now()} if spare else {"move_phase": "together"}
            models.Engine.objects.filter(pk=row.pk).update(next_role=role, next_arm=row.arm, **moved)
            if spare:
                models.Pair.objects.filter(Q(prefill=row) | Q(decode=row)).delete()
        return change.record([NewStep("retask", two.role, one.id, one.arm), NewStep("retask", one.role, two.id, one.arm)])


def drain_engine(actor: Actor, engine_id: str, *, reason: str = "", expected_version: int | None = None) -> models.Operation:
    """Take a serving engine out of the routing table and let it finish what it has; it runs on, and heals if it dies."""
    with transaction.atomic():
        change, row = _begin(actor, "drain_engine", engine_id, reason, expected_version)
        if row.held:
            raise Refused("invalid", f"{row.id} is held out of the table already: undrain_engine brings it back")
        refuse_all("unsafe", _left(row))
        models.Engine.objects.filter(pk=row.pk).update(held=True)
        return change.record([NewStep("hold", row.role, row.id, row.arm)], subject=f"engine:{row.id}")


def undrain_engine(
    actor: Actor, engine_id: str, *, reason: str = "", expected_version: int | None = None
) -> models.Operation:
    """Bring an engine back into the routing table."""
    with transaction.atomic():
        change, row = _begin(actor, "undrain_engine", engine_id, reason, expected_version)
        if not row.held:
            raise Refused("invalid", f"{row.id} is not held out of the table")
        models.Engine.objects.filter(pk=row.pk).update(held=False)
        return change.record([NewStep("release", row.role, row.id, row.arm)], subject=f"engine:{row.id}")


def restart_engine(
    actor: Actor, engine_id: str, *, reason: str = "", expected_version: int | None = None
) -> models.Operation:
    """Replace an engine by a fresh one: it is drained and stopped, and its pool starts another, on the same GPUs if no
    others are free."""
    with transaction.atomic():
        change, row = _begin(actor, "restart_engine", engine_id, reason, expected_version)
        refuse_all("unsafe", _left(row))
        pools = models.Pool.objects.filter(model=row.model, role=row.role, arm=row.arm).select_related("model")
        refuse_all("no_capacity", why_not([(pool, 1) for pool in pools], {row.id}))
        models.Engine.objects.filter(pk=row.pk).update(wanted=False, reason=f"restart_engine by {actor.name}"[:500])
        steps = [NewStep("stop", row.role, row.id, row.arm), NewStep("start", row.role, arm=row.arm)]
        return change.record(steps, subject=f"engine:{row.id}", engine=row.id)


def _begin(
    actor: Actor, verb: str, engine_id: str, reason: str, expected_version: int | None
) -> tuple[Change, models.Engine]:
    """The rules of `verb` checked for a wanted engine's model, and the engine's row, locked."""
    known = models.Engine.objects.filter(id=storable_text(engine_id), wanted=True).select_related("model").first()
    if known is None:
        raise Refused("not_found", f"there is no engine {engine_id!r:.40} that is wanted")
    change = begin(actor, verb, known.model.name, reason=reason, expected_version=expected_version)
    row = models.Engine.objects.select_for_update().filter(pk=known.pk, wanted=True).first()
    if row is None:
        raise Refused("not_found", f"engine {engine_id} is on its way out")
    if row.move_phase in ("leaving", "verifying"):
        raise Refused("busy", f"{row.id} is moving to pool {row.next_role}: wait until it has")
    return change, row


def _left(row: models.Engine) -> Iterator[str]:
    """Whether the pool keeps its floor without this engine. One that does not serve may always go."""
    if row.state != "ready" or row.held:
        return
    peers = models.Engine.objects.filter(
        model=row.model, role=row.role, arm=row.arm, wanted=True, held=False, state="ready", move_phase__in=("", "aborted")
    ).exclude(pk=row.pk)
    pool = models.Pool.objects.filter(model=row.model, role=row.role, arm=row.arm).first()
    left, floor = peers.count(), pool.floor if pool else 0
    if not left and row.model.strict:
        key = pool_key(row.role, row.arm)
        yield f"pool {key} would have 0 serving engines and {row.model.name} is strict: scale it up first"
    elif left < floor:
        yield (
            f"pool {pool_key(row.role, row.arm)} would have {left} serving engines and its floor is {floor}: "
            "scale it up first, or lower its floor"
        )


def retry_engine(actor: Actor, engine_id: str, *, reason: str = "", expected_version: int | None = None) -> models.Operation:
    """Start an engine again that was given up after too many failures."""
    with transaction.atomic():
        known = models.Engine.objects.filter(id=storable_text(engine_id)).select_related("model").first()
        if known is None:
            raise Refused("not_found", f"there is no engine {engine_id!r:.40}")
        begin(actor, "retry_engine", known.model.name, reason=reason, expected_version=expected_version)
        row = models.Engine.objects.select_for_update(of=("self",)).select_related("model").get(pk=known.pk)
        if not (row.wanted and row.state == "failed"):
            raise Refused("invalid", f"{row.id} is {row.state}: only a failed engine that is wanted is tried again")
        models.Engine.objects.filter(pk=row.pk).update(failures=0, retry_at=None)
        before = {"failures": row.failures, "reason": row.reason}
        steps = [NewStep("start", row.role, row.id, row.arm)]
        return record_change("retry_engine", actor, reason, f"engine:{row.id}", model=row.model, before=before, steps=steps)


def _launch_shape(row: models.Engine) -> tuple[str, int, int]:
    return row.kind, row.tensor_parallel, row.launch.get("pipeline_parallel", 1)


def _exchange_problems(one: models.Engine, two: models.Engine) -> list[str]:
    unready = [row for row in (one, two) if row.state != "ready" or not row.wanted]
    problems = [f"{row.id} is {row.state}, not ready: wait until it is" for row in unready]
    problems += [f"{row.id} is held out of the table: undrain_engine {row.id} first" for row in (one, two) if row.held]
    if one.role == two.role:
        problems.append(f"{one.id} and {two.id} both have the role {one.role}: name one of each")
    if one.arm != two.arm:
        problems.append(f"{one.id} serves arm {one.arm} and {two.id} arm {two.arm}: name engines of one arm")
    problems += [f"{row.id} is moving to pool {row.next_role}: wait until it has" for row in (one, two) if row.next_role]
    if _launch_shape(one) != _launch_shape(two):
        problems.append("their launch shapes differ: scale the pools instead, which replaces engines")
    pools = one.model.pools.filter(role__in=(one.role, two.role))
    selectors = {(tuple(pool.gpu_kinds), tuple(sorted(pool.node_labels.items()))) for pool in pools}
    if len(selectors) > 1:
        problems.append("the pools select different GPUs: scale the pools instead, which replaces engines")
    return problems
