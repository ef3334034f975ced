"""Windows and their cells, a request's stages, and what exports write."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.telemetry.queries.exports import (
    Table,
    all_series,
    csv_file,
    csv_lines,
    figures_table,
    json_document,
    series_table,
    utc,
)
from controlplane.telemetry.queries.figures import Figure, Latency, LatencySeries, Series
from controlplane.telemetry.queries.records import RequestRecord
from controlplane.telemetry.queries.waterfall import stages
from controlplane.telemetry.queries.windows import (
    MAX_CELLS,
    MAX_SPAN_S,
    STEPS_S,
    BadWindow,
    Level,
    Window,
    cells,
)

NOW = 1_796_040_000.0
DAY_S = 86_400


@pytest.mark.parametrize(
    ("span_s", "step_s"),
    [(60, 10), (1800, 10), (1801, 60), (3600, 60), (6 * 3600, 60), (DAY_S, 300), (30 * DAY_S, 7200), (90 * DAY_S, 21_600)],
)
def test_a_chart_has_the_finest_cells_that_fit(span_s: float, step_s: int) -> None:
    assert Window.last(span_s, NOW).step_s == step_s


@given(since=st.floats(0, NOW), span_s=st.floats(1, MAX_SPAN_S))
def test_cells_cover_the_window_and_are_whole_rows_of_their_level(since: float, span_s: float) -> None:
    window = Window(since, since + span_s, NOW + MAX_SPAN_S)
    if window.since >= window.until:
        return
    for finest in Level:
        chart = cells(window, finest)
        assert chart.since <= window.since < window.until <= chart.until
        assert len(chart.starts) <= MAX_CELLS
        assert chart.step_s % chart.level == 0
        assert chart.step_s in STEPS_S
        assert all(start % chart.step_s == 0 for start in chart.starts)


@pytest.mark.parametrize(
    ("since", "until", "why"),
    [
        (NOW, NOW, "later than the beginning"),
        (NOW, NOW - 1, "later than the beginning"),
        (-1.0, NOW, "later than the beginning"),
        (NOW + 1, NOW + 2, "future"),
        (NOW - MAX_SPAN_S - 1, NOW, "at most 400 days"),
        (math.nan, NOW, "not a number"),
        (0.0, math.inf, "not a number"),
    ],
)
def test_a_window_that_cannot_be_shown_is_refused_with_the_reason(since: float, until: float, why: str) -> None:
    with pytest.raises(BadWindow, match=why):
        Window(since, until, NOW)


def record(**values: Any) -> RequestRecord:
    empty = {field.name: None for field in dataclasses.fields(RequestRecord)}
    return RequestRecord(**{**empty, **values})


def test_a_split_request_is_queue_prefill_handoff_decode() -> None:
    found = stages(record(queue_ms=5.0, prefill_ms=70.0, handoff_ms=25.0, ttft_ms=100.0, total_ms=900.0))
    assert [(stage.name, stage.start_ms, stage.duration_ms) for stage in found] == [
        ("queue", 0, 5),
        ("prefill", 5, 70),
        ("handoff", 75, 25),
        ("decode", 100, 800),
    ]


def test_time_lost_to_legs_that_failed_is_shown_as_such() -> None:
    found = stages(record(queue_ms=5.0, prefill_ms=70.0, handoff_ms=25.0, ttft_ms=300.0, total_ms=900.0))
    assert [(stage.name, stage.duration_ms) for stage in found] == [
        ("queue", 5), ("retries", 200), ("prefill", 70), ("handoff", 25), ("decode", 600),
    ]  # fmt: skip


def test_a_whole_request_has_no_prefill_of_its_own_and_a_failed_one_no_decode() -> None:
    whole = stages(record(queue_ms=5.0, ttft_ms=80.0, total_ms=900.0))
    assert [stage.name for stage in whole] == ["queue", "first_byte", "decode"]
    failed = stages(record(queue_ms=5.0, prefill_ms=70.0, total_ms=90.0))
    assert [(stage.name, stage.duration_ms) for stage in failed] == [("queue", 5), ("retries", 15), ("prefill", 70)]
    assert stages(record()) == []


times = st.none() | st.floats(0, 1e6)


@given(times, times, times, times, times)
def test_stages_follow_each_other_to_the_end_whatever_a_record_says(
    queue: float | None, prefill: float | None, handoff: float | None, ttft: float | None, total: float | None
) -> None:
    found = stages(record(queue_ms=queue, prefill_ms=prefill, handoff_ms=handoff, ttft_ms=ttft, total_ms=total))
    end = 0.0
    for stage in found:
        assert stage.start_ms == pytest.approx(end)
        assert stage.duration_ms > 0
        end = stage.start_ms + stage.duration_ms
    assert end == pytest.approx(total or 0.0, abs=1e-6)


def figure(value: float | None, unit: str = "ms") -> Figure:
    return Figure(value, unit, 60.0, 1.0, NOW, False)


@dataclasses.dataclass(frozen=True)
class Item:
    name: str
    ended_at: float | None
    running: Figure
    ttft: Latency
    parts: list[str]


def test_a_table_has_a_column_per_figure_with_its_unit_and_leaves_the_unknown_empty() -> None:
    latency = Latency(figure(1.5), figure(None), figure(3.0), figure(2.0))
    table = figures_table([Item("=cmd|'/c calc'!A0", 0.5, figure(-2.0, "requests"), latency, ["x"])])
    assert table.columns == ["name", "ended_at", "running", "ttft_p50", "ttft_p90", "ttft_p99", "ttft_mean"]
    head, row = csv.reader(csv_lines(table))
    assert head[:3] == ["name", "ended_at (UTC)", "running (requests)"]
    assert head[3:] == ["ttft_p50 (ms)", "ttft_p90 (ms)", "ttft_p99 (ms)", "ttft_mean (ms)"]
    assert row == ["'=cmd|'/c calc'!A0", "1970-01-01T00:00:00.500Z", "-2.0", "1.5", "", "3.0", "2.0"]
    document = json.loads(json.dumps(json_document(table)))
    assert document["columns"][2] == {"name": "running", "unit": "requests"}
    assert document["rows"] == [["=cmd|'/c calc'!A0", "1970-01-01T00:00:00.500Z", -2.0, 1.5, None, 3.0, 2.0]]
    assert list(csv_lines(figures_table([]))) == ["\r\n"]


@dataclasses.dataclass(frozen=True)
class Chart:
    model: str
    rate: Series
    ttft: LatencySeries


def test_a_chart_s_table_has_a_row_per_time_and_keeps_gaps_empty() -> None:
    coarse = Series([0, 60], 60, [0.0, None], "1/s")
    fine = Series([0, 10], 10, [None, 0.5], "ms")
    table = series_table(all_series(Chart("llama", coarse, LatencySeries(fine, fine, fine))))
    assert [list(row) for row in csv.reader(csv_lines(table))] == [
        ["time (UTC)", "rate (1/s)", "ttft_p50 (ms)", "ttft_p99 (ms)", "ttft_count (ms)"],
        ["1970-01-01T00:00:00Z", "0.0", "", "", ""],
        ["1970-01-01T00:00:10Z", "", "0.5", "0.5", "0.5"],
        ["1970-01-01T00:01:00Z", "", "", "", ""],
    ]
    assert utc(1.5) == "1970-01-01T00:00:01.500Z"


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1d1", "\uff201"])
def test_no_text_of_a_file_is_a_formula_to_a_spreadsheet(name: str) -> None:
    head, row = list(csv.reader(io.StringIO(csv_file(Table([name], [""], [[name]])).lstrip("\ufeff"))))
    assert head == row == [f"'{name}"]
    assert list(csv.reader(csv_lines(Table(["x"], [""], [[-1.5]]))))[1] == ["-1.5"], "numbers stay numbers"


def test_a_file_with_other_letters_says_that_it_is_utf_8() -> None:
    assert csv_file(Table(["team"], [""], [["Đội tìm kiếm"]])).startswith("\ufeffteam\r\n")
    assert csv_file(Table(["team"], [""], [["search"]])) == "team\r\nsearch\r\n"
