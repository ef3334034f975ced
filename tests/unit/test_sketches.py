"""Latency histograms: quantiles within 1%, merging loses nothing, cumulative histograms become sketches."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.sketches import (
    MIN_VALUE,
    POINTS,
    RELATIVE_ERROR,
    BadSketch,
    Sketch,
    bucket_value,
    from_cumulative,
    log_edges,
    merged,
)

values = st.lists(st.floats(min_value=MIN_VALUE, max_value=1e6), min_size=1, max_size=300)
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


def exact(of: list[float], q: float) -> float:
    return sorted(of)[max(math.ceil(q * len(of) - 1e-6), 1) - 1]


def cumulative(of: list[float]) -> tuple[list[float], float, float]:
    return [float(sum(value <= bound for value in of)) for bound in BOUNDS], float(len(of)), sum(of)


@given(values, st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_within_one_percent_of_the_exact_one(of: list[float], q: float) -> None:
    assert Sketch.of(of).quantile(q) == pytest.approx(exact(of, q), rel=RELATIVE_ERROR + 1e-9)


@given(values, values)
def test_merged_sketches_equal_the_sketch_of_all_values(left: list[float], right: list[float]) -> None:
    both, together = merged([Sketch.of(left), Sketch.of(right)]), Sketch.of(left + right)
    assert (both.buckets, both.count) == (together.buckets, together.count)
    assert both.sum == pytest.approx(together.sum)


@given(values)
def test_stored_bytes_give_the_same_quantiles(of: list[float]) -> None:
    sketch = Sketch.of(of)
    again = Sketch.from_bytes(sketch.to_bytes())
    assert (again.quantile(0.5), again.quantile(0.99), again.count) == (sketch.quantile(0.5), sketch.quantile(0.99), len(of))


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x02" + bytes(19), Sketch.of([1.0]).to_bytes() + b"x"])
def test_bytes_of_something_else_are_refused(data: bytes) -> None:
    with pytest.raises(BadSketch):
        Sketch.from_bytes(data)


def test_an_empty_sketch_has_no_quantile() -> None:
    assert Sketch().quantile(0.99) is None


def test_values_below_and_above_the_range_are_counted_at_its_ends() -> None:
    sketch = Sketch.of([0.0, 1e300])
    assert sketch.count == 2
    assert sketch.quantile(0) == pytest.approx(MIN_VALUE, rel=0.02)


@given(st.lists(st.floats(min_value=0.0, max_value=9.0), max_size=200), st.lists(st.floats(min_value=0.0, max_value=9.0)))
def test_the_gain_of_a_cumulative_histogram_counts_every_new_value_once(old: list[float], new: list[float]) -> None:
    counts, total, sum_ = cumulative(old + new)
    gained = from_cumulative(BOUNDS, counts, total, sum_, before=cumulative(old), scale=1000)
    assert gained.count == pytest.approx(len(new))
    assert math.fsum(gained.buckets.values()) == pytest.approx(len(new))


@given(st.lists(st.floats(min_value=0.0001, max_value=4.9), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99]))
def test_a_quantile_of_a_cumulative_histogram_lies_in_the_bucket_of_the_exact_one(of: list[float], q: float) -> None:
    counts, total, sum_ = cumulative(of)
    estimate = from_cumulative(BOUNDS, counts, total, sum_).quantile(q)
    assert estimate is not None
    place = next(i for i, bound in enumerate(BOUNDS) if exact(of, q) <= bound)
    low, high = (BOUNDS[place - 1] if place else 0.0), BOUNDS[place]
    assert low * (1 - RELATIVE_ERROR) <= estimate <= high * (1 + RELATIVE_ERROR)


def test_inside_a_bucket_values_are_taken_as_evenly_spread() -> None:
    sketch = from_cumulative((0.1, 0.2), (0.0, 1000.0), 1000.0, 150.0, scale=1000)
    assert sketch.quantile(0.25) == pytest.approx(125, rel=0.035)
    assert sketch.quantile(0.75) == pytest.approx(175, rel=0.035)


@given(st.floats(0, 50), st.floats(0.001, 100), st.floats(0.01, 1))
def test_evenly_spread_values_are_off_by_little_and_cost_little(low: float, width: float, q: float) -> None:
    sketch = Sketch()
    sketch.add_spread(low, low + width, 1000)
    assert len(sketch.buckets) <= POINTS + 1
    off = width / POINTS / 2 + RELATIVE_ERROR * (low + width)
    assert sketch.quantile(q) == pytest.approx(low + q * width, abs=off * 1.01 + MIN_VALUE)


@given(st.lists(st.floats(min_value=0.001, max_value=0.3), min_size=1, max_size=50))
def test_the_sum_tells_where_in_a_wide_first_bucket_values_lie(of: list[float]) -> None:
    sketch = from_cumulative((0.3, 0.5), (float(len(of)), float(len(of))), float(len(of)), sum(of), scale=1000)
    mean = sum(value * count for value, count in ((bucket_value(i), n) for i, n in sketch.buckets.items())) / len(of)
    assert mean == pytest.approx(min(1000 * sum(of) / len(of), 150), rel=0.06)


def test_a_first_bucket_is_spread_as_widely_as_the_sum_and_the_other_buckets_allow() -> None:
    sketch = from_cumulative((1.0, 2.0), (50.0, 100.0), 100.0, 60.0)
    assert sketch.quantile(0.49) == pytest.approx(0.4, rel=0.1)  # 60 - 50 x 1 at most: 0.2 on average


def test_a_counter_that_went_backwards_was_reset_and_counts_anew() -> None:
    gained = from_cumulative((1.0, 2.0), (2.0, 3.0), 3.0, 4.0, before=((5.0, 9.0), 9.0, 11.0))
    assert (gained.count, gained.sum) == (pytest.approx(3.0), 4.0)


def test_values_above_the_last_bound_are_counted_at_it() -> None:
    sketch = from_cumulative((1.0, 2.0), (0.0, 0.0), 5.0, 50.0)
    assert sketch.count == 5
    assert sketch.quantile(0.5) == pytest.approx(2.0, rel=0.011)


def test_a_histogram_for_a_picture_has_log_spaced_edges() -> None:
    edges = log_edges(1, 10_000, 24)
    assert (edges[0], edges[-1], len(edges)) == (1, pytest.approx(10_000), 25)
    assert sum(Sketch.of([0.1, 1.5, 100, 99_999]).histogram(edges)) == 4
    assert Sketch.of([0.1, 99_999]).histogram(edges)[0] == Sketch.of([0.1, 99_999]).histogram(edges)[-1] == 1
