"""Whom an engine may be paired with, and which pairs are asked."""

from __future__ import annotations

from dataclasses import replace

from controlplane.core.pairs import ATTEMPTS, FAILED_AGAIN_S, PROVEN, further, judge, peers_listed
from controlplane.core.protocol import ModelRoute
from controlplane.core.world import EngineState, PairState, World

NOW = 1000.0
MODEL = ModelRoute("m", "disaggregated", connector="nixl")
MOVED = EngineState("d-1", "m", "decode", 1, state="ready", incarnation=1, compat="c", move_since=900.0)
VERIFIED = PairState("p-1", "d-1", 1, 1, "verified", 1, at=950.0)


def prefills(count: int) -> tuple[EngineState, ...]:
    engine = EngineState("", "m", "prefill", 0, state="ready", incarnation=1, compat="c")
    return tuple(replace(engine, id=f"p-{number}", number=number + 10) for number in range(1, count + 1))


def world(*pairs: PairState, engines: tuple[EngineState, ...] = (), prefill: int = 3) -> World:
    return World(NOW, 0.0, models=(MODEL,), engines=(*(engines or (MOVED,)), *prefills(prefill)), pairs=pairs)


def peers(*pairs: PairState, **changes: object) -> dict[str, tuple[str, ...]]:
    return peers_listed(world(*pairs, **changes), [MODEL])  # type: ignore[arg-type]


def asked(*pairs: PairState, prefill: int = 3) -> list[tuple[str, str]]:
    return [(probe.prefill, probe.decode) for probe in further(MODEL, world(*pairs, prefill=prefill))]


def test_an_engine_that_moved_has_its_verified_peers_alone() -> None:
    assert peers(VERIFIED) == {"d-1": ("p-1",)}


def test_an_engine_that_was_started_for_its_role_has_all() -> None:
    assert peers(VERIFIED, engines=(replace(MOVED, move_since=None),)) == {}


def test_the_other_pairs_are_asked_a_few_at_a_time() -> None:
    assert asked(VERIFIED) == [("p-2", "d-1"), ("p-3", "d-1")]
    assert len(asked(VERIFIED, prefill=20)) == 4
    on_its_way = replace(VERIFIED, prefill="p-2", state="asked", at=NOW - 1)
    assert asked(VERIFIED, on_its_way) == [("p-3", "d-1")]
    assert asked(VERIFIED, replace(on_its_way, at=NOW - 60)) == [("p-2", "d-1"), ("p-3", "d-1")]


def test_an_engine_proven_with_all_or_many_has_all() -> None:
    every = [replace(VERIFIED, prefill=f"p-{number}") for number in range(1, PROVEN + 1)]
    assert peers(*every[:3]) == {}
    assert peers(*every, prefill=20) == {}
    assert asked(*every, prefill=20) == []


def test_a_pair_that_failed_is_not_used_but_the_others_are() -> None:
    failed = replace(VERIFIED, prefill="p-2", state="failed", attempts=ATTEMPTS, at=NOW - 1)
    started = replace(MOVED, move_since=None)
    assert peers(failed, engines=(started,)) == {"d-1": ("p-1", "p-3"), "p-2": ("p-2",)}
    assert asked(failed, replace(VERIFIED, prefill="p-3"), VERIFIED) == []
    again = replace(failed, at=NOW - FAILED_AGAIN_S)
    assert asked(again, replace(VERIFIED, prefill="p-3"), VERIFIED) == [("p-2", "d-1")]


def test_what_is_known_of_an_earlier_start_counts_for_nothing() -> None:
    restarted = replace(MOVED, incarnation=2)
    assert peers(VERIFIED, engines=(restarted,)) == {}


def test_one_failure_is_none_and_what_was_seen_before_the_change_neither() -> None:
    failed = replace(VERIFIED, state="failed", attempts=1)
    assert [judge(failed), judge(replace(failed, attempts=ATTEMPTS)), judge(VERIFIED)] == ["open", "failed", "verified"]
    assert judge(VERIFIED, since=960.0) == "open"


def test_nobody_is_asked_where_nothing_is_handed_over() -> None:
    for model in (replace(MODEL, mode="monolithic"), replace(MODEL, connector="none")):
        assert further(model, world(VERIFIED)) == []
