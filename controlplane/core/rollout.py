"""Engines of an outdated launch are replaced, one after the other, while the model serves on. Pure.

The pool that has the smallest part renewed comes first: only engines of equal `compat` are paired, so that prefill and
decode have to be renewed side by side. A new engine is started first when GPUs are free; else an old one goes if the floor
allows.
"""

from __future__ import annotations

from controlplane.core.observe import MAX_FAILURES
from controlplane.core.plan import Action, Create, Retire
from controlplane.core.protocol import ROLES_OF_MODE
from controlplane.core.scope import Scope, comes_up, serving
from controlplane.core.world import EngineState, PoolState


def replace_outdated(scope: Scope) -> list[Action]:
    """The next replacement, when nothing else of the model is under way."""
    outdated = {pool.key: _outdated(scope, pool) for pool in scope.pools}
    idle = [each for engines in outdated.values() for each in engines if not each.serves and each.state != "lost"]
    if idle:
        return [Retire(each.id, "it is of an outdated launch and serves nobody") for each in idle]
    broken = next((each for pool in scope.pools for each in scope.members(pool) if _given_up(each, pool)), None)
    if broken is not None and any(outdated.values()):
        scope.waiting[scope.model.name] = f"{broken.id} of the newest launch does not start: {broken.reason}"
        return []
    engines = scope.world.of_model.get(scope.model.name, ())
    if any(comes_up(each) or each.moving or (not each.wanted and each.holds_gpus) for each in engines):
        return []
    for pool in sorted((pool for pool in scope.pools if outdated[pool.key]), key=lambda pool: _renewed(scope, pool)):
        if scope.missing(pool) == 0:
            action = _next(scope, pool, outdated[pool.key])
            if action is not None:
                return [action]
    return []


def _outdated(scope: Scope, pool: PoolState) -> list[EngineState]:
    return [engine for engine in scope.members(pool) if engine.launch != pool.launch]


def _given_up(engine: EngineState, pool: PoolState) -> bool:
    return engine.launch == pool.launch and engine.state == "failed" and engine.failures >= MAX_FAILURES


def _renewed(scope: Scope, pool: PoolState) -> float:
    return 1 - len(_outdated(scope, pool)) / max(1, len(scope.members(pool)))


def _next(scope: Scope, pool: PoolState, outdated: list[EngineState]) -> Action | None:
    placement, reasons = scope.room.find(pool)
    if placement is not None:
        scope.room.take(pool.model, placement)
        return Create(pool.model, pool.role, placement, "it takes the place of an outdated engine", pool.arm, surge=True)
    if len(serving(scope.members(pool))) - 1 < scope.floor(pool):
        scope.waiting[pool.name] = f"its floor of {pool.floor} keeps its outdated engines until there is room: {reasons[0]}"
        return None
    why_not = "no prefill and decode engine of one launch would be left"
    for engine in outdated:
        if stays_usable(scope, engine):
            placement, reasons = scope.room.find_without(pool, engine.id)
            if placement is not None:
                return Retire(engine.id, "it is of an outdated launch; its GPUs are needed for the one in its place")
            why_not = f"{engine.id} serves on, as there would be no room for the one in its place: {'; '.join(reasons)}"
    scope.waiting[pool.name] = why_not
    return None


def stays_usable(scope: Scope, engine: EngineState) -> bool:
    """Whether, without `engine`, its arm has a prefill and a decode engine that fit each other, if it has them now."""
    if "prefill" not in ROLES_OF_MODE[scope.model.mode] or engine.role == "mixed":
        return True
    engines = [each for each in scope.world.of_model.get(scope.model.name, ()) if each.serves and each.arm == engine.arm]
    return not _paired(engines) or _paired([each for each in engines if each.id != engine.id])


def _paired(engines: list[EngineState]) -> bool:
    sides = ({each.compat for each in engines if each.role == role} for role in ("prefill", "decode"))
    return bool(set.intersection(*sides))
