"""A source of telemetry for tests: speaks to the real stream as an agent or a router does, at times that a test chooses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgpack
import redis

from controlplane.core import names
from controlplane.core.codec import encode
from controlplane.core.protocol import (
    VERSION,
    EngineRow,
    GpuRow,
    Histogram,
    NodeRow,
    Record,
    RecordKind,
    RequestRow,
    RouterRow,
    UsageRow,
)

Row = GpuRow | EngineRow | NodeRow | RouterRow | RequestRow | UsageRow


class Source:
    """Counts `seq` as the contract asks. `skew_s`: how much its clock is ahead of the stream's."""

    def __init__(self, valkey: redis.Redis, name: str, boot: str = "boot-1", skew_s: float = 0.0) -> None:
        self.name, self.boot, self.skew_s = name, boot, skew_s
        self.seq = 0
        self._valkey = valkey

    def send(self, kind: RecordKind, rows: Sequence[Row], at: float | None = None) -> str:
        """The stream id. `at` is when the record arrives, on the stream's clock: now, or a time after the newest entry."""
        self.seq += 1
        if at is None:
            seconds, micros = self._valkey.time()
            taken, id = seconds + micros / 1e6, "*"
        else:
            taken, id = at, f"{int(at * 1000)}-*"
        body = tuple(encode(row) for row in rows)
        record = Record(VERSION, self.name, self.boot, self.seq, taken + self.skew_s, kind, body)
        return self.send_raw(msgpack.packb(encode(record)), id)

    def send_raw(self, raw: bytes, id: str = "*") -> str:
        position: Any = self._valkey.xadd(names.TELEMETRY_STREAM, {"r": raw}, id=id)
        return str(position.decode())


def engine_row(engine: str, model: str, incarnation: int = 1, **values: Any) -> EngineRow:
    """A ready engine; counters and histograms by name."""
    known: dict[str, Any] = {"state": "ready", "running": 1, "waiting": 0, "kv_usage": 0.25} | values
    return EngineRow(engine=engine, model=model, incarnation=incarnation, **known)


def histogram(values_s: Sequence[float], bounds: Sequence[float] = (0.01, 0.1, 1.0)) -> Histogram:
    """Cumulative counts of these values, as an engine's /metrics would show them."""
    counts = tuple(float(sum(value <= bound for value in values_s)) for bound in bounds)
    return Histogram(tuple(bounds), counts, float(sum(values_s)), float(len(values_s)))


def request_row(id: str, model: str, arrived_at: float, **values: Any) -> RequestRow:
    """A request that went well through the disaggregated path."""
    known: Mapping[str, Any] = {
        "path": "disaggregated",
        "reason": "mode",
        "status": 200,
        "outcome": "ok",
        "stream": True,
        "ttft_ms": 100.0,
        "total_ms": 900.0,
        "itl_ms": (20.0, 20.0),
        "output_tokens": 3,
        "prompt_tokens": 50,
    }
    return RequestRow(id=id, model=model, arrived_at=arrived_at, **{**known, **values})
