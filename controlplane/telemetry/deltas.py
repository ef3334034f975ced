"""What an engine's cumulative counters and histograms gained between two samples. Pure.

Counters belong to one incarnation. A new incarnation that starts while we watch begins at zero, so all it shows is new; the
first sample of an engine that ran before we looked is only a base line. Inside an incarnation a counter that fell was reset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import sub

from controlplane.core.lifecycle import SERVING
from controlplane.core.protocol import EngineRow, Histogram
from controlplane.core.sketches import Gained
from controlplane.telemetry.records import COUNTERS, HISTOGRAMS

FORGET_S = 900.0
"""An engine that sent nothing for so long is new when it comes back."""


@dataclass(frozen=True)
class Gain:
    """Counters by name, latencies (in the engine's seconds) by name; nothing where nothing was gained."""

    counters: Mapping[str, float] = field(default_factory=dict)
    latencies: Mapping[str, Gained] = field(default_factory=dict)


NOTHING = Gain()


@dataclass
class _Last:
    at: float
    incarnation: int
    counters: Mapping[str, float]
    histograms: Mapping[str, Histogram]


class EngineCounters:
    """The newest sample of every engine."""

    def __init__(self) -> None:
        self._last: dict[str, _Last] = {}

    def gain(self, row: EngineRow, at: float) -> Gain | None:
        """What `row` shows beyond the sample before it; None for a late sample of an earlier incarnation."""
        last = self._last.get(row.engine)
        if last is None:
            # A serving engine that was not scraped yet is no base line: its first counters would all look new.
            if row.counters or row.histograms or row.state not in SERVING:
                self._last[row.engine] = _Last(at, row.incarnation, row.counters, row.histograms)
            return NOTHING
        if row.incarnation < last.incarnation:
            return None
        if row.incarnation > last.incarnation:
            last = _Last(at, row.incarnation, {}, {})
        # What a sample leaves out (a scrape failed) keeps its old value, so that it is not all new when it is back.
        counters, histograms = {**last.counters, **row.counters}, {**last.histograms, **row.histograms}
        self._last[row.engine] = _Last(at, row.incarnation, counters, histograms)
        return Gain(_counters(row.counters, last.counters), _latencies(row.histograms, last.histograms))

    def forget(self, now: float) -> None:
        self._last = {engine: last for engine, last in self._last.items() if now - last.at < FORGET_S}


def _counters(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    gained = {}
    for name in COUNTERS:
        value, old = now.get(name, 0.0), before.get(name, 0.0)
        more = value - old if value >= old else value
        if more > 0:
            gained[name] = more
    return gained


def _latencies(now: Mapping[str, Histogram], before: Mapping[str, Histogram]) -> dict[str, Gained]:
    gained = {}
    for name in HISTOGRAMS:
        new = now.get(name)
        if new is None:
            continue
        old = before.get(name)
        if old is not None and old.count == new.count:
            continue
        more = _beyond(new, old) if old is not None and old.bounds == new.bounds else None
        if more is None:
            more = Gained(new.bounds, new.counts, new.sum, new.count)
        if more.count > 0:
            gained[name] = more
    return gained


def _beyond(new: Histogram, old: Histogram) -> Gained | None:
    """None: it was reset, all it shows is new."""
    counts = list(map(sub, new.counts, old.counts))
    if new.count < old.count or (counts and min(counts) < 0):
        return None
    return Gained(new.bounds, counts, max(new.sum - old.sum, 0.0), new.count - old.count)
