"""Which pairs of engines are known to hand KV over, which are to be asked, and whom an engine may be paired with. Pure.

An engine that was started for its role is paired with every engine of equal `compat`. One that was moved there is paired
only with those that a probe has verified it with, until it has been proven with enough of them. A pair that failed is not
used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal

from controlplane.core.handoff_probe import BEHIND
from controlplane.core.plan import Probe
from controlplane.core.protocol import ModelRoute
from controlplane.core.world import EngineState, PairState, World, over

ATTEMPTS = 2
"""Probes that must fail before a pair is taken to be broken: the first handshake of two engines may fail by itself."""
ASK_AGAIN_S = 6.0
"""A probe that nothing came back from is asked for again: the message, or who had it, may be lost."""
FAILED_AGAIN_S = 60.0
PROVEN = 8
"""An engine verified with this many peers is taken to work with all."""
AT_ONCE = 4
"""Probes in flight per model beside those that a change waits for."""

Verdict = Literal["verified", "failed", "open"]


def judge(pair: PairState | None, since: float = 0.0) -> Verdict:
    """What is known; an outcome from before `since` counts for nothing."""
    if pair is None or pair.at < since or pair.state == "asked":
        return "open"
    if pair.state == "failed" and pair.attempts < ATTEMPTS:
        return "open"
    return "verified" if pair.state == "verified" else "failed"


def behind_others(pair: PairState | None) -> str:
    """What its probe waits for at an engine that has other requests to do first, in words; empty: for nothing."""
    return pair.reason if pair and pair.state == "asked" and pair.reason.startswith(BEHIND) else ""


def ask(world: World, prefill: EngineState, decode: EngineState, reason: str) -> Iterator[Probe]:
    """The probe, unless one is on its way."""
    pair = world.pair(prefill.id, decode.id)
    if pair is None or pair.state != "asked" or over(world.now, pair.at, ASK_AGAIN_S):
        yield Probe(prefill.id, decode.id, prefill.incarnation, decode.incarnation, reason)


def further(model: ModelRoute, world: World) -> list[Probe]:
    """Pairs of engines that serve and are not proven enough yet, and those that failed some time ago."""
    if model.mode == "monolithic" or model.connector == "none":
        return []
    serving = [engine for engine in world.of_model.get(model.name, ()) if engine.serves]
    moved = [engine for engine in serving if engine.role != "mixed" and _moved(engine)]
    failed = [pair for pair in world.failed_pairs if over(world.now, pair.at, FAILED_AGAIN_S)]
    if not moved and not failed:
        return []
    ids = {engine.id: engine for engine in serving}
    free = AT_ONCE - sum(pair.state == "asked" and pair.prefill in ids for pair in world.pairs)
    wanted = [(ids[pair.prefill], ids[pair.decode]) for pair in failed if pair.prefill in ids and pair.decode in ids]
    for engine in moved:
        peers = counterparts(engine, serving)
        if not _proven(engine, peers, world):
            open_ones = (_ordered(engine, peer) for peer in peers)
            wanted += [pair for pair in open_ones if judge(world.pair(pair[0].id, pair[1].id)) == "open"]
    probes = (probe for pair in wanted for probe in ask(world, *pair, "another pair of an engine that moved"))
    return list(dict.fromkeys(probes))[: max(0, free)]


def peers_listed(world: World, models: Sequence[ModelRoute]) -> dict[str, tuple[str, ...]]:
    """Engine id -> the only engines it may be paired with. One that is not named may be paired with all of equal compat; one
    that may be with none has itself."""
    listed: dict[str, tuple[str, ...]] = {}
    spoiled = {id for pair in world.failed_pairs for id in (pair.prefill, pair.decode)}
    for model in models:
        if model.mode == "monolithic":
            continue
        serving = [engine for engine in world.of_model.get(model.name, ()) if engine.serves]
        for engine in serving:
            if engine.role != "mixed" and (_moved(engine) or engine.id in spoiled):
                allowed = _allowed(engine, counterparts(engine, serving), world)
                if allowed is not None:
                    listed[engine.id] = allowed or (engine.id,)
    return listed


def _allowed(engine: EngineState, peers: Sequence[EngineState], world: World) -> tuple[str, ...] | None:
    """None: all."""
    state = {peer.id: judge(_pair(engine, peer, world)) for peer in peers}
    counts = Counter(state.values())
    proven = not _moved(engine) or not counts["verified"] or _proven(engine, peers, world)
    if proven and not counts["failed"]:
        return None
    return tuple(sorted(id for id, known in state.items() if known == "verified" or (proven and known == "open")))


def counterparts(engine: EngineState, others: Sequence[EngineState]) -> list[EngineState]:
    """Those that `engine` hands over to or from, in its arm."""
    role = "decode" if engine.role == "prefill" else "prefill"
    return [each for each in others if each.role == role and (each.arm, each.compat) == (engine.arm, engine.compat)]


def _moved(engine: EngineState) -> bool:
    return engine.move_since is not None and engine.move_phase in ("", "together")


def _proven(engine: EngineState, peers: Sequence[EngineState], world: World) -> bool:
    known = Counter(judge(_pair(engine, peer, world)) for peer in peers)
    return not known["open"] or known["verified"] >= PROVEN


def _pair(engine: EngineState, peer: EngineState, world: World) -> PairState | None:
    prefill, decode = _ordered(engine, peer)
    return world.pair(prefill.id, decode.id)


def _ordered(engine: EngineState, peer: EngineState) -> tuple[EngineState, EngineState]:
    return (engine, peer) if engine.role == "prefill" else (peer, engine)
