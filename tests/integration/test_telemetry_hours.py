"""Hours are what their minutes are together, are made once they are settled, and may be made again."""

from __future__ import annotations

import random
from typing import Any

import pytest
from django.db import connection

from controlplane.celery import app
from controlplane.control import commands, tasks
from controlplane.control.pacer import BEAT_SCHEDULE
from controlplane.core.protocol import GpuRow, Passed, RouterRow
from controlplane.core.sketches import Sketch
from controlplane.telemetry.hours import SETTLED_S, roll_up
from controlplane.telemetry.testing import engine_row, request_row
from tests.integration.queries_kit import HOUR_S, NOON, Recorder

pytestmark = pytest.mark.django_db


def ask(query: str, *values: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        return list(cursor.fetchall())


def record_an_hour(recorder: Recorder) -> list[float]:
    """Two requests each minute; the GPU works in the first half only, and tells nothing in the last ten minutes."""
    draw = random.Random(7)
    values = []
    for minute in range(60):
        at = NOON + 60 * minute
        recorder.take(
            at, "engine", engine_row("d1", "llama", running=minute, waiting=1, counters={"requests": minute * 3.0})
        )
        recorder.take(at + 0.5, "gpu", GpuRow("g1", "d1", None if minute >= 50 else float(minute < 30)))
        for number in range(2):
            values.append(draw.lognormvariate(5, 1))
            row = request_row(
                f"r{minute}.{number}",
                "llama",
                at,
                ttft_ms=values[-1],
                handoff_ms=values[-1] / 2,
                prefill_engine="p1",
                decode_engine="d1",
                kv_bytes=10,
                weight=2,
            )
            recorder.take(at + 1, "request", row)
    return values


def test_an_hour_holds_what_its_minutes_hold_together() -> None:
    recorder = Recorder()
    values = record_an_hour(recorder)
    recorder.write(NOON + HOUR_S + SETTLED_S)
    assert recorder.roll_up() == 1
    ((ok, sketch, minutes),) = ask("SELECT ok, ttft_ms, minutes FROM telemetry_model_hour WHERE model = 'llama'")
    merged, raw = Sketch.from_bytes(bytes(sketch)), Sketch.of(values, 2)
    assert (ok, minutes, merged.count) == (240, 60, raw.count)
    assert merged.buckets == raw.buckets
    assert merged.sum == pytest.approx(raw.sum)
    pool = ask(
        "SELECT gpus, gpu_seconds, busy_seconds, known_seconds, tensor, running, waiting_max, requests, itl_ms, minutes "
        "FROM telemetry_pool_hour WHERE model = 'llama' AND role = 'decode'"
    )
    assert pool == [(1, 60, 30, 50, pytest.approx(0.6), pytest.approx(29.5), 1, 59 * 3, None, 60)]
    pair = ask("SELECT prefill, decode, handoffs, failed, kv_bytes, minutes FROM telemetry_pair_hour")
    assert pair == [("p1", "d1", 240, 0, 2400, 60)]


@pytest.mark.django_db(transaction=True)
def test_the_control_worker_rolls_up_from_its_beat() -> None:
    recorder = Recorder()
    record_an_hour(recorder)
    recorder.write(NOON + HOUR_S + SETTLED_S)
    asked = {entry["task"] for entry in BEAT_SCHEDULE.values()}
    assert commands.ROLL_UP_HOURS in asked <= app.tasks.keys()
    tasks.roll_up_hours()
    assert ask("SELECT count(*) FROM telemetry_model_hour") == [(1,)]
    engines = ask(
        "SELECT engine, role, samples, running, running_max, waiting_max, requests, tens FROM telemetry_engine_hour"
    )
    assert engines == [("d1", "decode", 60, pytest.approx(29.5), 59, 1, 59 * 3, 60)]


def test_an_hour_is_made_only_when_the_stream_was_read_well_beyond_it() -> None:
    recorder = Recorder()
    record_an_hour(recorder)
    recorder.write(NOON + HOUR_S + SETTLED_S - 1)
    assert recorder.roll_up() == 0
    recorder.write(NOON + HOUR_S + SETTLED_S)
    assert recorder.roll_up() == 1
    assert recorder.roll_up() == 0


def test_hours_in_which_nothing_was_recorded_are_passed_over_and_the_work_is_shared_out() -> None:
    recorder = Recorder()
    for hour in (0, 1, 30):
        recorder.take(NOON + hour * HOUR_S, "router", RouterRow("r1", 0, 0, 0, 0, 0))
    recorder.write(NOON + 40 * HOUR_S)
    assert roll_up(recorder.partitions, 2) == 2
    assert roll_up(recorder.partitions, 2) == 1
    hours = ask(
        "SELECT (extract(epoch FROM at)::float8 - %s) / 3600, ok, minutes FROM telemetry_model_hour ORDER BY at", NOON
    )
    assert hours == [(0, 0, 1), (1, 0, 1), (30, 0, 1)]


def test_a_minute_without_requests_is_zero_where_a_router_reported_and_missing_where_none_did() -> None:
    recorder = Recorder()
    recorder.take(NOON, "router", RouterRow("r1", 0, 0, 0, 0, 0))
    recorder.take(NOON + 120, "request", request_row("r", "llama", NOON + 119, total_ms=500.0))
    recorder.write(NOON + 300)
    rows = ask("SELECT (extract(epoch FROM at)::float8 - %s)::int, ok FROM telemetry_model_minute ORDER BY at", NOON)
    assert rows == [(0, 0), (60, 1)]


def test_gpus_that_no_model_holds_are_a_pool_without_a_name() -> None:
    recorder = Recorder()
    recorder.take(NOON, "gpu", GpuRow("g1", "d1", 0.5), GpuRow("g2", "", 0.0), GpuRow("g3", "gone", None))
    recorder.write(NOON + 100)
    rows = ask(
        "SELECT model, role, gpus, gpu_seconds, busy_seconds, known_seconds FROM telemetry_pool_minute ORDER BY model"
    )
    assert rows == [("", "", 2, 2, 0, 1), ("llama", "decode", 1, 1, 0.5, 1)]


def test_what_a_record_tells_of_session_arm_weight_and_engines_passed_over_is_kept() -> None:
    recorder = Recorder()
    row = request_row(
        "r",
        "llama",
        NOON,
        queue_ms=3.0,
        resumes=1,
        weight=7,
        session="0123456789abcdef",
        arm="canary",
        passed=(Passed("decode", "d2", 0.25),),
    )
    recorder.take(NOON, "request", row)
    recorder.write(NOON + 100)
    rows = ask("SELECT queue_ms, resumes, weight, session, arm, passed::text FROM telemetry_request")
    assert rows == [(3.0, 1, 7, "0123456789abcdef", "canary", '[["decode", "d2", 0.25]]')]


def test_a_failed_handoff_is_told_of_its_pair() -> None:
    recorder = Recorder()
    pair = {"prefill_engine": "p1", "decode_engine": "d1"}
    recorder.take(NOON, "request", request_row("r1", "llama", NOON, outcome="engine_error", **pair))
    recorder.take(NOON, "request", request_row("r2", "llama", NOON, outcome="cancelled", **pair))
    recorder.take(NOON, "request", request_row("r3", "llama", NOON, handoff_ms=40.0, outcome="cut", **pair))
    recorder.write(NOON + 100)
    assert ask("SELECT handoffs, failed FROM telemetry_pair_minute") == [(1, 1)]
