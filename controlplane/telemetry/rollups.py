"""From samples to rows: one per node and second, then minutes and ten seconds, closed once their time is over. Pure.

A bucket is written when the stream has moved past its end by LATE_S; what comes later counts in the oldest open bucket, so
that sums stay right. Minutes of GPUs and pairs, thousands at once in a large fleet, are written over SPREAD_S. Rows have
natural keys: samples read again after a restart make the same rows again.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import TypeVar, cast

from controlplane.core.protocol import EngineRow, GpuRow, NodeRow, RequestRow, UsageRow
from controlplane.telemetry.accumulators import (
    EngineTenSeconds,
    GpuMinute,
    ModelMinute,
    NodeSecond,
    PairMinute,
    PoolMinute,
)
from controlplane.telemetry.clocks import LATE_S as HELD_BACK_S
from controlplane.telemetry.clocks import CountedSeconds, NodeSeconds
from controlplane.telemetry.deltas import FORGET_S, EngineCounters
from controlplane.telemetry.records import Row, Sample, busy, finished_at
from controlplane.telemetry.tables import REQUEST, USAGE, Batch, moment
from controlplane.telemetry.view import FleetView

LATE_S = 3.0
SECOND_S, TEN_SECONDS_S, MINUTE_S = 1, 10, 60
SPREAD_S = 6
LONGEST_OPEN_S = MINUTE_S + LATE_S + SPREAD_S
"""No bucket that started earlier than this before the watermark is still open."""
MAX_AGE_S = 86_400.0
"""A request that claims to have arrived longer before its record than this has a wrong clock; its record's time is taken."""

Bucket = NodeSecond | GpuMinute | EngineTenSeconds | PoolMinute | ModelMinute | PairMinute
NOT_COPIED = frozenset({"at", "router", "itl_ms", "passed"})
"""Columns of a request's row that are not just the record's field of that name."""
B = TypeVar("B", bound=Bucket)


class Rollups:
    def __init__(self, write_from: float = 0.0) -> None:
        """Buckets that start before `write_from` are left alone: they were written whole before the restart."""
        self._write_from = write_from
        self._watermark = 0.0
        self._counters = EngineCounters()
        self._open: dict[tuple[object, ...], Bucket] = {}
        self._due: defaultdict[float, list[tuple[object, ...]]] = defaultdict(list)
        """Keys of open buckets by the watermark at which they are written."""
        self._seconds = NodeSeconds()
        self._counted = CountedSeconds()
        self._ready = Batch()

    def consume(self, sample: Sample[Row], view: FleetView) -> None:
        self.advance(sample.received)
        if sample.kind == "gpu":
            self._gpus(sample.sender, cast(tuple[GpuRow, ...], sample.rows), sample.at, view)
        elif sample.kind == "node":
            for node in cast(tuple[NodeRow, ...], sample.rows):
                self._node_second(sample.sender, self._seconds.of(sample.sender, sample.at)).node_row = node
        elif sample.kind == "engine":
            second = self._seconds.of(sample.sender, sample.at)
            for engine in cast(tuple[EngineRow, ...], sample.rows):
                self._engine(engine, sample.at, second, view)
        elif sample.kind == "router":
            span_s = self._counted.since_last(("router", sample.sender), int(sample.at), int(HELD_BACK_S))
            for model in view.models:
                told_s = self._counted.more(("model", model.name), int(sample.at), span_s)
                self._model(model.name, sample.at).told_s += told_s
        elif sample.kind == "request":
            for request in cast(tuple[RequestRow, ...], sample.rows):
                self._request(request, sample)
        elif sample.kind == "usage":
            for usage in cast(tuple[UsageRow, ...], sample.rows):
                at = _plausible(usage.at, sample)
                self._ready.add(USAGE, {**vars(usage), "at": moment(at), "router": sample.sender})

    def advance(self, watermark: float) -> None:
        """The stream holds nothing unread that arrived before `watermark`."""
        self._watermark = max(self._watermark, watermark)

    def closed(self) -> Batch:
        """The rows finished since the last call."""
        for due in sorted(due for due in self._due if due <= self._watermark):
            for key in self._due.pop(due):
                bucket = self._open.pop(key)
                if bucket.start >= self._write_from:
                    bucket.add_to(self._ready)
        batch, self._ready = self._ready, Batch()
        self._counters.forget(self._watermark)
        self._seconds.forget(self._watermark)
        self._counted.forget(self._watermark - FORGET_S)
        return batch

    def _start(self, at: float, width_s: int) -> int:
        """The bucket for something that happened at `at`: its own, or the oldest that is still open."""
        oldest_open = int((self._watermark - LATE_S) // width_s) * width_s
        return max(int(at // width_s) * width_s, oldest_open)

    def _bucket(self, key: tuple[object, ...], make: Callable[[], B], spread_by: str = "") -> B:
        """The open bucket of this key, whose first part names its class. `spread_by`: those of different names are not all
        written at once."""
        found = self._open.get(key)
        if found is None:
            found = self._open[key] = make()
            delay_s = zlib.crc32(spread_by.encode()) % (SPREAD_S + 1) if spread_by else 0
            self._due[found.start + found.width_s + LATE_S + delay_s].append(key)
        return cast(B, found)

    def _node_second(self, node: str, second: int) -> NodeSecond:
        start = self._start(second, SECOND_S)
        return self._bucket(("node", node, start), lambda: NodeSecond(start, SECOND_S, node))

    def _gpus(self, node: str, rows: tuple[GpuRow, ...], at: float, view: FleetView) -> None:
        roles = [view.role_of(row.engine) for row in rows]
        second = self._seconds.of(node, at)
        self._node_second(node, second).set_gpus(rows, roles)
        start = self._start(at, MINUTE_S)
        pool, engine = None, ""
        for row, role in zip(rows, roles, strict=True):
            if pool is None or row.engine != engine:  # neighbours often have the same
                engine = row.engine
                model = view.engines[engine].model if engine in view.engines else ""
                pool = self._recorded_pool(model, role, start, second)
            share_of_it = busy(row)
            minute = self._bucket(("gpu", row.uuid, start), partial(GpuMinute, start, MINUTE_S, row.uuid), row.uuid)
            minute.add(node, row, role, share_of_it)
            pool.add_gpu(row, share_of_it)

    def _pool(self, model: str, role: str, start: int) -> PoolMinute:
        return self._bucket(("pool", model, role, start), lambda: PoolMinute(start, MINUTE_S, model, role))

    def _recorded_pool(self, model: str, role: str, start: int, second: int) -> PoolMinute:
        pool = self._pool(model, role, start)
        pool.recorded_s += self._counted.more(("recorded", model, role), second)
        return pool

    def _engine(self, row: EngineRow, at: float, second: int, view: FleetView) -> None:
        gain = self._counters.gain(row, at)
        if gain is None:
            return
        role = view.role_of(row.engine)
        start = self._start(at, TEN_SECONDS_S)
        key = ("engine", row.engine, row.incarnation, role, start)
        make = partial(EngineTenSeconds, start, TEN_SECONDS_S, row.engine, row.incarnation, role, row.model)
        span_s = self._counted.since_last(("engine", row.engine), second, int(FORGET_S))
        tenth = self._bucket(key, make)
        tenth.add(row, gain)
        tenth.told_s += span_s
        pool = self._recorded_pool(row.model, role, self._start(at, MINUTE_S), second)
        pool.add_engine(row, gain)
        pool.told_s += self._counted.more(("told", row.model, role), second, span_s)

    def _model(self, model: str, at: float) -> ModelMinute:
        start = self._start(at, MINUTE_S)
        return self._bucket(("model", model, start), lambda: ModelMinute(start, MINUTE_S, model))

    def _pair(self, row: RequestRow, at: float) -> PairMinute:
        key = (row.model, row.prefill_engine, row.decode_engine)
        start = self._start(at, MINUTE_S)
        engines = f"{row.prefill_engine} {row.decode_engine}"
        return self._bucket(("pair", *key, start), lambda: PairMinute(start, MINUTE_S, *key), engines)

    def _request(self, row: RequestRow, sample: Sample[Row]) -> None:
        finished = finished_at(sample, row)
        self._model(row.model, finished).add(row, finished)
        if row.prefill_engine and row.decode_engine:
            self._pair(row, finished).add(row)
        self._ready.add(
            REQUEST,
            {
                **{name: getattr(row, name) for name in REQUEST.columns if name not in NOT_COPIED},
                "at": moment(_plausible(row.arrived_at, sample)),
                "router": sample.sender,
                "itl_ms": list(row.itl_ms),
                "passed": json.dumps([[each.leg, each.engine, each.score_s] for each in row.passed]),
            },
        )


def _plausible(at: float, sample: Sample[Row]) -> float:
    """`at`, or when it came if that cannot be."""
    return at if abs(sample.received - at) <= MAX_AGE_S else sample.received
