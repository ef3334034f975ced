"""Workload windows out of what routers and engines told."""

from __future__ import annotations

import pytest

from controlplane.core.observed_load import Minute, sampled_burst, trustworthy, weighted_mix, windows_of
from controlplane.core.workload import Seen


def test_a_saturated_model_does_not_look_less_loaded() -> None:
    """10 requests/s arrive; the model completes ever fewer of them, and its queue grows by the rest."""
    minutes, waiting = [], 20.0
    for index in range(10):
        completed = 600.0 - 40.0 * index
        waiting += 600.0 - completed
        minutes.append(Minute(60.0 * index, completed, waiting))
    windows = windows_of(minutes)
    assert [each.rate for each in windows[1:]] == pytest.approx([10.0] * 9)


def test_silent_routers_are_a_gap_and_not_idleness() -> None:
    working, silent, idle, unheard = (
        Minute(0.0, 60.0, 2.0, 60.0),
        Minute(60.0, None, 2.0, 60.0),
        Minute(120.0, None, 0.0),
        Minute(180.0, 60.0, None),
    )
    assert [each.complete for each in windows_of([working, silent, idle, unheard])] == [True, False, True, False]


def test_the_few_requests_of_which_no_router_told_count() -> None:
    assert windows_of([Minute(0.0, None, 0.0, 3.0)])[0].rate == pytest.approx(0.05)


def test_a_gap_before_a_minute_is_no_growth_of_its_queue() -> None:
    first, later = windows_of([Minute(0.0, 60.0, 0.0), Minute(300.0, 60.0, 600.0)])
    assert first.rate == later.rate == 1.0


def test_sampled_requests_count_as_what_they_stand_for() -> None:
    """A busy router tells one in ten short requests, and every long one, since it was slow."""
    sampled = [(Seen(index, 100, 10), 10) for index in range(9)] + [(Seen(index, 6400, 10), 1) for index in range(10)]
    mix = weighted_mix(sampled)
    assert mix.count == 100
    assert mix.prompt_tokens == pytest.approx((90 * 100 + 10 * 6400) / 100)
    assert [cell.requests for cell in mix.cells] == [90, 10]


def test_windows_hold_the_lengths_of_what_arrived_in_them() -> None:
    windows = windows_of([Minute(0.0, 2.0, 0.0), Minute(60.0, 1.0, 0.0)], [(Seen(59.9, 10, 5), 2), (Seen(60.0, 40, 5), 1)])
    assert [(each.samples, each.mix.prompt_tokens) for each in windows] == [(1, 10.0), (1, 40.0)]


def test_sampling_does_not_hide_bursts() -> None:
    """100 requests within one second of a minute, of which every tenth is told."""
    told = [(Seen(30.0 + index / 10, 10, 10), 10) for index in range(10)]
    whole = [(Seen(30.0 + index / 100, 10, 10), 1) for index in range(100)]
    assert sampled_burst(told, 0.0, 60.0) > 0.8 * min(50.0, sampled_burst(whole, 0.0, 60.0))
    assert sampled_burst([], 0.0, 60.0) == 1.0


def test_earlier_days_are_not_believed_across_a_gap() -> None:
    heard = [Minute(60.0 * index, 60.0, 1.0) for index in range(4)]
    gap = [Minute(60.0 * index, None, None) for index in range(4, 15)]
    assert trustworthy(windows_of(heard), 900.0)
    assert not trustworthy(windows_of([*heard, *gap]), 900.0)
    assert not trustworthy((), 900.0)
