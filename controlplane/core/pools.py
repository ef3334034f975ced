"""Engines that a model's pools lack, have too many of, or have of an outdated launch: made, moved, retired, replaced. Pure.

Where running engines cannot change over, new ones are made first when GPUs are free; else one goes, and its GPUs are used.
"""

from __future__ import annotations

from controlplane.core.counts import some
from controlplane.core.flip import Flipping, exchange, flip
from controlplane.core.moves import Moves, plan_moves
from controlplane.core.observe import MAX_FAILURES
from controlplane.core.plan import Action, Create, FinishMove, Retire
from controlplane.core.protocol import ROLES_OF_MODE
from controlplane.core.rollout import replace_outdated, stays_usable
from controlplane.core.scope import Scope, serving
from controlplane.core.world import MAIN, EngineState, PoolState, over

REPLACE_LOST_S = 60.0
"""An engine whose node has been lost this long is replaced, if there is room elsewhere."""
MAX_CREATES = 100
"""New engines per plan: the next tick goes on."""


def plan_pools(scope: Scope, flipping: Flipping) -> list[Action]:
    """What one model's pools need now. `flipping`: what becomes of a desired change of its mode."""
    actions: list[Action] = list(flipping.actions)
    moves = plan_moves(scope)
    actions += moves.actions
    for pool in scope.pools:
        actions += _replace_lost(scope, pool)
    created, lacking = _creates(scope, moves)
    actions += created
    for pool in scope.pools:
        actions += _surplus(scope, pool, moves, len(created), lacking)
    if not actions and not lacking and not scope.flipping:
        actions += replace_outdated(scope)
    return actions


def begin_flip(scope: Scope) -> Flipping:
    """Decide on the mode or an exchange, and let `scope` know which engines change places with it."""
    if scope.target.paused:
        return Flipping()
    if scope.target.mode == scope.model.mode:
        return _begin_exchange(scope)
    found = flip(scope)
    scope.places, scope.flipping = found.places, ROLES_OF_MODE[scope.target.mode] != ROLES_OF_MODE[scope.model.mode]
    if found.waits_for:
        scope.waiting[scope.model.name] = f"mode {scope.target.mode}: {found.waits_for}"
    return found


def _begin_exchange(scope: Scope) -> Flipping:
    found = exchange(scope)
    scope.places = found.places
    if found.waits_for:
        scope.waiting.update(dict.fromkeys(found.places, found.waits_for))
    return found


def without_a_pool(scope: Scope, engines: tuple[EngineState, ...]) -> list[Action]:
    """What becomes of wanted engines whose pool does not exist (any more)."""
    keys = {pool.key for pool in scope.pools}
    actions: list[Action] = []
    for engine in engines:
        if engine.wanted and engine.pool not in keys:
            if engine.next_role and (engine.model, engine.role, engine.arm) in keys:
                actions.append(FinishMove(engine.id, engine.role, engine.arm, "the pool it should join is gone"))
            else:
                actions.append(Retire(engine.id, "its pool is gone"))
    return actions


def _creates(scope: Scope, moves: Moves) -> tuple[list[Action], list[PoolState]]:
    """New engines, and the pools for which there is no room."""
    made: list[Action] = []
    lacking: list[PoolState] = []
    for pool in scope.pools:
        for _ in range(moves.missing[pool.key]):
            if scope.room.placed >= MAX_CREATES:
                scope.waiting.setdefault(pool.name, "many engines are to be made: one tick after the other")
                break
            create = create_one(scope, pool)
            if isinstance(create, str):
                scope.waiting[pool.name] = create
                lacking.append(pool)
                break
            made.append(create)
    return made, lacking


def create_one(scope: Scope, pool: PoolState, surge: bool = False) -> Create | str:
    placement, reasons = scope.room.find(pool)
    if placement is None:
        return "; ".join(reasons)
    scope.room.take(pool.model, placement)
    why = f"pool {pool.name} wants {some(pool.desired, 'engine')}; {placement.node} has room"
    return Create(pool.model, pool.role, placement, why, pool.arm, surge)


def _replace_lost(scope: Scope, pool: PoolState) -> list[Action]:
    """Retire engines lost for long where another place exists; the pool's shortage then makes the new one."""
    members = scope.members(pool)
    leaving: list[Action] = []
    for engine in members if len(members) <= pool.desired else ():
        if engine.state == "lost" and over(scope.world.now, engine.state_since, REPLACE_LOST_S):
            placement, _ = scope.room.find(pool)
            if placement is not None:
                scope.room.take(pool.model, placement)
                leaving.append(Retire(engine.id, f"its node has been lost for {REPLACE_LOST_S:.0f} s; it is replaced"))
    return leaving


# --- too many --------------------------------------------------------------------------------------------------------------


def _surplus(scope: Scope, pool: PoolState, moves: Moves, created: int, lacking: list[PoolState]) -> list[Action]:
    """The engines that serve least go first, as those that are held; among serving ones outdated ones, then the newest."""
    order = (
        "given up",
        "held",
        "failed",
        "lost",
        "planned",
        "stopped",
        "stopping",
        "starting",
        "verifying",
        "draining",
        "ready",
    )
    members = [each for each in scope.members(pool) if each.id not in scope.places and each.id not in moves.chosen]
    outdated = any(each.launch != pool.launch and each.serves for each in members)
    spare = [each for each in members if not (outdated and _takes_over(each, pool))]
    spare.sort(key=lambda each: (order.index(_use(each)), each.launch == pool.launch, each.moving, -each.number))
    leaving: list[Action] = []
    for engine in spare[: max(0, -moves.missing[pool.key])]:
        why = _keeps(scope, pool, engine, created, lacking, len(leaving)) if engine.serves else ""
        if why:
            scope.waiting[pool.name] = f"{engine.id} serves on: {why}"
            break
        leaving.append(Retire(engine.id, "its pool was made smaller"))
    return leaving


def _use(engine: EngineState) -> str:
    """One that is held serves nobody, but one that is tried again will."""
    if engine.state == "failed" and engine.failures >= MAX_FAILURES:
        return "given up"
    return "held" if engine.held else engine.state


def _keeps(scope: Scope, pool: PoolState, engine: EngineState, created: int, lacking: list[PoolState], leaving: int) -> str:
    """Why a serving engine that is one too many stays for now."""
    coming = [each for other in scope.pools for each in scope.coming(other)]
    here = serving(scope.members(pool))
    left = len(here) - leaving - 1
    if engine.launch != pool.launch:
        if any(_takes_over(each, pool) for each in scope.members(pool)):
            return "the one in its place does not serve yet"
        if not stays_usable(scope, engine):
            return "no prefill and decode engine of one launch would be left"
    if (created or coming) and not lacking:
        return "other engines of the model start first"
    under_way = _on_their_way_out(scope) + len(coming) + created + leaving
    if lacking and (under_way >= max(1, len(here) // 4) or left < scope.floor(pool)):
        return "one engine after the other makes room for another pool"
    if scope.flipping and pool.arm == MAIN and pool.role in ROLES_OF_MODE[scope.model.mode]:
        return _still_served(scope, pool, engine, left)
    return ""


def _takes_over(engine: EngineState, pool: PoolState) -> bool:
    """It is of the newest launch and does not serve yet: an outdated one serves until it does."""
    return engine.launch == pool.launch and engine.state not in ("ready", "lost")


def _on_their_way_out(scope: Scope) -> int:
    return sum(not each.wanted and each.holds_gpus for each in scope.world.of_model.get(scope.model.name, ()))


def _still_served(scope: Scope, pool: PoolState, engine: EngineState, left: int) -> str:
    """Until the mode has changed, the pools that serve it keep their floors and half of the GPUs."""
    if left < max(1, pool.floor):
        return f"the model is still served as {scope.model.mode}"
    old = [each for each in scope.pools if each.arm == MAIN and each.role in ROLES_OF_MODE[scope.model.mode]]
    new = [each for each in scope.pools if each.arm == MAIN and each.role in ROLES_OF_MODE[scope.target.mode]]
    stay = sum(each.gpu_count for one in old for each in serving(scope.members(one)))
    there = sum(each.gpu_count for one in new for each in scope.members(one))
    return "" if stay - engine.gpu_count >= there else f"half of the GPUs still serve as {scope.model.mode}"
