"""Engines that get new places in one routing table: with another mode of their model, or in exchange for each other's. Pure.

Engines that can be used in a new mode as they run change places in the same moment as the mode, so that no table lies in
between; their pairs are proven while they serve as before. Where they cannot (another launch, other GPUs, too few of them),
the new pools are filled first, as far as the floors of the old ones allow, and the mode follows. Engines that exchange
roles, and of which no pool can spare one, do the same without another mode.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from controlplane.core.counts import some
from controlplane.core.pairs import FAILED_AGAIN_S, ask, judge
from controlplane.core.plan import Action, Flip
from controlplane.core.protocol import ROLES_OF_MODE
from controlplane.core.scope import Scope, comes_up, serving
from controlplane.core.world import MAIN, EngineState, PoolKey, PoolState, over


@dataclass(frozen=True)
class Flipping:
    """`places`: where engines go with it. `problem`: why it cannot be, as things are."""

    actions: tuple[Action, ...] = ()
    places: Mapping[str, PoolKey] = field(default_factory=dict)
    waits_for: str = ""
    problem: str = ""


Pair = tuple[EngineState, EngineState]


def flip(scope: Scope) -> Flipping:
    """What is to be done about a desired mode that is not served yet."""
    wanted, served = ROLES_OF_MODE[scope.target.mode], ROLES_OF_MODE[scope.model.mode]
    places = {} if wanted == served else _places(scope, wanted)
    after = {pool.role: _after(scope, pool, places) for pool in _main(scope, wanted)}
    now = [each for pool in _main(scope, served) for each in scope.members(pool) if each.serves or comes_up(each)]
    go = Flip(scope.model.name, scope.target.mode, _moved(places), f"mode {scope.target.mode} is desired")
    if not now:
        return Flipping((go,), places)
    missing = _missing(scope, wanted, after) or _too_early(scope, wanted, after, places)
    if missing:
        return Flipping((), places, missing)
    if wanted == served or scope.target.mode == "monolithic" or scope.model.connector == "none":
        return Flipping((go,), places)
    pairs = _matched(after["prefill"], after["decode"])
    if not pairs:
        return Flipping((), places, "no prefill and decode engine are compatible")
    return _proven(scope, pairs, places, go)


def exchange(scope: Scope) -> Flipping:
    """What is to be done about engines that are to get their new places together (phase `together`). Each that has a
    counterpart there is proven with one, as for a new mode."""
    members = [each for pool in scope.pools for each in scope.members(pool)]
    places = {each.id: each.pool for each in members if each.move_phase == "together"}
    absent = next((each for each in members if each.id in places and each.state != "ready"), None)
    if not places or absent:
        return Flipping((), places, f"{absent.id} is {absent.state}" if absent else "")
    go = Flip(scope.model.name, scope.model.mode, _moved(places), "engines exchange their roles")
    if scope.model.connector == "none":
        return Flipping((go,), places)
    arms = {arm for _, _, arm in places.values()}
    there = [each for each in members if each.pool[2] in arms and each.state == "ready" and not each.moving]
    prefill, decode = ([each for each in there if each.pool[1] == role] for role in ("prefill", "decode"))
    pairs = [pair for pair in _matched(prefill, decode) if any(each.id in places for each in pair)]
    return _proven(scope, pairs, places, go)


def _proven(scope: Scope, pairs: Sequence[Pair], places: Mapping[str, PoolKey], go: Flip) -> Flipping:
    """`go` once KV was seen to move between each of these pairs."""
    world = scope.world
    probes: list[Action] = []
    problem, verified = "", 0
    for prefill, decode in pairs:
        known = world.pair(prefill.id, decode.id)
        verdict = judge(known, scope.target.since)
        verified += verdict == "verified"
        if known and verdict == "failed":
            problem = problem or f"KV did not move from {prefill.id} to {decode.id}: {known.reason}"
        if verdict == "open" or (known and verdict == "failed" and over(world.now, known.at, FAILED_AGAIN_S)):
            probes += ask(world, prefill, decode, go.reason)
    if verified == len(pairs):
        return Flipping((go,), places)
    return Flipping(tuple(probes), places, problem or f"{verified} of {len(pairs)} pairs are verified", problem)


def _main(scope: Scope, roles: Iterable[str]) -> list[PoolState]:
    return [pool for pool in scope.pools if pool.arm == MAIN and pool.role in roles]


def _places(scope: Scope, roles: Sequence[str]) -> dict[str, PoolKey]:
    """Which engines of the old pools become members of which new ones: always to the pool that is furthest from its size."""
    new = _main(scope, roles)
    old = [pool for pool in scope.pools if pool.arm == MAIN and pool.role not in roles]
    free = [each for pool in old for each in scope.members(pool) if each.state == "ready" and not each.moving]
    sizes = {pool.key: len(scope.members(pool)) for pool in new}
    places: dict[str, PoolKey] = {}
    for engine in sorted(free, key=lambda each: (each.held, each.number)):
        fitting = [pool for pool in new if sizes[pool.key] < pool.desired and scope.fits(engine, pool)]
        if fitting:
            to = min(fitting, key=lambda pool: sizes[pool.key] / pool.desired)
            sizes[to.key] += 1
            places[engine.id] = to.key
    return places


def _moved(places: Mapping[str, PoolKey]) -> tuple[tuple[str, str, str], ...]:
    return tuple((id, role, arm) for id, (_, role, arm) in places.items())


def _after(scope: Scope, pool: PoolState, places: Mapping[str, PoolKey]) -> list[EngineState]:
    """Who would serve in `pool` right after it, by number."""
    comes = [scope.world.by_id[id] for id, key in places.items() if key == pool.key]
    return sorted((each for each in (*scope.members(pool), *comes) if each.serves), key=lambda each: each.number)


def _missing(scope: Scope, roles: Sequence[str], after: Mapping[str, list[EngineState]]) -> str:
    for role in roles:
        pool = next((pool for pool in _main(scope, (role,))), None)
        if pool is None:
            return f"it has no pool {role}"
        need = max(1, scope.floor(pool))
        if len(after[role]) < need:
            return f"pool {pool.name} has {len(after[role])} of {some(need, 'engine')} ready"
    return ""


def _too_early(
    scope: Scope, roles: Sequence[str], after: Mapping[str, list[EngineState]], places: Mapping[str, PoolKey]
) -> str:
    """While the new pools are being filled and have less of the GPUs than is left to the old ones."""
    if all(len(after[pool.role]) >= pool.desired for pool in _main(scope, roles)):
        return ""
    old = [pool for pool in scope.pools if pool.arm == MAIN and pool.role not in roles]
    left = sum(each.gpu_count for pool in old for each in serving(scope.members(pool)) if each.id not in places)
    there = sum(each.gpu_count for engines in after.values() for each in engines)
    return f"the new pools have {there} GPUs ready, the old ones {left}" if there < left else ""


def _matched(prefill: Sequence[EngineState], decode: Sequence[EngineState]) -> list[Pair]:
    """Pairs of equal compat in which each engine that has a counterpart is at least once."""
    pairs: list[Pair] = []
    for compat in sorted({each.compat for each in prefill} & {each.compat for each in decode}):
        left = [each for each in prefill if each.compat == compat]
        right = [each for each in decode if each.compat == compat]
        pairs += [(left[i % len(left)], right[i % len(right)]) for i in range(max(len(left), len(right)))]
    return pairs
