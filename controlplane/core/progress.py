"""How far an operation is: steps and operations moved along `core.lifecycle` by what the fleet shows. Pure.

Verbs of steps: `start` and `stop` (one engine of the pool `role`; the loop fills in which), `retask` (the engine has its
new `role` and every living router knows).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from controlplane.core.drain import routers_behind
from controlplane.core.lifecycle import OPERATION, STEP, move, observe
from controlplane.core.observe import MAX_FAILURES
from controlplane.core.world import EngineState, World


@dataclass(frozen=True)
class StepState:
    index: int
    verb: str
    role: str
    engine: str
    state: str
    reason: str = ""


@dataclass(frozen=True)
class OperationState:
    id: int
    model: str
    state: str
    steps: tuple[StepState, ...]
    outcome: str = ""


def advance(
    operation: OperationState, world: World, waiting: Mapping[str, str], roles_listed: Mapping[str, str]
) -> OperationState:
    """The operation after this tick. `waiting`: the plan's reasons; `roles_listed`: engine id -> role in the table."""
    engines = {engine.id: engine for engine in world.engines}
    steps = tuple(_step(step, operation.model, engines, world, waiting, roles_listed) for step in operation.steps)
    return _whole(replace(operation, steps=steps))


def _step(
    step: StepState,
    model: str,
    engines: Mapping[str, EngineState],
    world: World,
    waiting: Mapping[str, str],
    roles_listed: Mapping[str, str],
) -> StepState:
    if step.state not in ("waiting", "running"):
        return step
    engine = engines.get(step.engine)
    if engine is None:
        return _unbound(step, model, world, waiting)
    if step.verb == "start":
        return _starting(step, engine)
    if step.verb == "stop":
        return _to(step, "done" if engine.state == "stopped" else "running", waiting.get(engine.id, engine.reason))
    return _retasking(step, engine, world, roles_listed)


def _to(step: StepState, state: str, reason: str) -> StepState:
    return replace(step, state=observe(STEP, step.state, state), reason=reason)


def _unbound(step: StepState, model: str, world: World, waiting: Mapping[str, str]) -> StepState:
    """No engine yet (or its row is gone): skipped if the pool has what it wants without it."""
    members = sum(each.wanted and (each.model, each.role) == (model, step.role) for each in world.engines)
    desired = next((pool.desired for pool in world.pools if (pool.model, pool.role) == (model, step.role)), 0)
    if step.engine or (members >= desired if step.verb == "start" else members <= desired):
        return (
            _to(step, "skipped", "the pool has its size without it")
            if step.state == "waiting"
            else _to(step, "failed", "its engine is gone")
        )
    return replace(step, reason=waiting.get(f"{model}/{step.role}", ""))


def _starting(step: StepState, engine: EngineState) -> StepState:
    if engine.state == "ready":
        return _to(step, "done", "")
    if engine.state == "failed" and engine.failures >= MAX_FAILURES:
        return _to(step, "failed", engine.reason)
    if not engine.wanted:
        return _to(step, "failed", "the engine is not wanted any more")
    return _to(step, "running", engine.reason or f"{engine.id} is {engine.state}")


def _retasking(step: StepState, engine: EngineState, world: World, roles_listed: Mapping[str, str]) -> StepState:
    if engine.role != step.role:
        return _to(step, "failed", f"{engine.id} was given the role {engine.role} meanwhile")
    if roles_listed.get(engine.id) != step.role:
        return _to(step, "running", "the routing table does not list the new role yet")
    behind = routers_behind(world.routers, world.stamp)
    if behind:
        return _to(step, "running", f"router {behind[0]} has not acknowledged the table yet")
    return _to(step, "done", "")


def _whole(operation: OperationState) -> OperationState:
    states = [step.state for step in operation.steps]
    if any(state in ("waiting", "running") for state in states):
        begun = any(state != "waiting" for state in states)
        return replace(operation, state=move(OPERATION, operation.state, "running" if begun else operation.state))
    if states and all(state == "skipped" for state in states):
        return replace(operation, state=observe(OPERATION, operation.state, "cancelled"), outcome=operation.steps[0].reason)
    failed = [step for step in operation.steps if step.state == "failed"]
    state = observe(OPERATION, operation.state, "failed" if failed else "done")
    return replace(operation, state=state, outcome=_outcome(failed, len(states)))


def _outcome(failed: Sequence[StepState], count: int) -> str:
    """The console knows these words and says them in the viewer's language (static/js/feed.js)."""
    noun = "step" if count == 1 else "steps"
    if failed:
        first = failed[0]
        return f"{len(failed)} of {count} {noun} failed: {first.verb} {first.engine}: {first.reason}"[:500]
    return f"{count} {noun} done" if count else "nothing further to do"
