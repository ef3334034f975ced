"""Rates and averages where a part of the time was not recorded: those of what was, at any level of roll-up."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from django.db import connection
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.core.protocol import GpuRow, RouterRow
from controlplane.telemetry.hours import SETTLED_S
from controlplane.telemetry.queries.effective import effective_gpus
from controlplane.telemetry.queries.engines import engine_figures, engine_series
from controlplane.telemetry.queries.loads import minutes
from controlplane.telemetry.queries.models import model_figures, model_series
from controlplane.telemetry.queries.pools import pool_figures, pool_series
from controlplane.telemetry.queries.waste import waste
from controlplane.telemetry.queries.windows import Window
from controlplane.telemetry.testing import engine_row, request_row
from controlplane.telemetry.view import FleetView
from tests.integration.queries_kit import HOUR_S, NOON, P1, Recorder, engine, fleet

pytestmark = pytest.mark.django_db
TOKENS_PER_S = 100.0
AS_PREFILL, AS_DECODE = fleet(P1), fleet(engine("p1", "decode"))


@dataclass
class Steady:
    """A pool of one engine with two GPUs, one of them busy, 100 tokens and one request a second. The engine and the router
    go on while nothing is recorded; requests are told when the router is heard again."""

    recorder: Recorder = field(default_factory=lambda: Recorder(AS_PREFILL))
    untold: list[int] = field(default_factory=list)

    def second(self, at: int, recorded: bool = True) -> None:
        self.untold.append(at)
        if not recorded:
            return
        took = self.recorder.take
        took(at + 0.1, "gpu", GpuRow("g1", "p1", 1.0, 1.0, 0.0), GpuRow("g2", "p1", 0.0, 0.0, 0.0))
        counters = {"prompt_tokens": (at - NOON) * TOKENS_PER_S}
        took(at + 0.1, "engine", engine_row("p1", "llama", running=2, counters=counters))
        took(at + 0.2, "router", RouterRow("r1", 0, 0, 0, 0, 0))
        for ended in self.untold:
            took(at + 0.3, "request", request_row(f"r{ended}", "llama", ended - 0.5))
        self.untold.clear()

    def run(self, seconds: int, gaps: list[range], view: FleetView = AS_PREFILL) -> None:
        self.recorder.view = view
        for second in range(seconds):
            self.second(int(NOON) + second, not any(second in gap for gap in gaps))


def same(value: float | None, expected: float) -> bool:
    """None: nothing is recorded of that time, which is shown as a gap."""
    return value is None or value == pytest.approx(expected, rel=0.02)


def test_any_window_tells_the_rates_and_averages_of_what_was_recorded() -> None:
    draw, gaps = random.Random(5), []
    for _ in range(40):
        start = draw.randrange(3 * 3600)
        gaps.append(range(start, start + draw.choice((1, 7, 20, 45, 100))))
    steady = Steady()
    steady.run(3 * 3600, gaps)
    steady.recorder.write(NOON + 3 * HOUR_S + 100)
    assert steady.recorder.roll_up() == 2
    lost_s = len(set().union(*gaps) & set(range(3 * 3600)))

    @settings(max_examples=40)
    @given(first=st.integers(0, 175), length=st.integers(5, 180))
    def holds(first: int, length: int) -> None:
        since = NOON + first * 60
        window = Window(since, min(since + length * 60, NOON + 3 * HOUR_S), NOON + 5 * HOUR_S)
        whole = effective_gpus(window)
        assert same(whole.gpus.value, 2) and same(whole.effective.value, 1)
        for pool in pool_figures(window):
            assert same(pool.use.gpus.value, 2) and same(pool.running.value, 2)
        # A gap at the window's edge is told of after it or before it: a minute of 5 or more.
        assert model_figures("llama", window).requests_per_s.value == pytest.approx(1, rel=0.02)
        for pool in pool_figures(window):
            assert pool.prompt_tokens_per_s.value == pytest.approx(TOKENS_PER_S, rel=0.02)

    holds()
    all_day = Window(NOON, NOON + 3 * HOUR_S, NOON + 5 * HOUR_S)
    assert waste(all_day).covered.value == pytest.approx(1 - lost_s / (3 * 3600), abs=0.001)
    assert waste(all_day).total.held.value == pytest.approx(2 * (3 * 3600 - lost_s) / 3600, rel=0.001)


def test_charts_show_steady_rates_beside_gaps_and_gaps_as_gaps() -> None:
    steady = Steady()
    steady.run(1500, [range(130, 165), range(310, 620), range(905, 909)])
    steady.recorder.write(NOON + 1600)
    for span_s in (1500, 3600):
        window = Window(NOON, NOON + span_s, NOON + span_s)
        pool, model = pool_series("llama", window)["prefill"], model_series("llama", window)
        one = engine_series("p1", window)
        for series, steady_value in (
            (pool.gpus, 2.0),
            (pool.effective, 1.0),
            (pool.prompt_tokens_per_s, TOKENS_PER_S),
            (one.prompt_tokens_per_s, TOKENS_PER_S),
        ):
            known = [value for value in series.values if value is not None]
            assert known and all(same(value, steady_value) for value in known[1:])
            missing = [start for start, value in zip(series.starts, series.values, strict=True) if value is None]
            assert NOON + 420 in missing and NOON + 960 not in missing
        assert model.requests_per_s.values[0] is not None


def test_minutes_that_the_planner_looks_at_count_as_if_they_were_whole() -> None:
    steady = Steady()
    steady.run(300, [range(70, 95), range(130, 175)])
    steady.recorder.write(NOON + 310)
    told = minutes("llama", int(NOON), int(NOON) + 300)
    assert [each.minute.finished for each in told] == pytest.approx([60] * 5, rel=0.05)


def test_ten_seconds_in_which_an_engine_changed_its_role_count_once() -> None:
    steady = Steady()
    for second in range(3600):
        steady.recorder.view = AS_PREFILL if second < 1804 else AS_DECODE
        steady.second(int(NOON) + second)
    steady.recorder.write(NOON + HOUR_S + SETTLED_S + HOUR_S)
    assert steady.recorder.roll_up() == 1
    for window in (Window(NOON, NOON + HOUR_S, NOON + 3 * HOUR_S), Window(NOON, NOON + 24 * HOUR_S, NOON + 24 * HOUR_S)):
        rates = [each.prompt_tokens_per_s.value for each in engine_figures(window)]
        assert rates == pytest.approx([TOKENS_PER_S] * 2, rel=0.02)
    day = engine_series("p1", Window(NOON, NOON + 20 * 24 * HOUR_S, NOON + 20 * 24 * HOUR_S))
    assert [each for each in day.prompt_tokens_per_s.values if each] == pytest.approx([TOKENS_PER_S], rel=0.02)


def test_rows_of_before_seconds_were_counted_stand_for_all_of_their_time() -> None:
    steady = Steady()
    steady.run(600, [])
    steady.recorder.write(NOON + 700)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE telemetry_pool_minute SET recorded_s = NULL, told_s = NULL")
        cursor.execute("UPDATE telemetry_model_minute SET told_s = NULL")
        cursor.execute("UPDATE telemetry_engine_10s SET told_s = NULL")
    window = Window(NOON, NOON + 600, NOON + 700)
    (pool,), (one,) = pool_figures(window), engine_figures(window)
    assert (pool.use.gpus.value, pool.use.effective.value) == (2, 1)
    for rate in (pool.prompt_tokens_per_s.value, one.prompt_tokens_per_s.value):
        assert rate == pytest.approx(TOKENS_PER_S, rel=0.02)
    assert model_figures("llama", window).requests_per_s.value == pytest.approx(1, rel=0.02)


def test_a_short_window_further_back_has_the_finest_cells_that_are_kept() -> None:
    steady = Steady()
    steady.run(3600, [])
    steady.recorder.write(NOON + HOUR_S + SETTLED_S + HOUR_S)
    assert steady.recorder.roll_up() == 1
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM telemetry_engine_10s")
    window = Window(NOON, NOON + 900, NOON + 10 * 24 * HOUR_S)
    pool, model, one = pool_series("llama", window)["prefill"], model_series("llama", window), engine_series("p1", window)
    for series, step_s, rate in (
        (pool.prompt_tokens_per_s, 60, TOKENS_PER_S),
        (model.requests_per_s, 60, 1.0),
        (one.prompt_tokens_per_s, 3600, TOKENS_PER_S),
    ):
        assert series.step_s == step_s
        assert len(series.values) == max(1, 900 // step_s)
        assert all(value == pytest.approx(rate, rel=0.03) for value in series.values[1:] or series.values)
