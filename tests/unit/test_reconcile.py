"""One tick's plan, case by case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from controlplane.core.observe import MAX_FAILURES
from controlplane.core.plan import Action, Create, Halt, Release, Restart, Retire, Send
from controlplane.core.pools import REPLACE_LOST_S
from controlplane.core.protocol import AgentFact, EngineFact, ModelRoute, Rank
from controlplane.core.reconcile import UNACKNOWLEDGED_S, reconcile
from controlplane.core.world import EngineState, GpuState, NodeState, PoolState, Sent, World

NOW = 1000.0
POOL = PoolState("m", "mixed", 1)
ENGINE = EngineState("e-1", "m", "mixed", 1, (Rank("n1", ("n1-0",)),), state="ready", state_since=NOW - 90, incarnation=1)


def fact(state: str = "ready", **changes: Any) -> EngineFact:
    return replace(EngineFact("e-1", "m", 0, 1, 1, state, "simulated"), **changes)


def world(engine: EngineState | None = ENGINE, told: EngineFact | None = None, **changes: Any) -> World:
    agent = AgentFact("n1", "b", 1, NOW, "h", engines=(told,) if told else ())
    gpus = tuple(GpuState(f"n1-{i}", "n1", i, "l4", "e-1" if engine and not i else "") for i in range(4))
    base = World(
        NOW,
        0.0,
        models=(ModelRoute("m", "monolithic"),),
        pools=(POOL,),
        nodes=(NodeState("n1", seen_at=1.0, fact=agent),),
        gpus=gpus,
        engines=(engine,) if engine else (),
    )
    return replace(base, **changes)


def actions(state: World) -> list[Action]:
    return list(reconcile(state).actions)


def verbs(state: World) -> list[str]:
    return [each.verb if isinstance(each, Send) else type(each).__name__ for each in actions(state)]


def test_the_plan_of_a_satisfied_desire_is_empty() -> None:
    plan = reconcile(world(told=fact()))
    assert (plan.actions, plan.waiting) == ((), {})


def test_a_missing_engine_is_made_with_a_reason() -> None:
    (create,) = actions(world(engine=None))
    assert isinstance(create, Create)
    assert create.placement.gpus == ("n1-0",)
    assert create.reason == "pool m/mixed wants 1 engine; n1 has room"


def test_two_missing_engines_never_get_the_same_gpu() -> None:
    made = actions(world(engine=None, pools=(replace(POOL, desired=3), replace(POOL, role="decode", desired=1))))
    assert sorted(gpu for each in made if isinstance(each, Create) for gpu in each.placement.gpus) == [
        "n1-0",
        "n1-1",
        "n1-2",
        "n1-3",
    ]


def test_without_room_it_waits_and_says_what_is_missing() -> None:
    plan = reconcile(world(engine=None, pools=(replace(POOL, tensor_parallel=8),)))
    assert plan.actions == ()
    assert "has 4 of 4 fitting GPUs free, 4 too few" in plan.waiting["m/mixed"]


@pytest.mark.parametrize(
    ("engine", "told", "expected"),
    [
        (replace(ENGINE, state="planned", incarnation=0), None, ["start"]),
        (replace(ENGINE, state="starting", state_since=NOW - 1), None, ["start"]),
        (replace(ENGINE, state="starting", state_since=NOW - 1, spec_generation=2), fact("failed"), ["start"]),
        (replace(ENGINE, state="starting", state_since=NOW - UNACKNOWLEDGED_S), None, ["Restart"]),
        (replace(ENGINE, state="starting"), fact("starting"), []),
        (replace(ENGINE, state="stopped"), fact("stopped"), ["Restart"]),
        (replace(ENGINE, state="failed", failures=1, retry_at=NOW + 1), fact("failed"), []),
        (replace(ENGINE, state="failed", failures=1, retry_at=NOW), fact("failed"), ["Restart"]),
        (replace(ENGINE, state="failed", failures=MAX_FAILURES, retry_at=None), fact("failed"), []),
        (replace(ENGINE, state="lost", state_since=NOW - 1), None, []),
        (ENGINE, fact("draining"), ["undrain"]),
    ],
)
def test_a_wanted_engine_is_brought_up(engine: EngineState, told: EngineFact | None, expected: list[str]) -> None:
    assert verbs(world(engine, told)) == expected


@pytest.mark.parametrize(
    ("engine", "told", "expected"),
    [
        (replace(ENGINE, state="planned"), None, ["Halt"]),
        (replace(ENGINE, state="starting"), fact("starting"), ["Halt"]),
        (replace(ENGINE, state="failed"), fact("failed"), ["Halt"]),
        (replace(ENGINE, state="draining"), fact("ready"), ["drain"]),
        (replace(ENGINE, state="draining"), fact("draining"), []),
        (replace(ENGINE, state="stopping"), fact("draining"), ["stop"]),
        (replace(ENGINE, state="stopped"), fact("stopped"), ["Release"]),
        (replace(ENGINE, state="stopped", ranks=(Rank("n1", ()),)), fact("stopped"), []),
        (replace(ENGINE, state="stopped"), fact("starting"), ["stop"]),
        (replace(ENGINE, state="stopped"), fact("failed"), ["stop", "Release"]),
        (replace(ENGINE, state="stopped", ranks=(Rank("n1", ()),)), fact("failed"), ["stop"]),
        (replace(ENGINE, state="lost"), None, []),
    ],
)
def test_an_unwanted_engine_is_brought_down(engine: EngineState, told: EngineFact | None, expected: list[str]) -> None:
    assert verbs(world(replace(engine, wanted=False), told, pools=())) == expected


def test_a_failed_engine_that_is_not_wanted_holds_nothing_up() -> None:
    (halt,) = actions(world(replace(ENGINE, state="failed", wanted=False), fact("failed"), pools=()))
    assert isinstance(halt, Halt) and halt.state == "stopped"


def test_commands_are_not_repeated_within_seconds_but_then_are() -> None:
    planned = replace(ENGINE, state="planned")
    key = Sent("e-1", "start", 1)
    assert verbs(world(planned, sent={key: NOW - 1})) == []
    assert verbs(world(planned, sent={key: NOW - 5})) == ["start"]


def test_nothing_is_sent_to_a_silent_node() -> None:
    plan = reconcile(world(replace(ENGINE, state="planned"), nodes=(NodeState("n1", seen_at=1.0),)))
    assert (plan.actions, plan.waiting) == ((), {"e-1": "its node is silent"})


def test_a_retired_engine_on_a_silent_node_is_not_halted_unheard() -> None:
    state = world(replace(ENGINE, wanted=False), nodes=(NodeState("n1", seen_at=1.0),), pools=())
    plan = reconcile(state)
    assert plan.actions == ()
    assert plan.waiting == {"e-1": "draining: its agent has not scraped it yet"}


def test_an_engine_that_no_row_knows_is_stopped() -> None:
    (send,) = actions(world(told=fact(id="e-9", spec_generation=4), engine=None, pools=()))
    assert isinstance(send, Send)
    assert (send.verb, send.engine, send.generation, send.reason) == ("stop", "e-9", 4, "no row knows it")


def test_an_engine_on_another_node_than_its_row_says_is_stopped_there() -> None:
    elsewhere = NodeState("n2", seen_at=1.0, fact=AgentFact("n2", "b", 1, NOW, "h", engines=(fact(),)))
    state = world(told=fact())
    (send,) = actions(replace(state, nodes=(*state.nodes, elsewhere)))
    assert isinstance(send, Send) and (send.node, send.verb) == ("n2", "stop")


def test_a_smaller_pool_lets_the_newest_and_least_useful_engines_go() -> None:
    others = (replace(ENGINE, id="e-2", number=2), replace(ENGINE, id="e-3", number=3, state="failed", failures=5))
    facts = tuple(fact(id=engine.id) for engine in (ENGINE, *others))
    state = world(told=fact(), engines=(ENGINE, *others))
    state = replace(state, nodes=(replace(state.nodes[0], fact=AgentFact("n1", "b", 1, NOW, "h", engines=facts)),))
    retired = [each.engine for each in actions(state) if isinstance(each, Retire)]
    assert retired == ["e-3", "e-2"]


def test_an_engine_without_a_pool_is_retired() -> None:
    assert verbs(world(told=fact(), pools=())) == ["Retire"]


def test_an_engine_lost_for_long_is_replaced_if_there_is_room() -> None:
    lost = replace(ENGINE, state="lost", state_since=NOW - REPLACE_LOST_S)
    state = world(lost, nodes=(NodeState("n0", seen_at=1.0, lost=True), world().nodes[0]))
    lost_there = replace(lost, ranks=(Rank("n0", ("x",)),))
    assert verbs(replace(state, engines=(lost_there,))) == ["Retire"]
    full = tuple(replace(gpu, engine="e-other") for gpu in state.gpus)
    assert verbs(replace(state, engines=(lost_there,), gpus=full)) == []


def two_ranks(first: str, second: str, first_told: Mapping[str, Any] | None = None, **changes: Any) -> World:
    """An engine with a process on each of two nodes, in these states."""
    ranks = (Rank("n1", ("n1-0",)), Rank("n2", ("n2-0",)))
    engine = replace(ENGINE, ranks=ranks, **changes)
    told = [fact(first, **(first_told or {})), fact(second, rank=1)]
    nodes = tuple(
        NodeState(name, seen_at=1.0, fact=AgentFact(name, "b", 1, NOW, "h", engines=(each,)))
        for name, each in zip(("n1", "n2"), told, strict=True)
    )
    return world(engine, nodes=nodes)


def test_rank_0_of_an_engine_starts_first_and_the_others_are_told_where_it_is() -> None:
    starting = {"state": "starting", "spec_generation": 2, "state_since": NOW}

    def starts(state: World) -> list[tuple[str, int, str]]:
        sends = [send for send in actions(state) if isinstance(send, Send) and send.verb == "start"]
        return [(send.node, send.rank, send.leader) for send in sends]

    assert starts(two_ranks("stopped", "stopped", **starting)) == [("n1", 0, "")]
    ours = {"spec_generation": 2, "side_port": 5600}
    assert starts(two_ranks("starting", "stopped", ours, **starting))[-1] == ("n2", 1, "h:5600")
    assert ("n2", 1, "h:5600") not in starts(two_ranks("failed", "stopped", ours, **starting))
    assert starts(two_ranks("starting", "stopped", {"spec_generation": 2}, **starting)) == [("n1", 0, "")]


def test_one_dead_process_of_an_engine_ends_them_all() -> None:
    one_dead = two_ranks("ready", "failed", state="failed", failures=1, retry_at=NOW)
    assert [(send.node, send.verb) for send in actions(one_dead) if isinstance(send, Send)] == [
        ("n1", "stop"),
        ("n2", "stop"),
    ]
    assert verbs(two_ranks("stopped", "failed", state="failed", failures=1, retry_at=NOW)) == ["Restart"]


def test_restart_and_release_name_what_they_replace() -> None:
    assert actions(world(replace(ENGINE, state="stopped", spec_generation=3), fact("stopped", spec_generation=3))) == [
        Restart("e-1", 3, "it stopped although it is wanted")
    ]
    (release,) = actions(world(replace(ENGINE, state="stopped", wanted=False), fact("stopped"), pools=()))
    assert release == Release("e-1", "it has stopped")
