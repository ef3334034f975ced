"""The thread that talks to PostgreSQL: reads the fleet about every second, stores what the stream brought, keeps partitions.

It alone waits when PostgreSQL is away; live rows go on with the fleet as it was last known. Nothing is lost as long as it is
in the stream: the position is stored with the rows, and after an outage or a restart reading goes on from there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping

import redis
from django.db import connection

from controlplane.config import config
from controlplane.telemetry import fleet_view, stream
from controlplane.telemetry.buffer import Buffer
from controlplane.telemetry.intake import Intake, Refusals, position_time
from controlplane.telemetry.partitions import Partitions, keep
from controlplane.telemetry.records import Row, Sample
from controlplane.telemetry.rollups import LONGEST_OPEN_S, Rollups
from controlplane.telemetry.tables import Batch
from controlplane.telemetry.traces import TraceQueue
from controlplane.telemetry.view import FleetView
from controlplane.telemetry.writer import FAILED, Writer, last_position

log = logging.getLogger(__name__)

TICK_S = 1.0
MAX_BACKOFF_S = 10.0
MAINTAIN_EVERY_S = 60.0
READ_SHARE = 0.1
"""Of its processor time it reads the fleet with this at the most: a large one is read every few seconds."""
OVERLAP_S = 2 * LONGEST_OPEN_S
"""Read again after a restart: whole buckets for those that were open, and a base line for their counters."""


class Keeper(threading.Thread):
    """`view` is the newest fleet that could be read, None until the first; `seen` is set with it."""

    def __init__(self, buffer: Buffer, refusals: Refusals, stop: threading.Event, traces: TraceQueue | None = None) -> None:
        super().__init__(name="keeper", daemon=True)
        self.view: FleetView | None = None
        self.seen = threading.Event()
        self.consumed_to: float | None = None
        """Everything that arrived before is in PostgreSQL or in an open bucket. Unix seconds on Valkey's clock."""
        self.storing = True
        self.failures = 0
        self._buffer = buffer
        self._stop_event = stop
        self._partitions = Partitions(keep(config()))
        self._writer = Writer(self._partitions)
        self._rollups: Rollups | None = None
        self._position = "0-0"
        self._refusals = refusals
        self._traces = traces
        self._intake = Intake(refusals)
        self._pending = Batch()
        self._maintained_at = 0.0
        self._read_again_at = 0.0
        self._flushed_to = 0.0

    @property
    def row_counts(self) -> Mapping[str, int]:
        return self._writer.counts

    @property
    def partition_counts(self) -> Mapping[str, int]:
        return self._partitions.counts

    def run(self) -> None:
        backoff_s, due = 0.0, time.monotonic()
        while not self._stop_event.is_set():
            due = max(due + TICK_S, time.monotonic())
            try:
                self._tick()
            except (*FAILED, redis.RedisError, OSError) as error:
                if not backoff_s:
                    log.warning("telemetry is not stored for now, the stream keeps it: %s", _first_line(error))
                backoff_s = min(backoff_s * 2 or TICK_S, MAX_BACKOFF_S)
                self.failures += 1
                self.storing = False
                connection.close()
            else:
                self.storing = True
                if backoff_s:
                    log.info("telemetry is stored again")
                backoff_s = 0.0
            self._stop_event.wait(max(backoff_s, due - time.monotonic()))
        connection.close()

    def _tick(self) -> None:
        view = self._fleet()
        if time.monotonic() - self._maintained_at >= MAINTAIN_EVERY_S or not self._maintained_at:
            self._partitions.maintain(time.time())
            self._maintained_at = time.monotonic()
        rollups = self._rollups or self._resume()
        self._write_pending()
        share = self._buffer.take()
        if share is None:
            self._catch_up(rollups, view)
            return
        self._consume(share.samples, rollups, view)
        rollups.advance(share.watermark)
        self._position = share.position
        self._flush(rollups)
        self.consumed_to = share.watermark

    def _fleet(self) -> FleetView:
        if self.view is None or time.monotonic() >= self._read_again_at:
            began = time.thread_time()
            self.view = fleet_view.read()
            self.seen.set()
            self._read_again_at = time.monotonic() + (time.thread_time() - began) / READ_SHARE - TICK_S
        return self.view

    def _resume(self) -> Rollups:
        """Where rows end, or the whole stream when none were ever written (or the stream was begun anew)."""
        stored = last_position()
        with stream.connect() as valkey:
            newest = stream.newest_position(valkey)
        if stored is None or stream.parts(stored) > stream.parts(newest):
            self._position, rollups = "0-0", Rollups()
        else:
            end = position_time(stored)
            self._position, rollups = stream.position_at(end - OVERLAP_S), Rollups(write_from=end - LONGEST_OPEN_S)
        if self._traces is not None and stored is not None:
            self._traces.begin_after(stored)
        self._intake, self._rollups = Intake(self._refusals), rollups
        self._buffer.leave()
        return rollups

    def _catch_up(self, rollups: Rollups, view: FleetView) -> None:
        """Read the stream from the own position to its end, then go on with what its follower decodes anyway."""
        with stream.connect() as valkey:
            while not self._stop_event.is_set():
                if self._read(valkey, "+", rollups, view) < stream.PAGE:
                    break
            last = self._buffer.rejoin()
            while stream.parts(self._position) < stream.parts(last) and self._read(valkey, last, rollups, view):
                pass

    def _read(self, valkey: redis.Redis, last: str, rollups: Rollups, view: FleetView) -> int:
        """One page into rows; how many entries it had."""
        entries = stream.read_page(valkey, self._position, last)
        self._consume(self._intake.take(entries).samples, rollups, view)
        if entries:
            self._position = entries[-1][0]
            self.consumed_to = position_time(self._position)
            rollups.advance(self.consumed_to)
            # Pages of a large fleet are parts of a second, in which hardly anything closes.
            if len(entries) < stream.PAGE or self.consumed_to - self._flushed_to >= TICK_S:
                self._flush(rollups)
        return len(entries)

    def _consume(self, samples: Iterable[Sample[Row]], rollups: Rollups, view: FleetView) -> None:
        for sample in samples:
            rollups.consume(sample, view)
            if self._traces is not None:
                self._traces.offer(sample)

    def _flush(self, rollups: Rollups) -> None:
        self._pending = rollups.closed()
        self._flushed_to = position_time(self._position)
        self._write_pending()

    def _write_pending(self) -> None:
        """Rows that were taken out of the roll-ups stay here until PostgreSQL has them; nothing is read meanwhile."""
        if len(self._pending):
            self._writer.write(self._pending, self._position, position_time(self._position))
            self._pending = Batch()


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
