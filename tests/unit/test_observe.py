"""What facts make of recorded engines and nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controlplane.core.observe import BACK_OFF_S, MAX_FAILURES, judge_nodes, observe_engine
from controlplane.core.protocol import AgentFact, EngineFact, Rank
from controlplane.core.world import EngineState, NodeState, World

NOW = 1000.0


def told(state: str, **changes: Any) -> EngineFact:
    return replace(EngineFact("e-1", "m", 0, 1, 1, state, "simulated", url="http://h:1"), **changes)


def world(*facts: EngineFact, silent: bool = False, lost: bool = False, link_since: float = 0.0) -> World:
    fact = None if silent else AgentFact("n1", "b", 1, NOW, "h", engines=facts)
    return World(NOW, link_since, nodes=(NodeState("n1", seen_at=1.0, lost=lost, fact=fact),))


def engine(state: str, **changes: Any) -> EngineState:
    known = {"incarnation": 0 if state == "planned" else 1}
    return replace(EngineState("e-1", "m", "mixed", 1, (Rank("n1", ("g",)),), state=state, **known), **changes)


@pytest.mark.parametrize(
    ("recorded", "fact", "state"),
    [
        (engine("planned"), told("starting"), "starting"),
        (engine("planned"), told("ready"), "ready"),
        (engine("starting"), told("verifying"), "verifying"),
        (engine("verifying"), told("ready"), "ready"),
        (engine("ready"), told("draining"), "ready"),
        (engine("ready"), told("stopping"), "stopping"),
        (engine("ready"), told("stopped"), "stopped"),
        (engine("ready"), told("failed"), "failed"),
        (engine("lost"), told("ready"), "ready"),
        (engine("ready", wanted=False), told("ready"), "draining"),
        (engine("draining", wanted=False), told("draining"), "draining"),
        (engine("draining", wanted=False), told("failed"), "stopped"),
        (engine("stopping", wanted=False), told("ready"), "stopping"),
        (engine("stopping", wanted=False), told("stopped"), "stopped"),
        (engine("starting", spec_generation=2), told("failed"), "starting"),
        (engine("lost", spec_generation=2), told("failed"), "starting"),
        (engine("ready", spec_generation=2), told("failed"), "stopped"),
        (engine("ready", spec_generation=2), told("ready"), "ready"),
        (engine("ready", spec_generation=2, incarnation=2), told("starting"), "stopped"),
        (engine("draining", wanted=False, spec_generation=2), told("stopped"), "stopped"),
        (engine("stopping", wanted=False, spec_generation=2), told("failed"), "stopped"),
        (engine("ready"), told("ready", spec_generation=1 << 61), "stopped"),
        (engine("ready"), told("ready", incarnation=1 << 61), "stopped"),
        (engine("ready"), None, "stopped"),
        (engine("planned"), None, "planned"),
        (engine("starting"), None, "starting"),
        (engine("failed"), None, "failed"),
        (engine("stopping", wanted=False), None, "stopped"),
        (engine("stopping", wanted=False, incarnation=0, state_since=NOW - 1), None, "stopping"),
        (engine("stopping", wanted=False, incarnation=0, state_since=NOW - 9), None, "stopped"),
    ],
)
def test_an_engine_becomes_what_its_agent_says(recorded: EngineState, fact: EngineFact | None, state: str) -> None:
    assert observe_engine(recorded, world(*([fact] if fact else []))).state == state


def test_nothing_changes_while_the_node_is_silent_but_not_lost() -> None:
    assert observe_engine(engine("ready"), world(silent=True)) == engine("ready")


def test_engines_of_a_lost_node_are_lost() -> None:
    seen = observe_engine(engine("ready"), world(silent=True, lost=True))
    assert (seen.state, seen.reason) == ("lost", "node n1 is lost")


def test_a_failure_is_counted_once_and_waits_before_the_next_start() -> None:
    failed = told("failed", reason="killed by signal 9", log_tail="out of memory")
    seen = observe_engine(engine("ready"), world(failed))
    assert (seen.failures, seen.retry_at) == (1, NOW + BACK_OFF_S[0])
    assert "killed by signal 9" in seen.reason and "out of memory" in seen.reason
    assert observe_engine(seen, world(failed)) == seen


def test_a_crash_loop_ends_and_says_why() -> None:
    recorded = engine("starting", failures=MAX_FAILURES - 1)
    seen = observe_engine(recorded, world(told("failed", exit_code=3, log_tail="no such model")))
    assert seen.retry_at is None
    assert "given up after 5 failures" in seen.reason
    assert "exit code 3" in seen.reason and "no such model" in seen.reason


def test_failures_are_forgiven_after_a_minute_ready() -> None:
    recorded = engine("ready", failures=3, state_since=NOW - 61)
    assert observe_engine(recorded, world(told("ready"))).failures == 0
    assert observe_engine(replace(recorded, state_since=NOW - 59), world(told("ready"))).failures == 3


def test_an_agent_that_knows_a_newer_generation_is_adopted() -> None:
    seen = observe_engine(engine("planned"), world(told("ready", spec_generation=7, incarnation=4)))
    assert (seen.state, seen.spec_generation, seen.incarnation) == ("ready", 7, 4)


def test_the_incarnation_is_that_of_the_process_that_runs() -> None:
    """A node put back to a snapshot runs an older one; its key is made of that number."""
    assert observe_engine(engine("starting", incarnation=5), world(told("ready", incarnation=3))).incarnation == 3
    assert observe_engine(engine("stopping", incarnation=5), world(told("stopped", incarnation=0))).incarnation == 5


def test_an_engine_of_two_ranks_is_ready_when_both_are() -> None:
    ranks = (Rank("n1", ("g",)), Rank("n1", ("h",)))
    second = replace(told("verifying"), rank=1)
    recorded = engine("verifying", ranks=ranks)
    assert observe_engine(recorded, world(told("ready"), second)).state == "verifying"
    assert observe_engine(recorded, world(told("ready"), replace(second, state="ready"))).state == "ready"
    assert observe_engine(recorded, world(told("ready"), replace(second, state="failed"))).state == "failed"


def nodes(count: int, silent: int, link_since: float = 0.0, lost: bool = False) -> World:
    fact = AgentFact("n", "b", 1, NOW, "h")
    states = (NodeState(f"n{i}", seen_at=1.0, lost=lost, fact=None if i < silent else fact) for i in range(count))
    return World(NOW, link_since, nodes=tuple(states))


@pytest.mark.parametrize(
    ("world", "lost"),
    [
        (nodes(10, 2), True),
        (nodes(10, 3), False),
        (nodes(1, 1), False),
        (nodes(10, 2, link_since=NOW - 14), False),
        (nodes(10, 2, link_since=NOW - 15), True),
        (nodes(10, 9, lost=True), True),
    ],
)
def test_silent_nodes_are_lost_only_if_few_and_our_link_was_healthy(world: World, lost: bool) -> None:
    assert judge_nodes(world)["n0"][0] is lost


def test_a_node_that_speaks_is_not_lost() -> None:
    assert judge_nodes(nodes(2, 0, lost=True)) == {"n0": (False, ""), "n1": (False, "")}


def gang(*facts: EngineFact | None, state: str = "starting", **changes: Any) -> EngineState:
    """An engine of two ranks as it is seen with these facts of its two nodes."""
    row = engine(state, ranks=(Rank("n1", ("g",)), Rank("n2", ("h",))), spec_generation=2, **changes)
    nodes = tuple(
        NodeState(name, seen_at=1.0, fact=AgentFact(name, "b", 1, NOW, "h", engines=(fact,) if fact else ()))
        for name, fact in zip(("n1", "n2"), facts, strict=True)
    )
    return observe_engine(row, World(NOW, 0.0, nodes=nodes))


def test_an_engine_of_two_ranks_waits_for_the_second_and_fails_with_either() -> None:
    ours = told("starting", spec_generation=2)
    first_failed = replace(ours, state="failed", reason="no luck")
    assert gang(ours, None).state == "starting"
    assert gang(ours, None, state="planned").state == "starting"
    assert gang(ours, told("failed", rank=1)).state == "starting", "that was an earlier start"
    for second in (None, told("failed", rank=1)):
        failed = gang(first_failed, second)
        assert (failed.state, failed.failures) == ("failed", 1)
        assert failed.reason.startswith("no luck; starts again")
    both = told("ready", spec_generation=2), told("ready", rank=1, spec_generation=2)
    assert gang(*both, state="verifying").state == "ready"
    dead = gang(both[0], replace(both[1], state="failed"), state="ready")
    assert (dead.state, dead.failures) == ("failed", 1)
    assert gang(None, both[1], state="ready").state == "stopped", "rank 0's agent has forgotten it"


def test_an_engine_of_two_ranks_keeps_its_back_off_while_the_others_stop() -> None:
    ended = told("stopped", spec_generation=2), told("stopped", rank=1, spec_generation=2)
    waiting = gang(*ended, state="failed", failures=1, retry_at=NOW + 5)
    assert (waiting.state, waiting.retry_at) == ("failed", NOW + 5)
