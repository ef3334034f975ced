"""How much of its share an engine gets that has just come into its role. Pure.

It rises in steps, so that a routing table changes seldom, and only where an engine beside it has its whole share already:
among engines that came together nobody would be spared.
"""

from __future__ import annotations

from controlplane.core.world import EngineState, PoolKey, World, over

STEPS = (0.25, 0.5, 0.75)
STEP_S = 1.0


def weights(world: World) -> dict[str, float]:
    """Engine id -> its part of its usual weight, where that is not all of it."""
    pools: dict[PoolKey, list[EngineState]] = {}
    for engine in world.engines:
        if engine.serves:
            pools.setdefault((engine.model, engine.role, engine.arm), []).append(engine)
    found: dict[str, float] = {}
    for engines in pools.values():
        parts = {engine.id: _part(engine, world.now) for engine in engines}
        if max(parts.values()) == 1.0:
            found |= {id: part for id, part in parts.items() if part < 1.0}
    return found


def _part(engine: EngineState, now: float) -> float:
    since = max(engine.state_since, engine.move_since or 0.0)
    return next((part for step, part in enumerate(STEPS, 1) if not over(now, since, step * STEP_S)), 1.0)
