"""How many engines the pools of a model have."""

from __future__ import annotations

from collections.abc import Mapping

from django.db import transaction

from controlplane.control.actions.change import begin, lock_model, open_operations
from controlplane.control.actions.sizes import main_pools, resize, size_problems, size_steps, too_small
from controlplane.control.actor import Actor
from controlplane.control.desire import skip_open_steps
from controlplane.control.newmodel import MAX_ENGINES
from controlplane.control.refused import Refused, refuse_all
from controlplane.fleet import models

SUPERSEDED = ("scale_pool", "register_model")
"""Operations that an opposite or further change of the same pool may overtake."""


def rebalance(
    actor: Actor, name: str, sizes: Mapping[str, int], *, reason: str = "", expected_version: int | None = None
) -> models.Operation:
    """Give pools of a model these sizes (engines by role); pools that are not named stay. Engines that one pool loses and
    another gains keep running where both want the same of them.

    Refused if a pool that the model's mode serves from would fall below its floor.
    """
    with transaction.atomic():
        change = begin(actor, "rebalance", name, reason=reason, expected_version=expected_version)
        pools = main_pools(change.model)
        refuse_all("invalid", size_problems(sizes, pools))
        target = {role: pool.desired_engines for role, pool in pools.items()} | dict(sizes)
        floors = {role: pool.floor for role, pool in pools.items()}
        refuse_all("unsafe", too_small(change.model, change.model.mode, target, floors))
        resize(change.model, sizes)
        steps = size_steps(change.model)
        return change.record(steps, done=not steps)


def scale_pool(
    actor: Actor, name: str, role: str, engines: int, *, reason: str = "", expected_version: int | None = None
) -> models.Operation:
    """Make one pool as large as asked, 0 too. Supersedes what is still open of an earlier change of the same pool."""
    if isinstance(engines, bool) or not 0 <= engines <= MAX_ENGINES:
        raise Refused("invalid", f"a pool has 0 to {MAX_ENGINES} engines")
    with transaction.atomic():
        older = _of_the_same_pool(lock_model(name), role)
        change = begin(actor, "scale_pool", name, reason=reason, expected_version=expected_version, supersedes=older)
        pools = main_pools(change.model)
        if role not in pools:
            raise Refused("not_found", f"{name} has no pool {role!r:.40}; pools: {', '.join(pools) or 'none'}")
        others = sum(pool.desired_engines for key, pool in pools.items() if key != role)
        if change.model.strict and not engines and others:
            raise Refused("unsafe", f"{name} is strict: with 0 engines in pool {role} every request would be refused")
        resize(change.model, {role: engines})
        operation = change.record(steps := size_steps(change.model), subject=f"pool:{name}/{role}", done=not steps)
        for each in older:
            steps_of_pool = each.steps.filter(role=role, arm=models.MAIN)
            skip_open_steps(steps_of_pool, f"superseded by operation {operation.pk}")
        return operation


def _of_the_same_pool(model: models.Model, role: str) -> list[models.Operation]:
    return [
        each
        for each in open_operations(model)
        if each.verb in SUPERSEDED and not each.steps.filter(state__in=("waiting", "running")).exclude(role=role).exists()
    ]
