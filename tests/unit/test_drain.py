"""When a draining engine may be stopped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controlplane.core.drain import drain
from controlplane.core.protocol import AgentFact, EngineFact, EngineLoad, Rank, RouterFact
from controlplane.core.world import DrainMark, EngineState, NodeState, World

NOW = 1000.0
ENGINE = EngineState("e-1", "m", "decode", 1, (Rank("n1", ("g",)),), wanted=False, state="draining")
QUIET = EngineFact("e-1", "m", 0, 1, 1, "draining", "simulated", quiet_since=NOW - 30, scraped_at=NOW - 1)
ROUTER = RouterFact("r1", "b", 1, NOW, 0, 7)
MARK = DrainMark(acked_scrape=NOW - 4, quiet_scrape=NOW - 2)


def world(fact: EngineFact = QUIET, routers: tuple[RouterFact, ...] = (ROUTER,), **changes: Any) -> World:
    node = NodeState("n1", seen_at=1.0, fact=AgentFact("n1", "b", 1, NOW, "h", engines=(fact,)))
    base = World(NOW, 0.0, nodes=(node,), engines=(ENGINE,), routers=routers, stamp=(0, 7), drains={"e-1": MARK})
    return replace(base, **changes)


def judge(state: World) -> str:
    return drain(ENGINE, state.reports(ENGINE), state, kv_lease_s=30.0).waits_for


def load(handoffs: int, last_prefill_end: float | None) -> tuple[RouterFact, ...]:
    return (replace(ROUTER, loads=(EngineLoad("e-1", 1, handoffs=handoffs, last_prefill_end=last_prefill_end),)),)


def test_it_is_drained_when_all_three_conditions_hold() -> None:
    assert judge(world()) == ""


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (world(serving_in_table=frozenset({"e-1"})), "the routing table without it is not published yet"),
        (world(routers=(replace(ROUTER, generation=6),)), "router r1 has not acknowledged the table yet"),
        (world(link_since=NOW - 5), "a router may be alive unheard"),
        (world(replace(QUIET, running=2, quiet_since=None)), "2 requests run or wait"),
        (world(replace(QUIET, quiet_since=None)), "it must be seen quiet twice"),
        (world(replace(QUIET, scraped_at=None)), "its agent has not scraped it yet"),
        (world(drains={"e-1": DrainMark(NOW - 4, NOW - 1)}), "it must be seen quiet twice"),
        (world(drains={}), "it must be seen quiet twice"),
        (world(routers=load(1, NOW - 10)), "1 handoffs are open on router r1"),
        (world(routers=load(1, None)), "1 handoffs are open on router r1"),
    ],
)
def test_otherwise_it_says_what_it_waits_for(state: World, reason: str) -> None:
    assert reason in judge(state)


@pytest.mark.parametrize(
    "routers",
    [(), load(0, NOW - 1), load(1, NOW - 31), (replace(ROUTER, epoch=1, generation=1),)],
    ids=["no router lives", "no handoff", "the lease has passed", "a newer table"],
)
def test_these_routers_do_not_hold_it_back(routers: tuple[RouterFact, ...]) -> None:
    assert judge(world(routers=routers)) == ""


def test_only_scrapes_after_the_acknowledgement_count() -> None:
    """An engine idle for long must still be seen idle after the last router let go of it."""
    state = world(drains={})
    marks = []
    for scraped_at in (NOW - 1, NOW, NOW + 1):
        state = world(replace(QUIET, scraped_at=scraped_at), drains=state.drains)
        judged = drain(ENGINE, state.reports(ENGINE), state, kv_lease_s=30.0)
        assert judged.mark is not None
        state = replace(state, drains={"e-1": judged.mark})
        marks.append(judged.done)
    assert marks == [False, False, True]


def test_work_that_returns_starts_the_measure_again() -> None:
    judged = drain(ENGINE, (replace(QUIET, running=1, quiet_since=None),), world(), kv_lease_s=30.0)
    assert judged.mark == DrainMark(MARK.acked_scrape, None)
