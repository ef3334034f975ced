"""How operations and their steps move along by what the fleet shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controlplane.core.observe import MAX_FAILURES
from controlplane.core.progress import OperationState, Scene, StepState, advance
from controlplane.core.protocol import ModelRoute, RouterFact
from controlplane.core.world import EngineState, PoolState, Target, World

ENGINE = EngineState("e-1", "m", "decode", 1, state="starting")
START = StepState(0, "start", "decode", "e-1", "waiting")
STOP = StepState(0, "stop", "decode", "e-1", "waiting")
RETASK = StepState(0, "retask", "decode", "e-1", "waiting")


def world(*engines: EngineState, desired: int = 1, **changes: Any) -> World:
    return replace(World(1000.0, 0.0, pools=(PoolState("m", "decode", desired),), engines=engines, stamp=(0, 7)), **changes)


def judge(step: StepState, state: World, listed: dict[str, str] | None = None) -> tuple[str, str]:
    scene = Scene(state, {"m/decode": "no room"}, listed or {})
    operation = advance(OperationState(1, "m", "pending", (step,)), scene)
    return operation.state, operation.steps[0].state


@pytest.mark.parametrize(
    ("step", "state", "expected"),
    [
        (START, world(ENGINE), ("running", "running")),
        (START, world(replace(ENGINE, state="ready")), ("done", "done")),
        (START, world(replace(ENGINE, state="failed", failures=1)), ("running", "running")),
        (START, world(replace(ENGINE, state="failed", failures=MAX_FAILURES)), ("failed", "failed")),
        (START, world(replace(ENGINE, wanted=False)), ("failed", "failed")),
        (replace(START, engine=""), world(desired=1), ("pending", "waiting")),
        (replace(START, engine=""), world(ENGINE, desired=1), ("done", "skipped")),
        (START, world(desired=1), ("cancelled", "skipped")),
        (STOP, world(replace(ENGINE, state="draining", wanted=False)), ("running", "running")),
        (STOP, world(replace(ENGINE, state="stopped", wanted=False)), ("done", "done")),
        (replace(STOP, engine=""), world(ENGINE, desired=0), ("pending", "waiting")),
    ],
)
def test_a_step_follows_its_engine(step: StepState, state: World, expected: tuple[str, str]) -> None:
    assert judge(step, state) == expected


def test_a_step_without_an_engine_says_what_it_waits_for() -> None:
    operation = OperationState(1, "m", "pending", (replace(START, engine=""),))
    assert advance(operation, Scene(world(), {"m/decode": "no room"})).steps[0].reason == "no room"


def test_a_retask_is_done_when_every_router_knows() -> None:
    router = RouterFact("r1", "b", 1, 1000.0, 0, 6)
    ready = replace(ENGINE, state="ready")
    assert judge(RETASK, world(ready), {"e-1": "prefill"}) == ("running", "running")
    assert judge(RETASK, world(ready, routers=(router,)), {"e-1": "decode"}) == ("running", "running")
    assert judge(RETASK, world(ready, routers=(replace(router, generation=7),)), {"e-1": "decode"}) == ("done", "done")
    assert judge(RETASK, world(replace(ready, role="prefill")), {"e-1": "prefill"}) == ("failed", "failed")


def test_a_rollback_to_a_mode_whose_pairs_do_not_hand_over_fails_and_says_so() -> None:
    routes = (ModelRoute("m", "monolithic", engines=()),)
    state = world(replace(ENGINE, state="ready"), models=routes, targets={"m": Target("disaggregated")})
    turned = OperationState(1, "m", "rolling_back", (), "taken back by ann")
    assert advance(turned, Scene(state)).state == "rolling_back", "probes are under way"
    ended = advance(turned, Scene(state, problems={"m": "KV did not move from e-1 to e-2"}))
    assert ended.state == "failed"
    assert ended.outcome == "taken back by ann; what was before is not back: KV did not move from e-1 to e-2"


def test_an_operation_without_steps_is_done() -> None:
    assert advance(OperationState(1, "", "pending", ()), Scene(world())).state == "done"


def test_an_operation_whose_steps_nobody_needs_is_done_and_says_why() -> None:
    operation = advance(OperationState(1, "m", "pending", (replace(START, engine=""),)), Scene(world(ENGINE, desired=1)))
    assert (operation.state, operation.outcome) == ("done", "the pool has its size without it")


def test_superseded_steps_cancel_their_operation_and_say_by_whom() -> None:
    steps = tuple(replace(START, index=i, state="skipped", reason="superseded by operation 9") for i in range(2))
    operation = advance(OperationState(1, "m", "running", steps), Scene(world()))
    assert (operation.state, operation.outcome) == ("cancelled", "superseded by operation 9")


def test_a_failed_step_fails_the_operation_once_the_others_have_ended() -> None:
    failed = replace(START, state="failed", reason="no luck")
    running = replace(START, index=1, engine="e-2", state="running")
    operation = OperationState(1, "m", "running", (failed, running))
    other = replace(ENGINE, id="e-2")
    assert advance(operation, Scene(world(ENGINE, other))).state == "running"
    ended = advance(operation, Scene(world(ENGINE, replace(other, state="ready"))))
    assert (ended.state, ended.outcome) == ("failed", "1 of 2 steps failed: start e-1: no luck")
