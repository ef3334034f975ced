"""One model's part of a tick: its pools, their members and what the plan has done for them so far. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controlplane.core.observe import MAX_FAILURES
from controlplane.core.placement import Room, fits
from controlplane.core.protocol import ModelRoute
from controlplane.core.world import EngineState, PoolKey, PoolState, Target, World


@dataclass
class Scope:
    """`waiting` and `room` are shared by the whole plan. `flipping`: a change to a mode of other pools is pending; `places`:
    engines that change pools with it, which counts them there already."""

    world: World
    model: ModelRoute
    target: Target
    pools: tuple[PoolState, ...]
    room: Room
    waiting: dict[str, str]
    places: Mapping[str, PoolKey] = field(default_factory=dict)
    flipping: bool = False

    def members(self, pool: PoolState) -> tuple[EngineState, ...]:
        return self.world.members.get(pool.key, ())

    def missing(self, pool: PoolState) -> int:
        """How many engines it lacks; less than 0: it has too many."""
        members = self.members(pool)
        comes = sum(key == pool.key for key in self.places.values())
        goes = sum(engine.id in self.places for engine in members)
        return pool.desired - len(members) - comes + goes

    def floor(self, pool: PoolState) -> int:
        """Serving engines that must stay in it: fewer only if fewer are desired."""
        return min(pool.floor, pool.desired)

    def coming(self, pool: PoolState) -> list[EngineState]:
        """Members on their way to serve."""
        return [engine for engine in self.members(pool) if comes_up(engine)]

    def fits(self, engine: EngineState, pool: PoolState) -> bool:
        """Whether `engine` could be a member as it runs."""
        if engine.launch != pool.launch:
            return False
        return all(fits(pool, engine.gpu_kind, self.world.node(rank.node)) for rank in engine.ranks)


def comes_up(engine: EngineState) -> bool:
    """It is wanted, does not serve yet, and will if nothing goes wrong."""
    return engine.wanted and engine.state not in ("ready", "lost") and engine.failures < MAX_FAILURES


def serving(engines: tuple[EngineState, ...]) -> list[EngineState]:
    return [engine for engine in engines if engine.serves]
