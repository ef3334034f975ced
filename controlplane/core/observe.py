"""Facts onto rows: what each node and engine is now, given what was recorded and what agents say. Pure.

Only observed fields change here; what should happen about it is decided in `core.reconcile`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from controlplane.core.lifecycle import ENGINE, OVER, SERVING, observe
from controlplane.core.names import FACT_TTL_S
from controlplane.core.protocol import EngineFact
from controlplane.core.world import EngineState, NodeState, World

MAX_FAILURES = 5
BACK_OFF_S = (1.0, 5.0, 15.0, 30.0)
"""Wait before the next start after that many failures in a row."""
HEALTHY_AFTER_S = 60.0
"""An engine that was ready this long has its failures forgiven."""
UNSEEN_STOP_S = 5.0
"""An engine to be stopped that its agent never mentions counts as stopped after this long: a start still on its way has
arrived before the stop then (one queue, in order)."""
MASS_SILENCE = 0.3
"""From this share of nodes silent together on, the silence is more likely ours or the network's than theirs."""
REASON_LENGTH = 500
MAX_JUMP = 1 << 20
"""Generations and incarnations rise by one per start: an agent that is further ahead of its row is not believed."""


def judge_nodes(world: World) -> dict[str, tuple[bool, str]]:
    """Per node that was seen before: (lost, reason).

    A silent node is lost only if our own link to the facts was healthy for the whole life of a fact, so that a living agent
    would have been heard, and fewer than MASS_SILENCE of the nodes are silent; otherwise it keeps what it was.
    """
    known = [node for node in world.nodes if node.seen_at is not None]
    silent = [node for node in known if node.fact is None]
    link_s = world.now - world.link_since
    hold = ""
    if link_s < FACT_TTL_S:
        hold = f"our own link has been healthy for {link_s:.0f} s only"
    elif silent and len(silent) >= MASS_SILENCE * len(known):
        hold = f"{len(silent)} of {len(known)} nodes went silent together"
    return {node.name: _judge(node, hold) for node in known}


def _judge(node: NodeState, hold: str) -> tuple[bool, str]:
    if node.fact is not None:
        return False, ""
    if node.lost or not hold:
        return True, "its agent's fact expired"
    return False, f"silent, held: {hold}"


def observe_engine(engine: EngineState, world: World) -> EngineState:
    """The engine's row as the facts of this tick make it. Nothing changes while one of its nodes is silent and held."""
    if not engine.ranks or (engine.state == "stopped" and not engine.wanted):
        return engine
    nodes = [world.node(rank.node) for rank in engine.ranks]
    gone = next((node for node in nodes if node is not None and node.lost), None)
    if gone is not None:
        return _lost(engine, gone.name, world.now)
    if not world.heard(engine):
        return engine
    facts = world.reports(engine)
    present = [fact for fact in facts if fact is not None]
    gang = _gang(engine, facts, world.now) if len(facts) > 1 else None
    if gang is not None:
        return gang
    if len(present) < len(facts):
        return _absent(engine, world.now)
    newest = max(fact.spec_generation for fact in present)
    if newest > engine.spec_generation + MAX_JUMP or any(
        fact.incarnation > engine.incarnation + MAX_JUMP for fact in present
    ):
        return _gone(
            engine, "its agent tells of a start with an impossible number: remove its record on the node", world.now
        )
    if newest > engine.spec_generation:
        # Only a database restored from a backup can know less than an agent: go on from the agent's number.
        engine = replace(engine, spec_generation=newest)
    if any(fact.spec_generation < engine.spec_generation for fact in present):
        # They speak of an earlier start; ours has not reached the agent, or got lost with its node or its records.
        if engine.state == "lost":
            return _become(engine, "starting", "its node is back", world.now)
        if all(fact.state in OVER or fact.incarnation < engine.incarnation for fact in present):
            return _gone(engine, "its agent knows only an earlier start of it", world.now)
        return engine
    return _heard(engine, _slowest(present), present[0], world.now)


def _gang(engine: EngineState, facts: Sequence[EngineFact | None], now: float) -> EngineState | None:
    """An engine of several ranks before all of them are of its newest start: one that failed has failed it, and rank 0
    starts first. None: nothing special about it."""
    newest = [fact for fact in facts if fact and fact.spec_generation == engine.spec_generation]
    failed = next((fact for fact in newest if fact.state == "failed"), None)
    if len(newest) == len(facts) or not newest:
        return None
    if failed:
        return _heard(engine, failed, facts[0] or failed, now)
    if engine.state == "planned" and newest[0].state == "starting":
        return _become(engine, "starting", newest[0].reason, now)
    return engine if engine.state == "starting" else None


def _slowest(facts: Sequence[EngineFact]) -> EngineFact:
    """The rank that says most about the whole: a failed one first, then the one furthest from serving."""
    order = ("failed", "stopped", "stopping", "planned", "starting", "verifying", "draining", "ready")
    return min(facts, key=lambda fact: order.index(fact.state) if fact.state in order else 0)


def _lost(engine: EngineState, node: str, now: float) -> EngineState:
    if engine.state in ("planned", "stopped", "lost"):
        return engine
    return _become(engine, "lost", f"node {node} is lost", now)


def _absent(engine: EngineState, now: float) -> EngineState:
    """Its agent is there and does not know it (any more)."""
    if engine.state == "stopping" and engine.incarnation == 0 and now - engine.state_since < UNSEEN_STOP_S:
        return engine
    return _gone(engine, "its agent no longer knows it", now)


def _gone(engine: EngineState, why: str, now: float) -> EngineState:
    """No process of its newest start is left, though one may be on its way."""
    if engine.state in ("planned", "failed", "stopped", "starting"):
        return engine
    return _become(engine, "stopped", "" if engine.state == "stopping" else why, now)


def _heard(engine: EngineState, fact: EngineFact, first: EngineFact, now: float) -> EngineState:
    told: dict[str, Any] = {
        # The number of the process that runs, even if a higher one was seen: the engine's key is made of it.
        "incarnation": first.incarnation or engine.incarnation,
        "url": first.url or engine.url,
        "compat": first.compat or engine.compat,
        "started_at": fact.started_at or engine.started_at,
        "ready_at": fact.ready_at,
    }
    news = any(getattr(engine, name) != value for name, value in told.items())
    seen = replace(engine, **told) if news else engine
    state = _own_view(engine, fact.state)
    if state == "failed" and engine.state != "failed":
        return _failed(seen, fact, now)
    if state != engine.state:
        return _become(seen, state, fact.reason, now)
    if state == "ready" and engine.failures and now - engine.state_since >= HEALTHY_AFTER_S:
        return replace(seen, failures=0, retry_at=None)
    return seen


def _own_view(engine: EngineState, told: str) -> str:
    """`told` by the agent, seen together with what we ourselves decided: draining and stopping are our words."""
    if told == "failed" and not engine.wanted:
        return "stopped"
    if told == "stopped" and engine.state == "failed" and engine.wanted and len(engine.ranks) > 1:
        return "failed"  # its other ranks were stopped since; it waits for its next start
    if engine.state == "stopping" and not engine.wanted and told != "stopped":
        return "stopping"
    if told in SERVING:
        return "ready" if engine.wanted else "draining"
    return told if told != "lost" else engine.state


def _failed(engine: EngineState, fact: EngineFact, now: float) -> EngineState:
    failures = engine.failures + 1
    what = fact.reason or (f"exit code {fact.exit_code}" if fact.exit_code is not None else "it failed")
    tail = f"; its log ends: {fact.log_tail.strip()[-300:]}" if fact.log_tail.strip() else ""
    if failures >= MAX_FAILURES:
        reason = f"given up after {failures} failures (retry_engine {engine.id} tries again): {what}{tail}"
        return replace(_become(engine, "failed", reason, now), failures=failures, retry_at=None)
    wait_s = BACK_OFF_S[min(failures, len(BACK_OFF_S)) - 1]
    reason = f"{what}; starts again in {wait_s:.0f} s{tail}"
    return replace(_become(engine, "failed", reason, now), failures=failures, retry_at=now + wait_s)


def _become(engine: EngineState, state: str, reason: str, now: float) -> EngineState:
    return replace(engine, state=observe(ENGINE, engine.state, state), state_since=now, reason=reason[:REASON_LENGTH])
