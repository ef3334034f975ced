"""Too many engines in one pool of a model and too few in another: which of them change over as they run. Pure.

Running engines are preferred over starting new ones. At most a quarter of a pool's serving engines (one at least) are on
their way at once, and its floor stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from controlplane.core.counts import some
from controlplane.core.plan import Action, BeginMove, FinishMove
from controlplane.core.protocol import ROLES_OF_MODE
from controlplane.core.retask import AGAIN_S
from controlplane.core.scope import Scope, serving
from controlplane.core.world import MAIN, EngineState, PoolKey, PoolState, over

MOVABLE_UNSEEN = ("planned", "starting", "verifying")
"""States in which an engine's role can be changed at once: no router knows it yet."""


@dataclass
class Moves:
    """`missing`: what each pool lacks (more than 0) or has too many (less) once all moves that are due are made, now or
    later."""

    missing: dict[PoolKey, int]
    actions: list[Action] = field(default_factory=list)
    chosen: set[str] = field(default_factory=set)
    """Engines that move, now or later."""
    begun: dict[PoolKey, int] = field(default_factory=dict)


def plan_moves(scope: Scope) -> Moves:
    """Moves that begin now, and those to come taken into account."""
    moves = Moves({pool.key: scope.missing(pool) for pool in scope.pools})
    for to in scope.pools:
        for source in scope.pools:
            if source is not to:
                _between(scope, source, to, moves)
    return moves


def _between(scope: Scope, source: PoolState, to: PoolState, moves: Moves) -> None:
    for engine in _candidates(scope, source, to):
        if moves.missing[to.key] <= 0 or moves.missing[source.key] >= _no_use(scope, source):
            return
        if engine.id in moves.chosen or not scope.fits(engine, to):
            continue
        moves.chosen.add(engine.id)
        moves.missing[to.key] -= 1
        moves.missing[source.key] += 1
        why = f"pool {to.name} wants {some(to.desired, 'engine')}, pool {source.name} {source.desired}"
        if engine.moving or engine.state != "ready":
            moves.actions.append(FinishMove(engine.id, to.role, to.arm, why))
        elif engine.held or _allowed(scope, source, moves):
            moves.begun[source.key] = moves.begun.get(source.key, 0) + (not engine.held)
            moves.actions.append(BeginMove(engine.id, to.role, to.arm, why))
        else:
            scope.waiting[to.name] = f"{engine.id} follows from pool {source.name} when others have moved"


def _no_use(scope: Scope, source: PoolState) -> int:
    """`missing` at which no more engines leave `source` by moves: those too many that are of no use go first."""
    return -sum(each.state not in ("ready", *MOVABLE_UNSEEN) for each in scope.members(source))


def _candidates(scope: Scope, source: PoolState, to: PoolState) -> Iterator[EngineState]:
    """Who turns back first, then who is not in use yet, then who has least to finish; among equals the newest. One that is
    held out of the table goes where the serving ones are needed to keep the floor."""
    members = scope.members(source)
    yield from (each for each in members if each.moving and (each.role, each.arm) == (to.role, to.arm))
    still = [each for each in members if not each.moving and not each.held and each.id not in scope.places]
    unseen = [each for each in still if each.state in MOVABLE_UNSEEN]
    if scope.flipping and source.arm == MAIN and source.role in ROLES_OF_MODE[scope.model.mode]:
        yield from unseen
        return  # the others change over with the mode, or keep serving it until then
    work, now = scope.world.open_work, scope.world.now
    ready = (each for each in still if each.serves and (each.move_phase != "aborted" or over(now, each.move_since, AGAIN_S)))
    useful = unseen + sorted(ready, key=lambda each: (work.get(each.id, 0), -each.number))
    spare = max(0, len(unseen) + len(serving(members)) - scope.floor(source))
    yield from useful[:spare]
    yield from (each for each in members if each.held and each.state == "ready" and not each.moving)
    yield from useful[spare:]


def _allowed(scope: Scope, source: PoolState, moves: Moves) -> bool:
    engines = scope.world.of_model.get(source.model, ())
    away = sum(each.moving and each.wanted and (each.role, each.arm) == (source.role, source.arm) for each in engines)
    away += moves.begun.get(source.key, 0)
    left = len(serving(scope.members(source))) - moves.begun.get(source.key, 0)
    return away < max(1, (left + away) // 4) and left - 1 >= scope.floor(source)
