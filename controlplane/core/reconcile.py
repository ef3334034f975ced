"""Desired and observed state in, the steps between them out, each with a reason. Pure; every tick computes it afresh.

The plan of a satisfied desire is empty. Nothing is stopped that could hold a request: a wanted engine is never stopped, an
unwanted one only once `core.drain` says so or if it never served.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from controlplane.core import retask
from controlplane.core.drain import drain
from controlplane.core.lifecycle import OVER, SERVING
from controlplane.core.observe import MAX_FAILURES
from controlplane.core.pairs import further
from controlplane.core.placement import Room
from controlplane.core.plan import Action, Halt, Plan, Release, Restart, Send, Verb
from controlplane.core.pools import begin_flip, plan_pools, without_a_pool
from controlplane.core.scope import Scope
from controlplane.core.world import DrainMark, EngineState, PoolState, Sent, World, over

RESEND_S = 5.0
"""A command not seen to work is sent again after this long: it may have been lost with the broker."""
UNACKNOWLEDGED_S = 30.0
"""A start that the agent never mentioned in this time gets a new generation."""
DEFAULT_LEASE_S = 30.0


def reconcile(world: World) -> Plan:
    """One tick's plan. `world` already holds what `core.observe` made of this tick's facts."""
    actions: list[Action] = []
    waiting: dict[str, str] = {}
    problems: dict[str, str] = {}
    drains: dict[str, DrainMark] = {}
    for engine in world.engines:
        if engine.wanted:
            actions += _wanted(engine, world, waiting)
        else:
            actions += _unwanted(engine, world, waiting, drains)
    actions += _strangers(world)
    actions += _pools(world, waiting, problems)
    return Plan(tuple(actions), waiting, drains, problems)


# --- one engine ----------------------------------------------------------------------------------------------------------


def _wanted(engine: EngineState, world: World, waiting: dict[str, str]) -> Sequence[Action]:
    if engine.moving:
        return retask.go_on(engine, world, waiting)
    if engine.state in ("planned", "starting"):
        return _start(engine, world, waiting)
    if engine.state == "stopped":
        return [Restart(engine.id, engine.spec_generation, engine.reason or "it stopped although it is wanted")]
    if engine.state == "failed":
        return _again(engine, world, waiting)
    if engine.state == "ready" and any(fact and fact.state == "draining" for fact in world.reports(engine)):
        return _send_all(engine, "undrain", "it is wanted again", world)
    return []


def _start(engine: EngineState, world: World, waiting: dict[str, str]) -> Sequence[Action]:
    facts = world.reports(engine)
    if facts and all(fact and fact.spec_generation >= engine.spec_generation for fact in facts):
        return []
    if not world.heard(engine):
        waiting[engine.id] = "its node is silent"
        return []
    if engine.state == "starting" and over(world.now, engine.state_since, UNACKNOWLEDGED_S):
        return [Restart(engine.id, engine.spec_generation, "its agent never acknowledged the start")]
    sends = _send_all(engine, "start", engine.reason or "it is wanted", world)
    if len(engine.ranks) == 1:
        return sends
    # Rank 0 first: the others are told where to join it.
    leader = _leader(engine, world)
    return [replace(send, leader=leader if send.rank else "") for send in sends if leader or not send.rank]


def _leader(engine: EngineState, world: World) -> str:
    """host:port where the engine's other ranks join rank 0; empty while that is not known to run."""
    first, node = world.reports(engine)[0], world.node(engine.ranks[0].node)
    if first is None or first.spec_generation < engine.spec_generation or first.state in OVER:
        return ""
    if not first.side_port or node is None or node.fact is None:
        return ""
    host = node.fact.address
    return f"[{host}]:{first.side_port}" if ":" in host else f"{host}:{first.side_port}"


def _again(engine: EngineState, world: World, waiting: dict[str, str]) -> Sequence[Action]:
    if engine.failures >= MAX_FAILURES:
        waiting[engine.id] = engine.reason
        return []
    left = [fact for fact in world.reports(engine) if fact and fact.state not in OVER]
    if left:
        # One process of several is dead, so the engine is: the others end before all start anew.
        return _send_all(engine, "stop", "another process of it has failed", world)
    if engine.retry_at is not None and world.now < engine.retry_at:
        return []
    why = engine.reason.partition("; starts again")[0]
    return [Restart(engine.id, engine.spec_generation, f"attempt {engine.failures + 1} after: {why}")]


def _unwanted(engine: EngineState, world: World, waiting: dict[str, str], drains: dict[str, DrainMark]) -> Sequence[Action]:
    if engine.state == "stopped":
        return _after_stop(engine, world)
    if engine.state == "stopping":
        return _send_all(engine, "stop", engine.reason or "it is not wanted", world)
    if engine.state == "lost":
        waiting[engine.id] = "its node is lost; it is stopped when the node comes back"
        return []
    if engine.state == "failed":
        return [Halt(engine.id, "stopped", "it is not wanted and has failed")]
    if engine.state not in SERVING:
        return [Halt(engine.id, "stopping", "it is not wanted and serves nobody")]
    lease_s = next((model.kv_lease_s for model in world.models if model.name == engine.model), DEFAULT_LEASE_S)
    judged = drain(engine, world.reports(engine), world, lease_s)
    if judged.mark:
        drains[engine.id] = judged.mark
    if judged.done:
        return [Halt(engine.id, "stopping", "it is drained")]
    waiting[engine.id] = f"draining: {judged.waits_for}"
    if all(fact and fact.state == "ready" for fact in world.reports(engine)):
        return _send_all(engine, "drain", "it is not wanted", world)
    return []


def _after_stop(engine: EngineState, world: World) -> list[Action]:
    """Its GPUs go back once no process is left. Ranks that failed are told too: an agent forgets only what has stopped."""
    facts = world.reports(engine)
    sends = [
        Send(rank.node, engine.id, "stop", max(fact.spec_generation, engine.spec_generation), "it is not wanted", index)
        for index, (rank, fact) in enumerate(zip(engine.ranks, facts, strict=True))
        if fact and fact.state != "stopped"
    ]
    actions: list[Action] = [send for send in sends if _due(send, world)]
    if engine.holds_gpus and all(fact is None or fact.state in OVER for fact in facts):
        actions.append(Release(engine.id, "it has stopped"))
    return actions


def _send_all(engine: EngineState, verb: Verb, reason: str, world: World) -> list[Send]:
    """The command for every rank whose node is heard and was not sent it just now."""
    sends: list[Send] = []
    for index, rank in enumerate(engine.ranks):
        node = world.node(rank.node)
        send = Send(rank.node, engine.id, verb, engine.spec_generation, reason, index)
        if node is not None and node.fact is not None and _due(send, world):
            sends.append(send)
    return sends


def _due(send: Send, world: World) -> bool:
    return over(world.now, world.sent.get(Sent(send.engine, send.verb, send.generation, send.rank)), RESEND_S)


def _strangers(world: World) -> list[Action]:
    """Engines that agents have and no row knows, or knows elsewhere."""
    known = {(rank.node, engine.id, index) for engine in world.engines for index, rank in enumerate(engine.ranks)}
    sends = [
        Send(node.name, fact.id, "stop", fact.spec_generation, "no row knows it", fact.rank)
        for node in world.nodes
        if node.fact is not None
        for fact in node.fact.engines
        if (node.name, fact.id, fact.rank) not in known and fact.state != "stopped"
    ]
    return [send for send in sends if _due(send, world)]


# --- pools ---------------------------------------------------------------------------------------------------------------


def _pools(world: World, waiting: dict[str, str], problems: dict[str, str]) -> list[Action]:
    """Model by model in order. GPUs promised in this plan count as taken."""
    actions: list[Action] = []
    places = ((engine.model, rank.node) for engine in world.engines if engine.wanted for rank in engine.ranks)
    room = Room(world.nodes, world.gpus, places)
    pools: dict[str, list[PoolState]] = {}
    for pool in world.pools:
        pools.setdefault(pool.model, []).append(pool)
    for model in world.models:
        scope = Scope(world, model, world.target(model), tuple(pools.get(model.name, ())), room, waiting)
        actions += without_a_pool(scope, world.of_model.get(model.name, ()))
        if scope.target.paused:
            continue
        flipping = begin_flip(scope)
        if flipping.problem:
            problems[model.name] = flipping.problem
        actions += plan_pools(scope, flipping)
        actions += further(model, world)
    return actions
