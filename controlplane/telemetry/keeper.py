"""The thread that stores what the stream brought.

It waits when PostgreSQL is away; live rows go on with the fleet as it was last known. Nothing is lost as long as it is in
the stream: the position is stored with the rows, and after an outage or a restart reading goes on from there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

import redis

from controlplane.config import config
from controlplane.telemetry import stream
from controlplane.telemetry.buffer import Buffer
from controlplane.telemetry.intake import Intake, Refusals, position_time
from controlplane.telemetry.partitions import Partitions, keep
from controlplane.telemetry.patient import PatientThread
from controlplane.telemetry.records import Row, Sample
from controlplane.telemetry.rollups import LONGEST_OPEN_S, Rollups
from controlplane.telemetry.tables import Batch
from controlplane.telemetry.traces import TraceQueue
from controlplane.telemetry.upkeep import Upkeep
from controlplane.telemetry.view import FleetView
from controlplane.telemetry.writer import Writer, last_position

FLUSH_EVERY_S = 1.0
"""Of the stream's time, while the past is read."""
NEAR_S = 1.0
"""A follower of the stream that is not further ahead is joined."""
OVERLAP_S = 2 * LONGEST_OPEN_S
"""Read again after a restart: whole buckets for those that were open, and a base line for their counters."""


class Keeper(PatientThread):
    does = "stores telemetry"
    waits = "telemetry is not stored for now, the stream keeps it"
    goes_on = "telemetry is stored again"
    every_s = 0.5

    def __init__(
        self,
        buffer: Buffer,
        refusals: Refusals,
        stop: threading.Event,
        upkeep: Upkeep,
        traces: TraceQueue | None = None,
    ) -> None:
        """`upkeep`: knows the fleet; nothing is stored before it does."""
        super().__init__(stop)
        self.consumed_to: float | None = None
        """Everything that arrived before is in PostgreSQL or in an open bucket. Unix seconds on Valkey's clock."""
        self._buffer = buffer
        self._upkeep = upkeep
        self._partitions = Partitions(keep(config()))
        self._writer = Writer(self._partitions)
        self._rollups: Rollups | None = None
        self._position = "0-0"
        self._stored: str | None = None
        """The position that was stored last."""
        self._in_doubt = False
        """Whether PostgreSQL still has it."""
        self._refusals = refusals
        self._traces = traces
        self._intake = Intake(refusals)
        self._pending = Batch()
        self._flushed_to = 0.0

    @property
    def row_counts(self) -> Mapping[str, int]:
        return self._writer.counts

    @property
    def partition_counts(self) -> Mapping[str, int]:
        return self._partitions.counts + self._upkeep.partitions.counts

    def recover(self) -> None:
        self._in_doubt = True

    def tick(self) -> None:
        view = self._upkeep.view
        if view is None:
            return
        if self._in_doubt:
            self._look_what_is_stored()
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

    def _look_what_is_stored(self) -> None:
        """A server that crashed has lost the last transactions (the writer does not wait for its disk): then everything from
        the position that it has is made again."""
        found = last_position()
        if found not in (self._stored, self._position):
            self._rollups = None
        self._stored, self._in_doubt = found, False

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
        self._stored, self._pending, self._flushed_to = stored, Batch(), 0.0
        self._buffer.leave()
        return rollups

    def _catch_up(self, rollups: Rollups, view: FleetView) -> None:
        """Read the stream from the own position on. Where its follower is just ahead, go on with what that decodes anyway;
        where it is behind, what it brings was stored already: read what is new and look again with the next tick."""
        with stream.connect() as valkey:
            while not self._stopped.is_set():
                reached = self._buffer.reached
                if reached is None or stream.parts(reached) < stream.parts(self._position):
                    if self._read(valkey, "+", rollups, view) < stream.PAGE:
                        return
                elif position_time(reached) - position_time(self._position) > NEAR_S:
                    if not self._read(valkey, reached, rollups, view):
                        self._position = reached  # there is nothing in between
                elif (last := self._buffer.rejoin(self._position)) is not None:
                    while stream.parts(self._position) < stream.parts(last) and self._read(valkey, last, rollups, view):
                        pass
                    return

    def _read(self, valkey: redis.Redis, last: str, rollups: Rollups, view: FleetView) -> int:
        """One page into rows; how many entries it had."""
        entries = stream.read_page(valkey, self._position, last)
        self._consume(self._intake.take(entries).samples, rollups, view)
        if entries:
            self._position = entries[-1][0]
            self.consumed_to = position_time(self._position)
            rollups.advance(self.consumed_to)
            # Pages of a large fleet are parts of a second, in which hardly anything closes.
            if len(entries) < stream.PAGE or self.consumed_to - self._flushed_to >= FLUSH_EVERY_S:
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
            self._writer.write(self._pending, self._position, position_time(self._position), self._stored)
            self._stored, self._pending = self._position, Batch()
