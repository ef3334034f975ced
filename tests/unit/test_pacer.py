"""How much of the time ticks may take."""

from __future__ import annotations

import pytest

from controlplane.control.pacer import LONGEST_REST_S, Budget


def test_a_change_that_goes_through_several_ticks_waits_for_none() -> None:
    budget = Budget(now=100.0)
    assert [budget.rest(0.1, 100.0 + at) for at in (0.1, 0.2, 0.3, 0.4, 0.5)] == [0.0] * 5


@pytest.mark.parametrize("tick_s", [0.01, 0.1, 0.6])
def test_announcements_without_end_leave_half_of_the_time(tick_s: float) -> None:
    budget, now, ticked = Budget(now=0.0), 0.0, 0.0
    while now < 200.0:
        now += tick_s
        ticked += tick_s
        now += budget.rest(tick_s, now)
    assert ticked / now == pytest.approx(Budget.SHARE, abs=0.02)


def test_after_a_pause_there_is_a_burst_again_and_no_more_than_one() -> None:
    budget = Budget(now=0.0)
    assert budget.rest(1.0, 1.0) == 0.0
    assert budget.rest(3.0, 4.0) > 0.0
    assert budget.rest(0.0, 1000.0) == 0.0
    assert budget.rest(Budget.BURST_S, 1000.0) == 0.0
    assert budget.rest(0.1, 1000.0) > 0.0


def test_one_very_long_tick_makes_no_very_long_rest() -> None:
    assert Budget(now=0.0).rest(60.0, 60.0) == LONGEST_REST_S
