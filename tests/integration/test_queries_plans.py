"""What each query costs: how many statements, which partitions, and by which index."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.core.protocol import GpuRow
from controlplane.telemetry.hours import SETTLED_S, roll_up_engines
from controlplane.telemetry.queries.effective import effective_gpus
from controlplane.telemetry.queries.engines import engine_figures, engine_series
from controlplane.telemetry.queries.gpus import gpu_figures, gpu_series
from controlplane.telemetry.queries.handoffs import handoff_split
from controlplane.telemetry.queries.markers import operation_markers
from controlplane.telemetry.queries.models import model_figures, model_series
from controlplane.telemetry.queries.pairs import pair_figures, pair_series
from controlplane.telemetry.queries.pools import pool_figures, pool_series
from controlplane.telemetry.queries.records import RequestFilter
from controlplane.telemetry.queries.requests import find, search, summary
from controlplane.telemetry.queries.transfers import transfer_figures, transfer_series
from controlplane.telemetry.queries.waste import thirty_days
from controlplane.telemetry.queries.windows import Window
from controlplane.telemetry.testing import engine_row, request_row
from tests.integration.queries_kit import HOUR_S, NOON, Recorder

pytestmark = pytest.mark.django_db
DAY_S = 24 * HOUR_S
NOW = NOON + 2 * HOUR_S + SETTLED_S
HOUR, DAY, QUARTER, FINE = (Window.last(span_s, NOW) for span_s in (HOUR_S, DAY_S, 90 * DAY_S, 900.0))


@pytest.fixture
def recorded() -> None:
    """A minute in each of many weeks, and two hours until now; the hours are rolled up."""
    recorder = Recorder()
    moments = [NOON - week * 7 * DAY_S for week in range(12, 0, -1)]
    moments += [NOON + minute * 60 for minute in range(0, 135, 5)]
    for at in moments:
        recorder.take(at, "gpu", GpuRow("g1", "d1", 0.5))
        recorder.take(at, "engine", engine_row("d1", "llama", counters={"transfers": at}))
        row = request_row(f"r{at}", "llama", at, prefill_engine="p1", decode_engine="d1", handoff_ms=5.0)
        recorder.take(at + 1, "request", row)
    recorder.write(NOW)
    recorder.roll_up()
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")  # small tables are read whole, whatever indexes they have


ASKED: dict[str, tuple[int, Callable[[], Any]]] = {
    "model_figures": (2, lambda: model_figures("llama", QUARTER)),
    "model_series of a day": (2, lambda: model_series("llama", DAY)),
    "model_series of a quarter": (2, lambda: model_series("llama", QUARTER)),
    "model_series of minutes": (4, lambda: model_series("llama", FINE)),
    "pool_figures": (2, lambda: pool_figures(HOUR, "llama")),
    "pool_series of a day": (2, lambda: pool_series("llama", DAY)),
    "pool_series of minutes": (3, lambda: pool_series("llama", FINE)),
    "transfer_figures": (2, lambda: transfer_figures(DAY, "llama")),
    "transfer_series": (2, lambda: transfer_series("llama", QUARTER)),
    "pair_figures": (3, lambda: pair_figures("llama", DAY)),
    "pair_series": (3, lambda: pair_series("llama", "p1", "d1", DAY)),
    "handoff_split": (3, lambda: handoff_split("llama", DAY)),
    "effective_gpus": (2, lambda: effective_gpus(DAY, "llama")),
    "engine_series": (2, lambda: engine_series("d1", DAY)),
    "engine_series of a quarter": (2, lambda: engine_series("d1", QUARTER)),
    "engine_figures": (2, lambda: engine_figures(HOUR, "llama")),
    "engine_figures of a quarter": (2, lambda: engine_figures(QUARTER, "llama")),
    "gpu_series": (1, lambda: gpu_series("g1", DAY)),
    "gpu_figures": (1, lambda: gpu_figures(HOUR, ["g1"])),
    "search": (2, lambda: search(RequestFilter(NOW - DAY_S, NOW, models=["llama"]))),
    "find": (1, lambda: find(f"r{NOON}", NOW - DAY_S)),
}


POSITION = "telemetry_position"


def test_queries_ask_so_often_and_go_by_index(recorded: None) -> None:
    for name, (often, ask) in ASKED.items():
        with CaptureQueriesContext(connection) as captured:
            assert ask(), name
        assert len(captured) == often, name
        nodes = [node for query in captured.captured_queries for node in plan_of(query["sql"])]
        whole = {node["Relation Name"] for node in nodes if node["Node Type"] == "Seq Scan"}
        assert {table for table in whole if table.startswith("telemetry_")} <= {POSITION}, name


def test_queries_over_all_models_are_not_more_for_it(recorded: None) -> None:
    for often, ask in (
        (2, lambda: pool_figures(QUARTER)),
        (2, lambda: transfer_figures(DAY)),
        (2, lambda: thirty_days(NOW)),
        (2, lambda: engine_figures(HOUR)),
        (1, lambda: gpu_figures(HOUR)),
        (1, lambda: operation_markers(DAY)),
        (2, lambda: summary(RequestFilter(NOW - DAY_S, NOW), NOW)),
    ):
        with CaptureQueriesContext(connection) as captured:
            ask()
        assert len(captured) == often


def test_a_chart_of_hours_reads_minutes_only_after_the_last_whole_hour(recorded: None) -> None:
    partitions = tables_of(lambda: model_series("llama", QUARTER))
    minutes = {name for name in partitions if name.startswith("telemetry_model_minute")}
    assert minutes <= {"telemetry_model_minute_20261126t0000", "telemetry_model_minute_default"}
    assert len([name for name in partitions if name.startswith("telemetry_model_hour")]) > 3


def test_figures_of_engines_read_ten_seconds_only_around_whole_hours(recorded: None) -> None:
    for window, parts in ((DAY, 3), (QUARTER, 2)):
        with CaptureQueriesContext(connection) as captured:
            (figures,) = engine_figures(window, "llama")
        query = captured.captured_queries[-1]["sql"]
        assert query.count('FROM "telemetry_engine_') == parts
        assert query.count('FROM "telemetry_engine_hour"') == 1
        assert figures.running.count > 0
    partitions = tables_of(lambda: engine_figures(QUARTER, "llama"))
    tens = {name for name in partitions if name.startswith("telemetry_engine_10s")}
    assert tens <= {"telemetry_engine_10s_20261130t1200", "telemetry_engine_10s_default"}
    assert len([name for name in partitions if name.startswith("telemetry_engine_hour")]) > 3


def test_hours_of_engines_are_made_from_ten_seconds_by_index(recorded: None) -> None:
    Recorder().write(NOW + 2 * HOUR_S)
    with CaptureQueriesContext(connection) as captured:
        assert roll_up_engines(Recorder().partitions, 1) == 1
    asked = [query["sql"] for query in captured.captured_queries if 'FROM "telemetry_engine_10s"' in query["sql"]]
    assert len(asked) == 2  # is there anything, and all of it
    for query in asked:
        nodes = plan_of(query.partition(" FOR ")[2] if query.startswith("DECLARE") else query)
        assert "Seq Scan" not in {node["Node Type"] for node in nodes}


def test_a_chart_of_minutes_reads_the_partitions_of_its_window_alone(recorded: None) -> None:
    assert tables_of(lambda: pool_series("llama", DAY)) <= {
        "telemetry_pool_minute_20261126t0000",
        "telemetry_pool_minute_default",
        POSITION,
    }


def test_the_newest_requests_are_read_in_order_and_not_sorted_whole(recorded: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_sort = off")  # so few are sorted as fast, if the statistics of the moment say so
    with CaptureQueriesContext(connection) as captured:
        search(RequestFilter(NOW - 90 * DAY_S, NOW))
    kinds = [node["Node Type"] for node in plan_of(captured.captured_queries[0]["sql"])]
    assert "Sort" not in kinds
    assert "Index Scan" in kinds


def tables_of(ask: Callable[[], Any]) -> set[str]:
    with CaptureQueriesContext(connection) as captured:
        ask()
    nodes = (node for query in captured.captured_queries for node in plan_of(query["sql"]))
    return {node["Relation Name"] for node in nodes if "Relation Name" in node}


def plan_of(query: str) -> list[dict[str, Any]]:
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN (FORMAT JSON) " + query)
        (found,) = cursor.fetchone()
    plan = json.loads(found) if isinstance(found, str) else found
    return list(nodes_of(plan[0]["Plan"]))


def nodes_of(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from nodes_of(child)
