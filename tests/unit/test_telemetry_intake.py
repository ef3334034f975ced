"""What is taken from the telemetry stream: strict shapes, one clock, no duplicate, every gap counted."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from controlplane.core.codec import WrongShape, encode
from controlplane.core.protocol import EngineRow, GpuRow, Histogram, Passed, Record, RequestRow
from controlplane.telemetry import records
from controlplane.telemetry.clocks import SourceClock
from controlplane.telemetry.intake import Intake, Refusals


def raw(kind: str = "gpu", rows: tuple[Any, ...] = (), source: str = "agent:n1", **values: Any) -> bytes:
    known = {"v": 1, "boot": "b", "seq": 1, "at": 1000.0} | values
    return bytes(msgpack.packb(encode(Record(source=source, kind=kind, rows=tuple(encode(row) for row in rows), **known))))


def engine(**values: Any) -> EngineRow:
    return EngineRow(
        **{"engine": "e1", "model": "m", "incarnation": 1, "state": "ready", "running": 0, "waiting": 0} | values
    )


def request(**values: Any) -> RequestRow:
    known = {"id": "r", "model": "m", "path": "whole", "reason": "mode", "status": 200, "outcome": "ok", "arrived_at": 999.0}
    return RequestRow(**known | values)


def test_rows_come_out_typed() -> None:
    _, rows = records.read(raw(rows=(GpuRow("g1", tensor=0.5),)))
    assert rows == (GpuRow("g1", tensor=0.5),)


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\xc1",
        b"\x81\xa1v",
        b"x" * (records.MAX_BYTES + 1),
        msgpack.packb([1, 2]),
        msgpack.packb({"v": 1}),
        raw(v=2),
        raw(seq=-1),
        raw(at=-5.0),
        raw(source="agent:../../x y"),
        raw(source="stranger:n1"),
        raw(source="router:r1"),
        raw("request", (request(),)),
        raw(rows=(GpuRow("g1", tensor=40.0),)),
        raw(rows=(GpuRow("g\x00"),)),
        raw(rows=(GpuRow("g" * 300),)),
        raw(rows=(GpuRow("g1", memory_used_bytes=1 << 62),)),
        raw("engine", (engine(running=1 << 40),)),
        raw("engine", (engine(counters={"requests": -1.0}),)),
        raw("engine", (engine(histograms={"ttft": Histogram((1.0, 0.5), (0.0, 0.0), 0.0, 0.0)}),)),
        raw("engine", (engine(histograms={"ttft": Histogram((1.0,), (0.0, 0.0), 0.0, 0.0)}),)),
        raw("engine", (engine(histograms={"ttft": Histogram((1.0, 2.0), (5.0, 4.0), 0.0, 5.0)}),)),
        raw("request", (request(retries=100_000),), source="router:r1"),
        raw("request", (request(outcome="great"),), source="router:r1"),
        raw("request", (request(itl_ms=(1.0,) * 600),), source="router:r1"),
        raw("request", (request(resumes=100_000),), source="router:r1"),
        raw("request", (request(passed=(Passed("decode", "d\x00", 1.0),)),), source="router:r1"),
        raw("request", (request(passed=(Passed("decode", "d1", float("nan")),)),), source="router:r1"),
        msgpack.packb({"v": 1, "source": "agent:n1", "boot": "b", "seq": 1, "at": float("nan"), "kind": "gpu", "rows": []}),
    ],
)
def test_anything_else_is_refused(bad: bytes) -> None:
    with pytest.raises(WrongShape):
        records.read(bad)


def test_a_refused_record_is_counted_and_said_once_per_source(caplog: pytest.LogCaptureFixture) -> None:
    intake = Intake(Refusals())
    taken = intake.take([("1000-0", b"?"), ("1000-1", raw(v=7)), ("1000-2", raw(v=7)), ("1000-3", None), ("1000-4", raw())])
    assert len(taken.samples) == 1
    assert intake.counts["refused"] == 4
    assert [record.getMessage().split(" refused")[0] for record in caplog.records] == [
        "telemetry record of an unknown source",
        "telemetry record of agent:n1",
    ]


def test_a_hole_in_the_sequence_is_a_gap_and_a_repeat_is_dropped() -> None:
    intake = Intake(Refusals())
    taken = intake.take([(f"{1000 + seq}-0", raw(seq=seq)) for seq in (1, 2, 2, 6, 5, 7)])
    assert [sample.position for sample in taken.samples] == ["1001-0", "1002-0", "1006-0", "1007-0"]
    assert taken.missing == [(1.006, 3)]
    assert intake.counts["duplicates"] == 2


def test_a_source_that_started_again_counts_anew() -> None:
    intake = Intake(Refusals())
    taken = intake.take([("1000-0", raw(seq=9)), ("1001-0", raw(seq=1, boot="other")), ("1002-0", raw(seq=2, boot="other"))])
    assert len(taken.samples) == 3
    assert taken.missing == []


def test_clocks_that_agree_are_left_alone() -> None:
    clock = SourceClock()
    assert [clock.correct(100 + i, 100.2 + i) for i in range(3)] == [100, 101, 102]


@pytest.mark.parametrize("skew_s", [3600.0, 30.0, -30.0, -3600.0])
def test_a_clock_that_is_off_is_corrected(skew_s: float) -> None:
    clock = SourceClock()
    at = [clock.correct(1000.0 + i + skew_s, 1000.05 + i) for i in range(100)]
    assert at == [pytest.approx(1000.0 + i, abs=0.1) for i in range(100)]


def test_records_held_back_keep_the_time_they_were_taken() -> None:
    clock = SourceClock()
    clock.correct(1000.0, 1000.0)
    assert [clock.correct(1000.0 + i, 1020.0) for i in (1, 10, 20)] == [1001, 1010, 1020]


def test_a_clock_that_was_set_back_is_followed() -> None:
    clock = SourceClock()
    clock.correct(10_000.0, 10_000.0)
    assert clock.correct(5000.0, 10_001.0) == 10_001
    assert clock.correct(5001.0, 10_002.0) == 10_002


def test_no_sample_is_later_than_its_arrival() -> None:
    clock = SourceClock()
    clock.correct(100.0, 100.0)
    assert clock.correct(101.9, 101.0) == 101.0
