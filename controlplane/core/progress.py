"""How far an operation is: steps and operations moved along `core.lifecycle` by what the fleet shows. Pure.

Verbs of steps: `start` and `stop` (one engine of the pool `role` of `arm`), `retask` (an engine has become a member of that
pool without a restart), `switch` (routers have the mode that is desired), `hold` and `release` (the engine is out of the
table and quiet; is back in it), `replace` (the engine has gone, and another is in its place). The loop fills in engines.

An operation of which a step failed is turned round if its verb is one of ROLLS_BACK: what was desired before is desired
again, and it is rolling back until the fleet is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from controlplane.core.drain import routers_behind
from controlplane.core.lifecycle import OPERATION, STEP, move, observe
from controlplane.core.observe import MAX_FAILURES
from controlplane.core.scope import comes_up
from controlplane.core.world import MAIN, EngineState, PoolKey, World

ROLLS_BACK = frozenset(
    {
        *("rebalance", "set_mode", "move_gpus", "exchange_roles", "set_canary", "promote_canary", "roll_out"),
        *("rollback", "apply_model"),
    }
)

UNNEEDED = "the pool has its size without it"
NEWEST = "it is of the newest launch"
"""Why steps are skipped where the fleet is as desired already: an operation of such steps alone is done."""


@dataclass(frozen=True)
class StepState:
    index: int
    verb: str
    role: str
    engine: str
    state: str
    reason: str = ""
    arm: str = MAIN


@dataclass(frozen=True)
class OperationState:
    id: int
    model: str
    state: str
    steps: tuple[StepState, ...]
    outcome: str = ""
    verb: str = ""


@dataclass(frozen=True)
class Scene:
    """What progress is judged by. `waiting` and `problems`: the plan's; `roles` and `modes`: what the newest routing table
    has per engine and model."""

    world: World
    waiting: Mapping[str, str] = field(default_factory=dict)
    roles: Mapping[str, str] = field(default_factory=dict)
    modes: Mapping[str, str] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)


def advance(operation: OperationState, scene: Scene) -> OperationState:
    """The operation after this tick."""
    if operation.state == "rolling_back":
        return _rolling_back(operation, scene)
    return _whole(replace(operation, steps=tuple(_step(step, operation.model, scene) for step in operation.steps)))


def _step(step: StepState, model: str, scene: Scene) -> StepState:
    if step.state not in ("waiting", "running"):
        return step
    if step.verb == "switch":
        return _switching(step, model, scene)
    engine = scene.world.by_id.get(step.engine)
    if step.verb == "replace":
        return _replacing(step, engine, scene)
    if engine is None:
        return _unbound(step, model, scene)
    if step.verb == "start":
        return _starting(step, engine)
    if step.verb == "stop":
        reason = scene.waiting.get(engine.id, engine.reason)
        return _to(step, "done" if engine.state == "stopped" else "running", reason)
    if step.verb in ("hold", "release"):
        return _holding(step, engine, scene)
    return _retasking(step, engine, scene)


def _to(step: StepState, state: str, reason: str) -> StepState:
    return replace(step, state=observe(STEP, step.state, state), reason=reason)


def _unbound(step: StepState, model: str, scene: Scene) -> StepState:
    """No engine yet (or its row is gone): skipped if the pool has what it wants without it."""
    key: PoolKey = (model, step.role, step.arm)
    members = len(scene.world.members.get(key, ()))
    pool = next((pool for pool in scene.world.pools if pool.key == key), None)
    desired = pool.desired if pool else 0
    if step.engine or (members <= desired if step.verb == "stop" else members >= desired):
        return (
            _to(step, "skipped", "its engine is gone" if step.engine else UNNEEDED)
            if step.state == "waiting"
            else _to(step, "failed", "its engine is gone")
        )
    return replace(step, reason=scene.waiting.get(pool.name, "") if pool else "")


def _starting(step: StepState, engine: EngineState) -> StepState:
    if engine.state == "ready":
        return _to(step, "done", "")
    if engine.state == "failed" and engine.failures >= MAX_FAILURES:
        return _to(step, "failed", engine.reason)
    if not engine.wanted:
        return _to(step, "failed", "the engine is not wanted any more")
    return _to(step, "running", engine.reason or f"{engine.id} is {engine.state}")


def _retasking(step: StepState, engine: EngineState, scene: Scene) -> StepState:
    if engine.move_phase == "aborted" and (engine.role, engine.arm) != (step.role, step.arm):
        return _to(step, "failed", engine.reason)
    if not engine.wanted:
        return _to(step, "failed", "the engine is not wanted any more")
    if engine.pool[1:] != (step.role, step.arm):
        return _to(step, "failed", f"{engine.id} was given the role {engine.pool[1]} meanwhile")
    if engine.move_phase == "together" and engine.model in scene.problems:
        return _to(step, "failed", scene.problems[engine.model])
    if engine.next_role:
        return _to(step, "running", scene.waiting.get(engine.id, f"it is {engine.move_phase}"))
    if engine.state == "failed" and engine.failures >= MAX_FAILURES:
        return _to(step, "failed", engine.reason)
    if engine.state != "ready":
        return _to(step, "running", engine.reason or f"{engine.id} is {engine.state}")
    if not engine.held and scene.roles.get(engine.id) != step.role:
        return _to(step, "running", "the routing table does not list the new role yet")
    return _known(step, scene)


def _known(step: StepState, scene: Scene) -> StepState:
    """Done once every living router knows."""
    behind = routers_behind(scene.world.routers, scene.world.stamp)
    if behind:
        return _to(step, "running", f"router {behind[0]} has not acknowledged the table yet")
    return _to(step, "done", "")


def _switching(step: StepState, model: str, scene: Scene) -> StepState:
    route = next((each for each in scene.world.models if each.name == model), None)
    if route is None:
        return _to(step, "failed", "the model is gone")
    mode = scene.world.target(route).mode
    if route.mode != mode:
        if model in scene.problems:
            return _to(step, "failed", scene.problems[model])
        return _to(step, "running", scene.waiting.get(model, f"mode {mode} is not served yet"))
    if scene.modes.get(model) != mode:
        return _to(step, "running", "the routing table does not have the mode yet")
    return _known(step, scene)


def _holding(step: StepState, engine: EngineState, scene: Scene) -> StepState:
    if engine.held != (step.verb == "hold"):
        return _to(step, "failed", f"{engine.id} was {'held' if engine.held else 'released'} meanwhile")
    if step.verb == "release":
        listed = engine.id in scene.world.serving_in_table or not engine.serves
        return _known(step, scene) if listed else _to(step, "running", "the routing table does not list it yet")
    work = scene.world.open_work.get(engine.id, 0)
    facts = scene.world.reports(engine)
    work = max(work, sum(fact.running + fact.waiting for fact in facts if fact))
    if engine.id in scene.world.serving_in_table:
        return _to(step, "running", "the routing table without it is not published yet")
    return _to(step, "running", f"{work} requests run or have KV on it") if work else _known(step, scene)


def _replacing(step: StepState, engine: EngineState | None, scene: Scene) -> StepState:
    """Done when the outdated engine has stopped."""
    if engine is None or (not engine.wanted and engine.state == "stopped"):
        return _to(step, "done", "")
    pool = next((pool for pool in scene.world.pools if pool.key == engine.pool), None)
    if not engine.wanted or pool is None:
        return _to(step, "running", scene.waiting.get(engine.id, engine.reason))
    if engine.launch == pool.launch:
        return _to(step, "skipped" if step.state == "waiting" else "done", NEWEST)
    members = scene.world.members.get(pool.key, ())
    broken = next((each for each in members if each.launch == pool.launch and each.failures >= MAX_FAILURES), None)
    if broken is not None:
        return _to(step, "failed", broken.reason)
    return replace(step, reason=scene.waiting.get(pool.name, ""))


# --- the whole -----------------------------------------------------------------------------------------------------------


def _whole(operation: OperationState) -> OperationState:
    states = [step.state for step in operation.steps]
    failed = [step for step in operation.steps if step.state == "failed"]
    if failed and operation.verb in ROLLS_BACK:
        state = observe(OPERATION, operation.state, "rolling_back")
        return replace(operation, state=state, outcome=_outcome(failed, len(states)))
    if any(state in ("waiting", "running") for state in states):
        begun = operation.state == "pending" and any(state != "waiting" for state in states)
        return replace(operation, state=move(OPERATION, operation.state, "running" if begun else operation.state))
    if states and all(state == "skipped" for state in states):
        state = "done" if all(step.reason in (UNNEEDED, NEWEST) for step in operation.steps) else "cancelled"
        return replace(operation, state=observe(OPERATION, operation.state, state), outcome=operation.steps[0].reason)
    state = observe(OPERATION, operation.state, "failed" if failed else "done")
    return replace(operation, state=state, outcome=_outcome(failed, len(states)))


def _rolling_back(operation: OperationState, scene: Scene) -> OperationState:
    """Over when the fleet is as it was desired before, or as near as it can get."""
    left = next(_left(operation.model, scene), "")
    if not left:
        return replace(operation, state=move(OPERATION, operation.state, "rolled_back"))
    stuck = "" if _under_way(operation.model, scene) else next(_stuck(operation.model, scene), "")
    if stuck:
        outcome = f"{operation.outcome}; what was before is not back: {stuck}"[:500]
        return replace(operation, state=move(OPERATION, operation.state, "failed"), outcome=outcome)
    return operation


def _left(model: str, scene: Scene) -> Iterator[str]:
    """What is not as desired yet."""
    world = scene.world
    for route in world.models:
        if route.name == model and world.target(route).mode != route.mode:
            yield f"mode {route.mode} is still served"
    for pool in world.pools:
        if pool.model == model and len(world.members.get(pool.key, ())) != pool.desired:
            yield f"pool {pool.name} has not its size yet"
    for engine in world.of_model.get(model, ()):
        if engine.moving or comes_up(engine):
            yield f"{engine.id} is {engine.move_phase or engine.state}"


def _under_way(model: str, scene: Scene) -> bool:
    engines = scene.world.of_model.get(model, ())
    return any(engine.moving or comes_up(engine) or (not engine.wanted and engine.holds_gpus) for engine in engines)


def _stuck(model: str, scene: Scene) -> Iterator[str]:
    """What waits for what nothing brings about: pools, and a mode whose pairs were seen not to hand over."""
    if model in scene.problems:
        yield scene.problems[model]
    for pool in scene.world.pools:
        if pool.model == model and pool.name in scene.waiting:
            yield f"{pool.name}: {scene.waiting[pool.name]}"


def _outcome(failed: Sequence[StepState], count: int) -> str:
    """The console knows these words and says them in the viewer's language (static/js/feed.js)."""
    noun = "step" if count == 1 else "steps"
    if failed:
        first = failed[0]
        what = f"{first.verb} {first.engine}" if first.engine else first.verb
        return f"{len(failed)} of {count} {noun} failed: {what}: {first.reason}"[:500]
    return f"{count} {noun} done" if count else "nothing further to do"
