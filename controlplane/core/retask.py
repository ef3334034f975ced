"""Moves of running engines between the pools of one model. Pure.

Out of the table -> every router knows, its work is done or patience has passed (a late leg is still answered right), and a
probe each way has shown that KV moves -> the new role. Any failure restores the old one. A change of arm needs no probe.
"""

from __future__ import annotations

from collections.abc import Iterator

from controlplane.core.drain import routers_behind
from controlplane.core.pairs import ask, behind_others, judge
from controlplane.core.plan import AbortMove, Action, FinishMove, Verify
from controlplane.core.world import EngineState, World, over

PHASES = ("", "leaving", "verifying", "together", "aborted")
"""How far an engine's move is. leaving: it takes no new work and finishes what it has; verifying: it has, and probes
still see whether KV moves to and from it; together: it serves as before until KV was seen to move as it will be used, and
changes over with others in one table (core.flip); aborted: the last move failed (Engine.reason says why) and it serves as
before."""
PATIENCE_S = 5.0
"""An engine leaves its old role at most this long, whatever it still has to do there."""
LONG_S = 1.0
"""Only a move that takes longer than this is told to be verifying: at once most are done."""
VERIFY_S = 60.0
"""A move that is not verified by then is given up, unless a probe of it waits behind others (at most handoff.QUEUED_S)."""
AGAIN_S = 60.0
"""An engine whose move failed is not moved again so soon."""


def go_on(engine: EngineState, world: World, waiting: dict[str, str]) -> list[Action]:
    """The next actions of an engine that moves. `waiting` gets what it waits for."""
    if engine.state == "lost":
        waiting[engine.id] = "its node is lost"
        return []
    if engine.state != "ready":
        return [_finish(engine, "it serves nobody now")]
    if (engine.next_role, engine.next_arm) == (engine.role, engine.arm):
        return [_finish(engine, "it is wanted where it is")]
    pairs = list(needed(engine, world))
    known = [world.pair(prefill.id, decode.id) for prefill, decode in pairs]
    failed = next((pair for pair in known if pair and judge(pair) == "failed"), None)
    if failed is not None:
        return [AbortMove(engine.id, f"KV did not move from {failed.prefill} to {failed.decode}: {failed.reason}")]
    unproven = [pair for pair, what in zip(pairs, known, strict=True) if judge(what) != "verified"]
    if engine.move_phase == "leaving":
        return _leave(engine, unproven, world, waiting)
    if not unproven:
        return [_finish(engine, "KV was seen to move" if pairs else "no engine is left to verify it with")]
    behind = next(filter(None, map(behind_others, known)), "")
    if over(world.now, engine.move_since, VERIFY_S) and not behind:
        return [AbortMove(engine.id, f"no probe with {' or '.join(_others(engine, unproven))} ended in {VERIFY_S:.0f} s")]
    waiting[engine.id] = f"KV is sent between it and {' and '.join(_others(engine, unproven))}{behind and f': {behind}'}"
    return _questions(unproven, world)


def _leave(
    engine: EngineState, unproven: list[tuple[EngineState, EngineState]], world: World, waiting: dict[str, str]
) -> list[Action]:
    """Its pairs are asked from the start: what they show does not depend on the table, and it is out of service no longer
    than the slower of the two."""
    questions = _questions(unproven, world)
    busy = _busy(engine, world)
    if busy and not over(world.now, engine.move_since, PATIENCE_S):
        waiting[engine.id] = busy
        return questions
    if not unproven:
        return [_finish(engine, busy or "it has let go of its work, and nothing is left to verify")]
    if over(world.now, engine.move_since, LONG_S):
        return [Verify(engine.id, busy or "it has let go of its work"), *questions]
    waiting[engine.id] = f"KV is sent between it and {' and '.join(_others(engine, unproven))}"
    return questions


def _others(engine: EngineState, pairs: list[tuple[EngineState, EngineState]]) -> list[str]:
    return sorted({each.id for pair in pairs for each in pair if each.id != engine.id})


def _questions(pairs: list[tuple[EngineState, EngineState]], world: World) -> list[Action]:
    return [probe for prefill, decode in pairs for probe in ask(world, prefill, decode, "one of them is given a new role")]


def _finish(engine: EngineState, reason: str) -> FinishMove:
    return FinishMove(engine.id, engine.next_role or engine.role, engine.next_arm or engine.arm, reason)


def _busy(engine: EngineState, world: World) -> str:
    """What keeps it in its old role, empty when nothing does. Who cannot be heard does not: a late leg is answered right."""
    if engine.id in world.serving_in_table:
        return "the routing table without it is not published yet"
    behind = routers_behind(world.routers, world.stamp)
    if behind:
        return f"router {behind[0]} has not acknowledged the table yet"
    work = world.open_work.get(engine.id, 0)
    return f"{work} requests run or have KV on it" if work else ""


def needed(engine: EngineState, world: World) -> Iterator[tuple[EngineState, EngineState]]:
    """(prefill, decode) pairs to be proven before it has its new role: both ways when it changes sides; from mixed the way
    it will be used; for mixed, without a connector and without anybody to pair it with, none."""
    connector = next((model.connector for model in world.models if model.name == engine.model), "none")
    old, new = engine.role, engine.next_role
    if connector == "none" or new in ("mixed", old):
        return
    for side in ("prefill", "decode"):
        if old == "mixed" and side != new:
            continue
        peer = _peer(engine, side, world)
        if peer is not None:
            yield (engine, peer) if side == "prefill" else (peer, engine)


def _peer(engine: EngineState, side: str, world: World) -> EngineState | None:
    """With whom it is proven as `side`: who was asked already, then its own arm, then engines of the other side. Which of
    several depends on its number, so that moves at the same time do not all ask the same one."""
    others = [
        each
        for each in world.of_model.get(engine.model, ())
        if each.id != engine.id and each.wanted and each.state == "ready" and each.compat == engine.compat
    ]
    if not others:
        return None
    other_side = "decode" if side == "prefill" else "prefill"

    def rank(each: EngineState) -> tuple[bool, bool, bool, int]:
        known = world.pair(engine.id, each.id) if side == "prefill" else world.pair(each.id, engine.id)
        _, role, arm = each.pool
        return (known is None, arm != engine.pool[2], role != other_side, (each.number - engine.number) % (1 << 31))

    return min(others, key=rank)
