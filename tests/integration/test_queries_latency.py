"""Percentiles that pages show are those of the raw values, whichever roll-up levels a window crosses."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.core.sketches import Sketch
from controlplane.telemetry.hours import SETTLED_S
from controlplane.telemetry.merging import Merged, merge_stored
from controlplane.telemetry.queries.models import model_figures, model_series
from controlplane.telemetry.queries.windows import Window
from controlplane.telemetry.testing import request_row
from tests.integration.queries_kit import HOUR_S, NOON, Recorder

WITHIN = 0.02


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least q of all do not exceed."""
    return sorted(values)[max(math.ceil(q * len(values)) - 1, 0)]


def record_six_hours() -> list[tuple[float, float]]:
    """Requests (when each ended, its TTFT): fewer and slower from hour to hour; five hours are rolled up."""
    draw = random.Random(11)
    recorder, requests = Recorder(), []
    for hour in range(6):
        for number in range(400 - 60 * hour):
            ended = NOON + hour * HOUR_S + number * HOUR_S / (400 - 60 * hour)
            ttft = draw.lognormvariate(4 + hour / 3, 0.8)
            requests.append((ended, ttft))
            row = request_row(f"{hour}-{number}", "llama", ended - ttft / 1000, ttft_ms=ttft, total_ms=ttft)
            recorder.take(ended + 0.001, "request", row)
    recorder.write(NOON + 5 * HOUR_S + SETTLED_S + HOUR_S / 2)
    assert recorder.roll_up() == 5
    recorder.write(NOON + 6 * HOUR_S + 100)
    return requests


@pytest.mark.django_db
def test_p99_of_any_window_is_that_of_its_raw_requests() -> None:
    recorded = record_six_hours()

    @settings(max_examples=40)
    @given(first=st.integers(0, 350), minutes=st.integers(1, 360))
    def holds(first: int, minutes: int) -> None:
        since = NOON + first * 60
        until = min(since + minutes * 60, NOON + 6 * HOUR_S)
        raw = [ttft for ended, ttft in recorded if since <= ended < until]
        shown = model_figures("llama", Window(since, until, until)).ttft
        assert shown.p99.count == len(raw)
        for figure, q in ((shown.p50, 0.5), (shown.p90, 0.9), (shown.p99, 0.99)):
            assert figure.value == (pytest.approx(quantile(raw, q), rel=WITHIN) if raw else None)

    holds()


@pytest.mark.django_db
def test_the_cells_of_a_chart_of_any_step_are_those_of_the_raw_requests() -> None:
    recorded = record_six_hours()
    now = NOON + 6 * HOUR_S
    for span_s in (HOUR_S / 4, HOUR_S, 6 * HOUR_S, 20 * HOUR_S, 20 * 24 * HOUR_S):
        series = model_series("llama", Window(now - span_s, now, now)).ttft
        for start, p99, count in zip(series.p99.starts, series.p99.values, series.count.values, strict=True):
            raw = [ttft for ended, ttft in recorded if start <= ended < start + series.p99.step_s]
            assert (count or 0) == len(raw)
            assert p99 == (pytest.approx(quantile(raw, 0.99), rel=WITHIN) if raw else None)


values = st.lists(st.floats(1e-4, 1e9), max_size=30)


@given(parts=st.lists(values, max_size=6), q=st.floats(0, 1))
def test_sketches_merged_at_once_say_what_they_say_merged_one_by_one(parts: list[list[float]], q: float) -> None:
    one = Sketch()
    for part in parts:
        one.merge(Sketch.of(part))
    stored = [Sketch.of(part).to_bytes() for part in parts]
    at_once = Merged.of(2, [(1, sketch[20:]) for sketch in stored])
    assert at_once.quantiles(q) == [None, pytest.approx(one.quantile(q))]
    assert at_once.totals.tolist() == [0, one.count]
    edges = [1.0, 10.0, 1000.0, 1e6]
    assert at_once.histograms(edges)[1] == one.histogram(edges)
    again = merge_stored(stored)
    assert (again is None) == (not stored)
    if again is not None:
        assert Sketch.from_bytes(again).buckets == one.buckets
