"""GPUs that one model takes from another of lower priority, and gives back when it needs them no more. Pure.

Only from pools above their floor, only from models that the planner may touch now, the lowest priority first; of equal ones
the giver that keeps its targets without them. Both forecasts go with the proposal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from controlplane.core.counts import some
from controlplane.core.planner_choice import Choice, choose
from controlplane.core.planner_guards import before_looking
from controlplane.core.planner_inputs import Demand, demand, inside
from controlplane.core.planner_layouts import Layouted
from controlplane.core.planner_moves import moves_between
from controlplane.core.planner_search import Search, present, search_for
from controlplane.core.planner_types import Estimate, FleetNow, Lent, ModelNow, PoolNow, PoolPlan

MOST_GIVEN = 16
"""Engines that one proposal takes."""


@dataclass(frozen=True)
class Trade:
    """`choice` is the taker's with what it takes or gives back."""

    choice: Choice
    takes: tuple[Lent, ...]
    gives_back: tuple[Lent, ...]
    giver_now: Estimate
    giver_then: Estimate
    giver_pools: tuple[PoolPlan, ...]


@dataclass(frozen=True)
class _Offer:
    giver: ModelNow
    pool: PoolNow
    engines: int
    now: Layouted
    then: Layouted
    keeps: bool


def trade(
    model: ModelNow,
    fleet: FleetNow,
    choice: Choice,
    search: Search,
    load: Demand,
    spare: Mapping[str, int],
    decided: frozenset[str],
    now_s: float,
) -> Trade | None:
    """The fewest engines of one lower-priority model with which `model` keeps its targets; None if nobody can help."""
    if search.out_of_reach(model.mode) and not choice.short:
        return None
    offers = [
        offer
        for giver in sorted(fleet.models, key=lambda each: (each.priority, each.name))
        if giver.priority < model.priority and giver.name not in decided and giver.name != model.name
        for offer in _offers(giver, fleet, now_s)
    ]
    for offer in sorted(offers, key=lambda each: (not each.keeps, each.giver.priority, each.engines)):
        grown = {**spare, offer.pool.gpu: spare.get(offer.pool.gpu, 0) + offer.engines * offer.pool.tensor_parallel}
        helped = choose(model, search, load, grown, model.guards.moves_per_hour)
        if helped.best is not None and not helped.short:
            return _taken(model, offer, helped, now_s)
    return None


def _offers(giver: ModelNow, fleet: FleetNow, now_s: float) -> Iterator[_Offer]:
    """What a model could give, one engine more each time."""
    if before_looking(giver, now_s) or inside(giver.guards.freezes, now_s):
        return
    load = demand(giver, now_s)
    if load is None:
        return
    search = search_for(giver, load, fleet.prices)
    before = present(giver.pools)
    now = Layouted(giver.mode, before, search.estimate(giver.mode, before, load.grow))
    for pool in giver.pools:
        for engines in range(1, min(MOST_GIVEN, giver.guards.moves_per_hour, pool.engines - max(1, pool.floor)) + 1):
            pools = tuple(
                replace(each, engines=each.engines - engines) if each.role == pool.role else each for each in before
            )
            then = Layouted(giver.mode, pools, search.estimate(giver.mode, pools, load.grow))
            yield _Offer(giver, pool, engines, now, then, search.keeps(giver.mode, then.estimate))


def _taken(model: ModelNow, offer: _Offer, helped: Choice, now_s: float) -> Trade:
    lent = Lent("", offer.giver.name, model.name, offer.pool.role, offer.engines, now_s)
    count = some(offer.engines, "engine")
    effect = "keeps its targets" if offer.keeps else "misses its targets"
    told = (
        f"No GPU is spare: {count} of {offer.giver.name}/{offer.pool.role} (priority {offer.giver.priority}, below "
        f"{model.priority}) would move, and {offer.giver.name} {effect} without."
    )
    return Trade(
        replace(helped, cause="trade", reasons=(*helped.reasons, told)),
        (lent,),
        (),
        offer.now.estimate,
        offer.then.estimate,
        offer.then.pools,
    )


def give_back(
    model: ModelNow, fleet: FleetNow, search: Search, load: Demand, now_s: float, decided: frozenset[str]
) -> Trade | None:
    """Returns what was taken, once the taker keeps its targets without it at the highest load of late."""
    givers = {each.name: each for each in fleet.models}
    for lent in fleet.lent:
        giver = givers.get(lent.giver)
        if lent.taker != model.name or giver is None or lent.giver in decided or now_s - lent.at_s < model.guards.idle_s:
            continue
        found = _returned(model, giver, lent, fleet, search, load, now_s)
        if found:
            return found
    return None


def _returned(
    model: ModelNow, giver: ModelNow, lent: Lent, fleet: FleetNow, search: Search, load: Demand, now_s: float
) -> Trade | None:
    home = next((pool for pool in giver.pools if pool.role == lent.role), None)
    giver_load = demand(giver, now_s)
    if home is None or giver_load is None:
        return None
    before = present(model.pools)
    now = search.estimate(model.mode, before, load.grow)
    gpus = lent.engines * home.tensor_parallel
    left = [
        Layouted(model.mode, pools, search.estimate(model.mode, pools, load.grow))
        for pools in _without(model, before, home.gpu, gpus)
    ]
    good = [each for each in left if search.keeps(each.mode, each.estimate)]
    if not good:
        return None
    best = min(good, key=lambda each: (each.estimate.strain, moves_between(before, each.pools)))
    theirs = Search(
        giver, giver_load.inputs.mix, giver_load.inputs.burst, giver_load.corrections, fleet.prices, traffic=load.traffic
    )
    had = present(giver.pools)
    gets = tuple(replace(each, engines=each.engines + lent.engines) if each.role == lent.role else each for each in had)
    told = (
        f"It keeps its targets without the {some(gpus, 'GPU')} that {giver.name} lent it: back to {giver.name}/{lent.role}."
    )
    return Trade(
        Choice(now, best, "give_back", (told,), ()),
        (),
        (lent,),
        theirs.estimate(giver.mode, had, giver_load.grow),
        theirs.estimate(giver.mode, gets, giver_load.grow),
        gets,
    )


def _without(model: ModelNow, before: tuple[PoolPlan, ...], kind: str, gpus: int) -> Iterator[tuple[PoolPlan, ...]]:
    """The taker's pools with at least so many GPUs of the kind fewer, floors kept."""
    floors = {pool.role: max(1, pool.floor) for pool in model.pools}
    whole = [pool for pool in before if pool.gpu == kind]
    for pool in whole:
        for other in whole:
            for first in range(pool.engines - floors[pool.role] + 1):
                freed = first * pool.tensor_parallel
                rest = 0 if other is pool or freed >= gpus else -(-(gpus - freed) // other.tensor_parallel)
                if freed + rest * other.tensor_parallel < gpus or other.engines - rest < floors[other.role]:
                    continue
                yield tuple(
                    replace(each, engines=each.engines - (first if each is pool else rest if each is other else 0))
                    for each in before
                )
                break
