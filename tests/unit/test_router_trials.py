"""What a router keeps of a canary's sessions until it has told of them."""

from __future__ import annotations

from dataclasses import replace

from controlplane.core.protocol import SessionSeen
from controlplane.core.routing import mix
from controlplane.router.trials import KEPT_REPORTS, MOST_SESSIONS, Trials


def seen(key: int, canary: bool = False, **fields: object) -> SessionSeen:
    return SessionSeen(f"{key:016x}", canary, 100.0 + key % 7, **fields)  # type: ignore[arg-type]


def test_requests_of_a_session_are_told_of_together_and_once() -> None:
    trials = Trials("r1")
    trials.saw(7, 5, seen(5, over=True, ttft_ms=20.0))
    trials.saw(7, 5, replace(seen(5, kv_lost=True, ttft_ms=30.0, itl_ms=4.0), at=90.0))
    trials.saw(8, 5, seen(5))
    first = trials.next_report()
    assert first is not None and (first.canary, first.router) == (7, "r1")
    assert first.sessions == (SessionSeen(f"{5:016x}", False, 90.0, over=True, kv_lost=True, ttft_ms=30.0, itl_ms=4.0),)
    assert trials.next_report() is first, "it was not confirmed"
    trials.confirmed()
    second = trials.next_report()
    assert second is not None and (second.canary, len(second.sessions)) == (8, 1)
    trials.confirmed()
    assert trials.next_report() is None


def test_a_session_that_changes_its_arm_is_told_of_where_it_was() -> None:
    trials = Trials("r1")
    trials.saw(7, 5, seen(5))
    trials.saw(7, 5, seen(5, canary=True, over=True))
    report = trials.next_report()
    assert report is not None and report.sessions == (seen(5),)


def test_too_many_sessions_are_thinned_by_a_hash_that_knows_nothing_of_them() -> None:
    trials = Trials("r1")
    told = of_canary = 0
    for turn in range(30):
        for key in (mix(turn * 10_000 + number, 1) for number in range(10 * MOST_SESSIONS)):
            trials.saw(7, key, seen(key, canary=mix(key, 3) % 10 == 0))
        report = trials.next_report()
        assert report is not None and MOST_SESSIONS // 4 <= len(report.sessions) <= MOST_SESSIONS
        told += len(report.sessions)
        of_canary += sum(each.canary for each in report.sessions)
        trials.confirmed()
    assert 0.07 < of_canary / told < 0.13
    for _ in range(40):  # quiet again: soon everybody is told of
        trials.next_report()
    trials.saw(7, 2**64 - 1, seen(2**64 - 1))
    for key in range(10):
        trials.saw(7, key, seen(key))
    report = trials.next_report()
    assert report is not None and len(report.sessions) == 11


def test_while_nobody_can_be_told_memory_is_bounded() -> None:
    trials = Trials("r1")
    for number in range(3 * KEPT_REPORTS):
        for key in range(50):
            trials.saw(7, key, seen(key))
        assert trials.next_report() is not None, number
    assert len(trials._waiting) <= KEPT_REPORTS
    assert sum(map(len, trials._seen.values())) <= MOST_SESSIONS
