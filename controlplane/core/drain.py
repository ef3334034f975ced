"""When a draining engine is drained (design.md section 6). Pure.

Drained = every living router has acknowledged a table without the engine, and the engine itself showed no work in two
scrapes a second apart after that, and no router has a handoff open on it or a whole KV lease has passed since its last
prefill leg. A router counts as gone when its fact expired, which is believed only while our own link was healthy that long.
"""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.core.names import FACT_TTL_S
from controlplane.core.protocol import EngineFact, RouterFact
from controlplane.core.world import DrainMark, EngineState, World

QUIET_FOR_S = 1.0


@dataclass(frozen=True)
class Drain:
    """How far a drain is. `mark` is to be handed in again at the next tick; `waits_for` is empty when drained."""

    mark: DrainMark | None
    waits_for: str = ""

    @property
    def done(self) -> bool:
        return not self.waits_for


def drain(engine: EngineState, facts: tuple[EngineFact | None, ...], world: World, kv_lease_s: float) -> Drain:
    """Judge one draining engine."""
    waiting = acknowledged(engine.id, world)
    if waiting:
        return Drain(None, waiting)
    scrape = _oldest_scrape(facts)
    if scrape is None:
        return Drain(None, "its agent has not scraped it yet")
    mark = world.drains.get(engine.id) or DrainMark(acked_scrape=scrape)
    mark = _quiet(mark, facts, scrape)
    if mark.quiet_scrape is None:
        running = sum(fact.running + fact.waiting for fact in facts if fact)
        return Drain(mark, f"{running} requests run or wait" if running else "it must be seen quiet twice")
    if scrape < mark.quiet_scrape + QUIET_FOR_S:
        return Drain(mark, "it must be seen quiet twice")
    return Drain(mark, _handoffs(engine, world, kv_lease_s))


def acknowledged(engine_id: str, world: World) -> str:
    """Empty when no living router can choose this engine any more, else who has yet to acknowledge."""
    if engine_id in world.serving_in_table:
        return "the routing table without it is not published yet"
    if world.now - world.link_since < FACT_TTL_S:
        return "a router may be alive unheard: our own link is younger than the life of a fact"
    late = routers_behind(world.routers, world.stamp)
    return f"router {late[0]} has not acknowledged the table yet" if late else ""


def _oldest_scrape(facts: tuple[EngineFact | None, ...]) -> float | None:
    scrapes = [fact.scraped_at if fact else None for fact in facts]
    known = [scrape for scrape in scrapes if scrape is not None]
    return min(known) if known and len(known) == len(scrapes) else None


def _quiet(mark: DrainMark, facts: tuple[EngineFact | None, ...], scrape: float) -> DrainMark:
    quiet = all(fact and not fact.running and not fact.waiting and fact.quiet_since is not None for fact in facts)
    if not quiet:
        return DrainMark(mark.acked_scrape)
    if mark.quiet_scrape is None and scrape > mark.acked_scrape:
        return DrainMark(mark.acked_scrape, scrape)
    return mark


def _handoffs(engine: EngineState, world: World, kv_lease_s: float) -> str:
    for router in world.routers:
        for load in router.loads:
            if load.engine != engine.id or not load.handoffs:
                continue
            if load.last_prefill_end is None or router.at - load.last_prefill_end < kv_lease_s:
                return f"{load.handoffs} handoffs are open on router {router.router}"
    return ""


def routers_behind(routers: tuple[RouterFact, ...], stamp: tuple[int, int]) -> tuple[str, ...]:
    """Routers that have not applied the table `stamp` yet."""
    return tuple(sorted(fact.router for fact in routers if (fact.epoch, fact.generation) < stamp))
