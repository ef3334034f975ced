"""Drawn traffic is reproducible and has the means that were asked for."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.physics.workload import ARRIVAL_KINDS, Distribution, draw

STEADY = Distribution(prompt_tokens=1000, output_tokens=200, rate=8.0, seconds=600.0)


def gaps(workload: Distribution, seed: int) -> list[float]:
    times = [arrival.at_s for arrival in draw(workload, seed)]
    return [after - before for before, after in pairwise(times)]


def test_a_seed_gives_the_same_requests_and_another_seed_others() -> None:
    assert draw(STEADY, 1) == draw(STEADY, 1)
    assert draw(STEADY, 1) != draw(STEADY, 2)


def test_the_draw_is_the_same_everywhere() -> None:
    bursty = Distribution(1000, 200, 2.0, 3.0, length_cv=1.0, arrival="gamma", arrival_cv=2.0)
    assert [(round(each.at_s, 6), *each[1:3]) for each in draw(bursty, 1)[:3]] == [
        (0.0, 1188, 88),
        (1.6e-05, 763, 74),
        (0.29171, 435, 128),
    ]


def test_poisson_arrivals_come_at_the_rate() -> None:
    counts = [len(draw(STEADY, seed)) for seed in range(10)]
    assert fmean(counts) == pytest.approx(4800, rel=0.02)
    assert pstdev(gaps(STEADY, 1)) == pytest.approx(1 / 8, rel=0.05)


def test_constant_arrivals_are_evenly_spaced() -> None:
    steady = replace(STEADY, arrival="constant", seconds=10.0)
    assert len(draw(steady, 1)) == 80
    assert gaps(steady, 1) == pytest.approx([1 / 8] * 79)


def test_gamma_arrivals_have_the_burstiness_asked_for() -> None:
    bursty = replace(STEADY, arrival="gamma", arrival_cv=3.0, seconds=6000.0)
    found = gaps(bursty, 1)
    assert fmean(found) == pytest.approx(1 / 8, rel=0.05)
    assert pstdev(found) / fmean(found) == pytest.approx(3.0, rel=0.05)


def test_lengths_are_equal_or_log_normal_with_the_mean_asked_for() -> None:
    assert {each[1:3] for each in draw(STEADY, 1)} == {(1000, 200)}
    drawn = draw(replace(STEADY, length_cv=0.7), 1)
    prompts, outputs = [each.prompt_tokens for each in drawn], [each.output_tokens for each in drawn]
    assert fmean(prompts) == pytest.approx(1000, rel=0.04)
    assert pstdev(prompts) / fmean(prompts) == pytest.approx(0.7, rel=0.1)
    assert fmean(outputs) == pytest.approx(200, rel=0.04)


def test_a_higher_rate_meets_the_same_requests_sooner() -> None:
    slow, fast = draw(replace(STEADY, length_cv=1.0), 3), draw(replace(STEADY, length_cv=1.0, rate=16.0), 3)
    assert [each[1:3] for each in slow] == [each[1:3] for each in fast[: len(slow)]]
    assert fast[10].at_s == pytest.approx(slow[10].at_s / 2)


def test_lengths_are_cut_to_what_the_model_takes() -> None:
    for each in draw(replace(STEADY, length_cv=3.0), 1, most_tokens=1200):
        assert each.prompt_tokens >= 1
        assert each.output_tokens >= 1
        assert each.prompt_tokens + each.output_tokens <= 1200


def test_there_is_always_one_request() -> None:
    assert len(draw(replace(STEADY, rate=0.001, seconds=1.0), 1)) == 1


@given(st.sampled_from(ARRIVAL_KINDS), st.floats(0.1, 10), st.floats(0, 5), st.integers(0, 1 << 31))
def test_times_never_go_back_and_stay_inside(arrival: str, cv: float, length_cv: float, seed: int) -> None:
    workload = Distribution(300, 50, 20.0, 5.0, length_cv, arrival, cv)  # type: ignore[arg-type]
    times = [each.at_s for each in draw(workload, seed)]
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] < 5.0
