"""Percentiles that pages show are those of the raw values, whichever roll-up levels a window crosses."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.core.sketches import Sketch
from controlplane.telemetry.hours import SETTLED_S
from controlplane.telemetry.merging import Merged, merge_stored
from controlplane.telemetry.queries.engines import engine_figures
from controlplane.telemetry.queries.exports import figures_table
from controlplane.telemetry.queries.models import model_figures, model_series
from controlplane.telemetry.queries.stored import stored
from controlplane.telemetry.queries.windows import Window
from controlplane.telemetry.testing import engine_row, histogram, request_row
from tests.integration.queries_kit import D1, HOUR_S, NOON, P1, Recorder, engine, fleet

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


def record_engines(until: float) -> Recorder:
    """An engine starts again within the second hour and changes its role within the third."""
    draw = random.Random(3)
    recorder, told, requests = Recorder(fleet(P1, D1)), {1: [0.01], 2: [0.01]}, 0.0
    for number in range(int((until - NOON) / 30)):
        at, start = NOON + 30 * number, 2 if number >= 170 else 1
        if number == 300:
            recorder.view = fleet(P1, engine("d1", "prefill"))
        told[start] += [draw.lognormvariate(-4, 1) for _ in range(2)]
        requests += 2
        row = engine_row(
            "d1",
            "llama",
            start,
            running=draw.randrange(9),
            waiting=draw.randrange(5),
            kv_usage=draw.random(),
            counters={"requests": requests},
            histograms={"itl": histogram(told[start])},
        )
        recorder.take(at + 1, "engine", row)
    recorder.write(until)
    return recorder


@pytest.mark.django_db
def test_figures_of_engines_are_the_same_from_hours_and_from_ten_seconds() -> None:
    now = NOON + 3 * HOUR_S + SETTLED_S
    recorder = record_engines(now)
    windows = [Window(NOON + since, NOON + until, now) for since, until in ((0, 12_000), (1200, 8000), (3600, 7200))]

    def figures() -> list[list[list[Any]]]:
        return [figures_table(engine_figures(window)).rows for window in windows]

    from_tens = figures()
    assert [len(rows) for rows in from_tens] == [2, 1, 1]
    recorder.roll_up()
    assert stored().engine_hours_until == NOON + 3 * HOUR_S
    for hours, tens in zip(figures(), from_tens, strict=True):
        assert [list(map(near, row)) for row in tens] == hours


def near(value: Any) -> Any:
    """Sums of the same numbers in another order."""
    return pytest.approx(value, rel=1e-6) if isinstance(value, float) else value


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
