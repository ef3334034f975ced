"""Counters, windows and roll-ups: what engines gained, over which time, and in which row."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.codec import encode
from controlplane.core.protocol import GpuRow, NodeRow, Record
from controlplane.core.sketches import Sketch, merged
from controlplane.telemetry.deltas import NOTHING, EngineCounters, Gain
from controlplane.telemetry.intake import Intake, Refusals
from controlplane.telemetry.records import Sample
from controlplane.telemetry.rollups import SPREAD_S, Rollups
from controlplane.telemetry.tables import (
    ENGINE_10S,
    GPU_MINUTE,
    MODEL_MINUTE,
    NODE_SECOND,
    POOL_MINUTE,
    REQUEST,
    Batch,
    Table,
)
from controlplane.telemetry.testing import engine_row, histogram, request_row
from controlplane.telemetry.view import EngineView, FleetView
from controlplane.telemetry.windows import MinuteMeans, Tally, Window, covered_s

T0 = 1_796_018_400.0
VIEW = FleetView(engines={"e1": EngineView("e1", "P1", "m", "prefill", "ready", 0.0, "", 1, ("n1",), ())})


def gained(counters: EngineCounters, value: float, incarnation: int = 1, at: float = T0) -> float | None:
    gain = counters.gain(engine_row("e1", "m", incarnation, counters={"requests": value}), at)
    return None if gain is None else gain.counters.get("requests", 0.0)


def test_the_first_sample_of_a_running_engine_is_only_a_base_line() -> None:
    counters = EngineCounters()
    assert [gained(counters, value) for value in (100, 107, 107)] == [0, 7, 0]


def test_a_new_incarnation_counts_from_zero_and_a_late_old_one_counts_nothing() -> None:
    counters = EngineCounters()
    assert [gained(counters, 100), gained(counters, 4, 2), gained(counters, 101, 1), gained(counters, 6, 2)] == [
        0,
        4,
        None,
        2,
    ]


def test_a_counter_that_fell_was_reset() -> None:
    counters = EngineCounters()
    assert [gained(counters, value) for value in (100, 3, 5)] == [0, 3, 2]


def test_a_failed_scrape_does_not_count_everything_again() -> None:
    counters = EngineCounters()
    gained(counters, 100)
    assert counters.gain(engine_row("e1", "m"), T0).counters == {}  # type: ignore[union-attr]
    assert gained(counters, 105) == 5


def test_a_serving_engine_not_scraped_yet_is_no_base_line_but_a_starting_one_is() -> None:
    late, early = EngineCounters(), EngineCounters()
    assert late.gain(engine_row("e1", "m"), T0) is NOTHING
    assert gained(late, 500) == 0
    early.gain(engine_row("e1", "m", state="starting"), T0)
    assert gained(early, 5) == 5


def test_histograms_gain_milliseconds() -> None:
    counters = EngineCounters()
    for values in ([0.05], [0.05, 0.5, 0.5]):
        gain = counters.gain(engine_row("e1", "m", histograms={"transfer": histogram(values)}), T0)
    assert gain is not None
    tally = Tally()
    tally.gain("transfer", gain.latencies["transfer"])
    tally.settle()
    assert tally.sketches["transfer"].count == 2
    assert 100 < (tally.sketches["transfer"].quantile(0.5) or 0) <= 1000 * 1.01


def sketch_of(gain: Gain | None) -> Sketch:
    tally = Tally()
    assert gain is not None
    for name, more in gain.latencies.items():
        tally.gain(name, more)
    tally.settle()
    return tally.sketches["transfer"]


@pytest.mark.parametrize(
    ("before", "now", "bounds", "more"),
    [
        ([0.05] * 5, [0.05] * 7, (0.01, 0.1, 1.0), 2),
        ([0.05] * 5, [0.05] * 2, (0.01, 0.1, 1.0), 2),  # it counts anew
        ([0.05] * 5, [0.5] * 6, (0.01, 0.1, 1.0), 6),  # it counts anew and has overtaken the old count
        ([0.05] * 5, [0.05] * 7, (0.01, 0.2), 7),  # another version with other buckets
        ([0.05] * 5, [0.05] * 5, (0.01, 0.1, 1.0), 0),
    ],
)
def test_a_histogram_that_was_reset_counts_from_zero(
    before: list[float], now: list[float], bounds: tuple[float, ...], more: int
) -> None:
    counters = EngineCounters()
    counters.gain(engine_row("e1", "m", histograms={"transfer": histogram(before)}), T0)
    gain = counters.gain(engine_row("e1", "m", histograms={"transfer": histogram(now, bounds)}), T0 + 1)
    assert sketch_of(gain).count == more


@given(st.lists(st.lists(st.floats(0.001, 3), max_size=8), min_size=2, max_size=10))
def test_histograms_added_up_first_are_the_sketches_of_each(seconds: list[list[float]]) -> None:
    """Of two engines, whose gains of a window become one sketch: count and sum are exact, p99 is in the same bucket."""
    counters, together, values = EngineCounters(), Tally(), []
    so_far: dict[str, list[float]] = {"e1": [], "e2": []}
    for second, some in enumerate(seconds):
        for engine, seen in so_far.items():
            seen.extend(some)
            row = engine_row(engine, "m", histograms={"itl": histogram(seen)})
            gain = counters.gain(row, T0 + second)
            assert gain is not None
            if second:
                values.extend(some)
            for name, more in gain.latencies.items():
                together.gain(name, more)
    together.settle()
    found = together.sketches["itl"]
    assert found.count == pytest.approx(len(values))
    assert found.sum == pytest.approx(1000 * sum(values))
    if values:
        exact = sorted(values)[max(math.ceil(0.99 * len(values)) - 1, 0)]
        low, high = next(((low, high) for low, high in pairwise((0.0, 0.01, 0.1, 1.0)) if low < exact <= high), (1.0, 1.0))
        assert low * 1000 * 0.98 <= (found.quantile(0.99) or 0.0) <= high * 1000 * 1.02


@given(st.lists(st.tuples(st.floats(0, 400), st.floats(0.1, 50)), max_size=60), st.sampled_from([60, 300]))
def test_a_window_holds_what_its_slices_hold(events: list[tuple[float, float]], span_s: int) -> None:
    window, now = Window(), T0 + 400
    for offset, value in events:
        window.over(span_s, T0 + offset)  # reading in between changes nothing
        window.at(T0 + offset).counters["x"] += value
        window.at(T0 + offset).sketches["y"].add(value)
    first = (math.floor(now / 5) - span_s / 5 + 1) * 5
    inside = [value for offset, value in events if T0 + offset >= first]
    total = window.over(span_s, now)
    assert total.counters["x"] == pytest.approx(sum(inside))
    assert total.sketches["y"].count == pytest.approx(len(inside))


def test_a_window_forgets_what_is_older_than_its_horizon() -> None:
    window = Window()
    window.at(T0).counters["x"] += 1
    window.at(T0 + 3600).counters["x"] += 1
    assert window.over(600, T0 + 3600).counters["x"] == 1
    assert window.idle(T0 + 7200)
    assert not window.idle(T0 + 3700)


def test_a_rate_divides_by_the_time_that_was_watched() -> None:
    assert covered_s(60, T0 + 2) == 57
    assert covered_s(60, T0 + 2, since=T0 - 8) == 10


@given(st.lists(st.tuples(st.integers(0, 150), st.one_of(st.none(), st.floats(0, 1, width=32))), max_size=200))
def test_a_minute_mean_is_the_mean_of_the_last_value_of_each_second(values: list[tuple[int, float | None]]) -> None:
    mean, kept, newest = MinuteMeans(2), {}, 0
    for second, value in values:
        newest = max(newest, second)
        mean.add(T0 + second, 0.25, value)
        if value is not None and second > newest - 60:
            kept[second] = value
    inside = [value for second, value in kept.items() if second > newest - 60]
    assert mean.mean(0, T0 + newest) == (0.25 if values else None)
    found = mean.mean(1, T0 + newest)
    assert found == (pytest.approx(sum(inside) / len(inside), abs=1e-6) if inside else None)


def sample(at: float, kind: Any, *rows: Any, received: float | None = None, source: str = "agent:n1") -> Sample[Any]:
    return Sample("0-0", received or at, at, source, kind, rows)


def table(batch: Batch, of: Table) -> list[dict[str, Any]]:
    return [dict(zip(of.columns, row, strict=True)) for row in batch.rows.get(of, {}).values()]


def seconds(rollups: Rollups, count: int, start: float = T0) -> None:
    """One GPU, one engine that makes 5 tokens a second, one request a second."""
    for second in range(count):
        at = start + second
        rollups.consume(sample(at, "gpu", GpuRow("g0", "e1", tensor=0.5, memory_used_bytes=7)), VIEW)
        row = engine_row(
            "e1", "m", counters={"generation_tokens": 5.0 * second}, histograms={"itl": histogram([0.02] * second)}
        )
        rollups.consume(sample(at, "engine", row), VIEW)
        rollups.consume(sample(at, "request", request_row(f"r{second}", "m", at), source="router:r1"), VIEW)


def test_buckets_close_when_their_time_is_over() -> None:
    rollups = Rollups()
    seconds(rollups, 62)
    batch = rollups.closed()
    assert len(table(batch, NODE_SECOND)) == 58
    assert len(table(batch, ENGINE_10S)) == 5
    assert (table(batch, POOL_MINUTE), table(batch, GPU_MINUTE)) == ([], [])
    assert len(table(batch, REQUEST)) == 62
    rollups.advance(T0 + 63)
    batch = rollups.closed()
    (pool,), (model,) = table(batch, POOL_MINUTE), table(batch, MODEL_MINUTE)
    rollups.advance(T0 + 63 + SPREAD_S)
    (gpu,) = table(rollups.closed(), GPU_MINUTE) or table(batch, GPU_MINUTE)
    assert (pool["role"], pool["generation_tokens"], pool["busy_seconds"], pool["running"]) == ("prefill", 295, 30, 1)
    assert (gpu["busy"], gpu["samples"], gpu["memory_used_bytes"], gpu["dram"]) == (0.5, 60, 7, None)
    assert (model["ok"], model["output_tokens"], model["cut"]) == (60, 180, 0)
    assert Sketch.from_bytes(model["ttft_ms"]).quantile(0.99) == pytest.approx(100, rel=0.01)


def test_rows_of_ten_seconds_add_up_to_the_minute() -> None:
    rollups = Rollups()
    seconds(rollups, 60)
    rollups.advance(T0 + 100)
    batch = rollups.closed()
    tens, (minute,) = table(batch, ENGINE_10S), table(batch, POOL_MINUTE)
    assert sum(row["generation_tokens"] for row in tens) == minute["generation_tokens"] == 295
    parts = merged(Sketch.from_bytes(row["itl_ms"]) for row in tens)
    whole = Sketch.from_bytes(minute["itl_ms"])
    assert parts.count == pytest.approx(whole.count)
    assert parts.quantile(0.99) == whole.quantile(0.99)


def test_what_comes_late_counts_in_the_oldest_open_bucket() -> None:
    rollups = Rollups()
    seconds(rollups, 60)
    rollups.advance(T0 + 100)
    rollups.closed()
    row = engine_row("e1", "m", counters={"generation_tokens": 1000.0})
    rollups.consume(sample(T0 + 30, "engine", row, received=T0 + 100), VIEW)
    rollups.advance(T0 + 200)
    batch = rollups.closed()
    assert [(row["at"].timestamp() - T0, row["generation_tokens"]) for row in table(batch, ENGINE_10S)] == [(90, 705)]
    assert [(row["at"].timestamp() - T0, row["generation_tokens"]) for row in table(batch, POOL_MINUTE)] == [(60, 705)]


def test_after_a_restart_buckets_that_were_written_are_left_alone() -> None:
    rollups = Rollups(write_from=T0 + 20)
    seconds(rollups, 60)
    rollups.advance(T0 + 100)
    batch = rollups.closed()
    assert [row["at"].timestamp() - T0 for row in table(batch, ENGINE_10S)] == [20, 30, 40, 50]
    assert table(batch, POOL_MINUTE) == []


@pytest.mark.parametrize("skew_s", [-3600.0, -20.0, 0.4, 20.0, 3600.0])
def test_samples_of_a_clock_that_is_off_are_in_the_seconds_in_which_they_came(skew_s: float) -> None:
    intake, rollups = Intake(Refusals()), Rollups()
    for second in range(70):
        body = (encode(GpuRow("g0", tensor=0.5)),)
        record = Record(1, "agent:n1", "b", second + 1, T0 + second + 0.5 + skew_s, "gpu", body)
        entry = (f"{int((T0 + second + 0.5) * 1000)}-0", bytes(msgpack.packb(encode(record))))
        for each in intake.take([entry]).samples:
            rollups.consume(each, VIEW)
    rollups.advance(T0 + 200)
    seconds = sorted(row["at"].timestamp() - T0 for row in table(rollups.closed(), NODE_SECOND))
    assert len(seconds) in (69, 70, 71)  # at the edge of two seconds a sample may fall into its neighbour
    assert seconds[0] in (-1, 0, 1)
    assert seconds[-1] in (68, 69, 70)


@given(
    st.floats(0, 1, exclude_max=True),
    st.lists(st.floats(-0.1, 0.1), min_size=2, max_size=90),
)
def test_every_second_of_a_node_has_the_row_of_its_own_sample(phase: float, jitter: list[float]) -> None:
    """Wherever in the second it samples, though no two seconds are equally long."""
    rollups = Rollups()
    taken = [T0 + number + phase + each for number, each in enumerate(jitter)]
    for number, at in enumerate(taken):
        rollups.consume(sample(at, "gpu", GpuRow("g0", tensor=number / 100)), VIEW)
        rollups.consume(sample(at, "node", NodeRow("n1", cpu=number / 100)), VIEW)
    rollups.advance(T0 + 200)
    rows = table(rollups.closed(), NODE_SECOND)
    assert [row["cpu"] for row in rows] == [number / 100 for number in range(len(taken))]
    assert all(row["tensor"] == [row["cpu"]] for row in rows)
    starts = [row["at"].timestamp() for row in rows]
    assert starts == [starts[0] + number for number in range(len(taken))]
    assert all(-0.25 < at - start < 1.25 for at, start in zip(taken, starts, strict=True))


def test_a_second_in_which_a_node_told_nothing_has_no_row() -> None:
    rollups = Rollups()
    for at in (0.9, 2.1, 2.9, 5.1, 6.5, 8.4, 9.4):
        rollups.consume(sample(T0 + at, "gpu", GpuRow("g0", tensor=0.5)), VIEW)
    rollups.advance(T0 + 20)
    found = [row["at"].timestamp() - T0 for row in table(rollups.closed(), NODE_SECOND)]
    assert found == [0, 1, 2, 5, 6, 8, 9]


def test_minutes_of_many_gpus_are_written_over_some_seconds_each_once() -> None:
    rollups, written = Rollups(), []
    for number in range(100):
        rollups.consume(sample(T0, "gpu", GpuRow(f"g{number}", tensor=0.5)), VIEW)
    for second in range(60, 75):
        rollups.advance(T0 + second)
        written.append([row["uuid"] for row in table(rollups.closed(), GPU_MINUTE)])
    assert sorted(uuid for uuids in written for uuid in uuids) == sorted(f"g{number}" for number in range(100))
    assert max(map(len, written)) < 30
    assert written[:3] == [[], [], []] and not any(written[3 + SPREAD_S + 1 :])


def test_a_node_and_its_gpus_share_a_row() -> None:
    rollups = Rollups()
    rollups.consume(sample(T0 + 0.2, "gpu", GpuRow("g0", "e1", tensor=1.04), GpuRow("g1")), VIEW)
    rollups.consume(sample(T0 + 0.3, "node", NodeRow("n1", cpu=0.3)), VIEW)
    rollups.advance(T0 + 10)
    (row,) = table(rollups.closed(), NODE_SECOND)
    assert (row["gpus"], row["roles"], row["tensor"], row["cpu"]) == (["g0", "g1"], ["p", ""], [1.0, None], 0.3)


def test_a_request_with_an_impossible_clock_is_filed_under_its_arrival_here() -> None:
    rollups = Rollups()
    rollups.consume(sample(T0, "request", request_row("r", "m", 86_400.0), source="router:r1"), VIEW)
    (row,) = table(rollups.closed(), REQUEST)
    assert row["at"].timestamp() == T0
