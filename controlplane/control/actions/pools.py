"""How many engines the pools of a model have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from django.db import transaction

from controlplane.control.actions.change import Change, begin, link, lock_model, lock_models, open_operations
from controlplane.control.actions.sizes import leaving_engines, main_pools, resize, size_problems, size_steps, too_small
from controlplane.control.actor import Actor
from controlplane.control.desire import end
from controlplane.control.newmodel import MAX_ENGINES
from controlplane.control.refused import Refused, refuse_all
from controlplane.core.protocol import ROLES_OF_MODE
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
        steps = size_steps(change)
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
        for each in reversed(older):  # what they have not reached is this one's to reach
            change.old["pools"][role] = each.before.get("pools", {}).get(role, 0)
        pools = main_pools(change.model)
        if role not in pools:
            raise Refused("not_found", f"{name} has no pool {role!r:.40}; pools: {', '.join(pools) or 'none'}")
        needed = role in ROLES_OF_MODE[change.model.mode] and pools[role].desired_engines
        if change.model.strict and needed and not engines:
            raise Refused("unsafe", f"{name} is strict: with 0 engines in pool {role} every request would be refused")
        resize(change.model, {role: engines})
        operation = change.record(steps := size_steps(change), subject=f"pool:{name}/{role}", done=not steps)
        for each in older:
            end(each, "cancelled", f"superseded by operation {operation.pk}")
        return operation


def move_gpus(
    actor: Actor,
    name: str,
    from_role: str,
    to_role: str,
    gpus: int,
    *,
    to_model: str = "",
    reason: str = "",
    expected_version: int | None = None,
) -> models.Operation:
    """Take `gpus` GPUs from one pool and give them to another, of the same model or of `to_model`. Between models each
    gets an operation of its own, and the giver's is returned (`after["partner"]` is the other)."""
    if isinstance(gpus, bool) or not isinstance(gpus, int) or not 1 <= gpus <= MAX_ENGINES:
        raise Refused("invalid", f"gpus: 1 to {MAX_ENGINES}, not {gpus!r:.20}")
    with transaction.atomic():
        lock_models(name, to_model)
        change = begin(actor, "move_gpus", name, reason=reason, expected_version=expected_version)
        gain = begin(actor, "move_gpus", to_model, reason=reason) if to_model not in ("", name) else change
        giver, taker = _pool(change, from_role), _pool(gain, to_role)
        if giver.pk == taker.pk:
            raise Refused("invalid", "a pool cannot give to itself: name two pools")
        refuse_all("invalid", _indivisible(gpus, giver, taker))
        less = {from_role: giver.desired_engines - gpus // giver.gpus_per_engine}
        more = {to_role: taker.desired_engines + gpus // taker.gpus_per_engine}
        refuse_all("unsafe", _gives_too_much(change.model, giver, less[from_role]))
        resize(change.model, less)
        resize(gain.model, more)
        if gain is change:
            return change.record(size_steps(change))
        leaving = leaving_engines(change.model)
        operation = change.record(size_steps(change))
        link(operation, gain.record(size_steps(gain, freed=leaving)))
        return operation


def _pool(change: Change, role: str) -> models.Pool:
    pools = main_pools(change.model)
    if role not in pools:
        raise Refused("not_found", f"{change.model.name} has no pool {role!r:.40}; pools: {', '.join(pools) or 'none'}")
    return pools[role]


def _indivisible(gpus: int, *pools: models.Pool) -> Iterator[str]:
    for pool in pools:
        if gpus % pool.gpus_per_engine:
            yield f"an engine of pool {pool.role} has {pool.gpus_per_engine} GPUs: move a multiple of that, not {gpus}"
    giver = pools[0]
    if gpus > giver.desired_engines * giver.gpus_per_engine:
        yield f"pool {giver.role} has {giver.desired_engines} engines of {giver.gpus_per_engine} GPUs: it cannot give {gpus}"


def _gives_too_much(model: models.Model, giver: models.Pool, left: int) -> Iterator[str]:
    sizes = {role: pool.desired_engines for role, pool in main_pools(model).items()} | {giver.role: left}
    yield from too_small(model, model.mode, sizes, {role: pool.floor for role, pool in main_pools(model).items()})


def _of_the_same_pool(model: models.Model, role: str) -> list[models.Operation]:
    return [
        each
        for each in open_operations(model)
        if each.verb in SUPERSEDED
        and each.state != "rolling_back"
        and not each.steps.filter(state__in=("waiting", "running")).exclude(role=role).exists()
    ]
