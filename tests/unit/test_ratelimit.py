"""core.ratelimit: no minute holds more than a limit, and the wait that is told is the right one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.core import ratelimit
from controlplane.core.ratelimit import CELLS, SLOTS, WINDOW_S, Used

STEPS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 1), st.integers(0, 30)), max_size=60)


def summed(windows: list[list[int]], now: int) -> Used:
    for each in windows:
        ratelimit.advance(each, now)
    return Used(sum(w[1] for w in windows), sum(w[2] for w in windows))


@given(STEPS, st.integers(1, 5), st.integers(1, 60))
@settings(max_examples=200, deadline=None)
def test_no_minute_of_two_processes_together_holds_more_than_the_limits(
    steps: list[tuple[int, int, int]], requests: int, tokens: int
) -> None:
    windows, now = [[0] * CELLS, [0] * CELLS], 1000
    admitted: list[tuple[int, int]] = []
    for passed, process, size in steps:
        now += passed
        if ratelimit.decide((requests, tokens), summed(windows, now), size) == "":
            ratelimit.add(windows[process], now, 1, size)
            admitted.append((now, size))
    for start, _ in admitted:
        inside = [size for at, size in admitted if start <= at <= start + WINDOW_S]
        assert len(inside) <= requests
        assert sum(inside) <= tokens


@given(STEPS, st.integers(1, 5), st.integers(20, 60), st.integers(0, 20))
@settings(max_examples=200, deadline=None)
def test_after_the_wait_it_fits_and_a_second_before_it_does_not(
    steps: list[tuple[int, int, int]], requests: int, tokens: int, size: int
) -> None:
    windows, now, limits = [[0] * CELLS, [0] * CELLS], 1000, (requests, tokens)
    for passed, process, each in steps:
        now += passed
        if ratelimit.decide(limits, summed(windows, now), each) == "":
            ratelimit.add(windows[process], now, 1, each)
    kind = ratelimit.decide(limits, summed(windows, now), size)
    if kind == "":
        return
    limit = requests if kind == "requests" else tokens
    decision = ratelimit.refusal(kind, limit, size, windows, now)
    assert 1 <= decision.wait_s <= SLOTS
    assert ratelimit.decide(limits, summed(windows, now + decision.wait_s - 1), size) != ""
    assert ratelimit.decide(limits, summed(windows, now + decision.wait_s), size) != kind


@given(st.lists(st.tuples(st.integers(0, 70), st.integers(0, 50), st.integers(0, 90)), max_size=30))
@settings(max_examples=200, deadline=None)
def test_the_totals_are_those_of_the_slots_whatever_is_settled_when(steps: list[tuple[int, int, int]]) -> None:
    cells, now = [0] * CELLS, 500
    charges: list[tuple[int, int]] = []
    for passed, charged, used in steps:
        now += passed
        ratelimit.add(cells, now, 1, charged)
        charges.append((now, charged))
        at, was = charges[len(charges) // 2]
        ratelimit.settle(cells, at, now, was, used)
        assert cells[1] == sum(cells[3::2])
        assert cells[2] == sum(cells[4::2])
        assert min(cells[3:]) >= 0
    ratelimit.advance(cells, now + SLOTS)
    assert cells[1:] == [0] * (CELLS - 1)


def test_tokens_charged_too_much_are_given_back_and_more_count_when_they_were_used() -> None:
    cells = [0] * CELLS
    ratelimit.add(cells, 100, 1, 40)
    ratelimit.settle(cells, 100, 130, 40, 10)
    assert ratelimit.used(cells, 130) == Used(1, 10)
    ratelimit.add(cells, 140, 1, 5)
    ratelimit.settle(cells, 140, 170, 5, 25)
    ratelimit.advance(cells, 201)
    assert ratelimit.used(cells, 201) == Used(0, 20)
    ratelimit.settle(cells, 100, 201, 40, 0)
    assert ratelimit.used(cells, 201) == Used(0, 20)


@pytest.mark.parametrize(
    ("limits", "so_far", "tokens", "refused"),
    [
        ((None, None), Used(10**9, 10**9), 10**9, ""),
        ((2, None), Used(1, 0), 5, ""),
        ((2, None), Used(2, 0), 5, "requests"),
        ((None, 10), Used(0, 5), 5, ""),
        ((None, 10), Used(0, 6), 5, "tokens"),
        ((0, 0), Used(0, 0), 1, "requests"),
    ],
)
def test_a_limit_is_reached_before_it_is_broken(
    limits: tuple[int | None, int | None], so_far: Used, tokens: int, refused: str
) -> None:
    assert ratelimit.decide(limits, so_far, tokens) == refused


def test_a_request_over_the_limit_by_itself_never_fits() -> None:
    assert ratelimit.refusal("tokens", 10, 11, [], 5) == ("tokens", 0, True)
    assert ratelimit.refusal("requests", 0, 1, [], 5).too_large


def test_a_window_nobody_keeps_up_to_date_is_forgotten_after_a_minute() -> None:
    cells = [0] * CELLS
    ratelimit.add(cells, 100, 3, 7)
    assert ratelimit.used(cells, 100 + WINDOW_S) == Used(3, 7)
    assert ratelimit.used(cells, 100 + SLOTS) == Used(0, 0)
