"""From stream entries to samples: decoded, put on one clock, duplicates dropped, gaps and refusals counted. No I/O."""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from controlplane.core.codec import WrongShape
from controlplane.telemetry import records
from controlplane.telemetry.clocks import SourceClock
from controlplane.telemetry.records import Row, Sample

log = logging.getLogger(__name__)

MAX_SOURCES = 4096
"""Sources remembered at once; the one silent for longest is forgotten first."""
MAX_GAP = 100_000
"""A larger jump of `seq` is a source that counts wrongly, not that many lost records."""

RESULTS = ("accepted", "refused", "duplicates", "missing")
"""What becomes of records. missing: they never came."""


@dataclass
class Source:
    boot: str
    seq: int
    clock: SourceClock = field(default_factory=SourceClock)


@dataclass
class Taken:
    """One page of the stream after intake. `missing`: records known to be lost, as (when noticed, how many)."""

    samples: list[Sample[Row]] = field(default_factory=list)
    missing: list[tuple[float, int]] = field(default_factory=list)


class Refusals:
    """Says once per source why its records are refused, never what is in them. Shared by all who read the stream."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, raw: bytes | None, error: WrongShape) -> None:
        source = records.claimed_source(raw)
        if source not in self._told and len(self._told) < MAX_SOURCES:
            self._told.add(source)
            log.warning("telemetry record of %s refused, more of its are only counted: %s", source, error)


class Intake:
    """Remembers per source what the next record must be."""

    def __init__(self, refusals: Refusals) -> None:
        self._refusals = refusals
        self.counts: Counter[str] = Counter()
        """By RESULTS, since this process started."""
        self._sources: OrderedDict[str, Source] = OrderedDict()

    def take(self, entries: list[tuple[str, bytes | None]]) -> Taken:
        """Entries in stream order, as (stream id, value of field "r")."""
        taken = Taken()
        for position, raw in entries:
            self._take_one(position, raw, taken)
        return taken

    def _take_one(self, position: str, raw: bytes | None, taken: Taken) -> None:
        try:
            record, rows = records.read(raw if raw is not None else b"")
        except WrongShape as error:
            self.counts["refused"] += 1
            self._refusals.tell(raw, error)
            return
        received = position_time(position)
        source, missing = self._follow(record.source, record.boot, record.seq)
        if source is None:
            self.counts["duplicates"] += 1
            return
        if missing:
            self.counts["missing"] += missing
            taken.missing.append((received, missing))
        self.counts["accepted"] += 1
        at = source.clock.correct(record.at, received)
        taken.samples.append(Sample(position, received, at, record.source, record.kind, rows, at - record.at))

    def _follow(self, name: str, boot: str, seq: int) -> tuple[Source | None, int]:
        """The source if this record is new, and how many were skipped before it."""
        known = self._sources.get(name)
        if known is None or known.boot != boot:
            self._sources[name] = known = Source(boot, seq)
            self._sources.move_to_end(name)
            if len(self._sources) > MAX_SOURCES:
                self._sources.popitem(last=False)
            return known, 0
        self._sources.move_to_end(name)
        jump = seq - known.seq
        if jump <= 0:
            return None, 0
        known.seq = seq
        return known, jump - 1 if jump <= MAX_GAP else 0


def position_time(position: str) -> float:
    """Unix seconds of a stream id ("1796018400123-0"), which Valkey made when the entry arrived."""
    return int(position.partition("-")[0]) / 1000
