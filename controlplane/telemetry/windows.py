"""Sums and latencies over the last minutes, moving along in slices of five seconds. Pure; times are Unix seconds."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Mapping

from controlplane.core.sketches import Sketch

SLICE_S = 5
HORIZON_S = 600


class Tally:
    """Named sums and named sketches."""

    __slots__ = ("counters", "sketches")

    def __init__(self) -> None:
        self.counters: defaultdict[str, float] = defaultdict(float)
        self.sketches: defaultdict[str, Sketch] = defaultdict(Sketch)

    def count(self, gains: Mapping[str, float]) -> None:
        for name, value in gains.items():
            self.counters[name] += value

    def merge(self, other: Tally) -> None:
        self.count(other.counters)
        for name, sketch in other.sketches.items():
            self.sketches[name].merge(sketch)


class Window:
    """A ring of tallies. Reading a span gives what its slices hold: between span - 5 s and span, up to now."""

    def __init__(self, horizon_s: int = HORIZON_S) -> None:
        self._keep = horizon_s // SLICE_S
        self._slices: dict[int, Tally] = {}
        self._closed: dict[int, tuple[int, Tally]] = {}
        """Per span: the newest slice at the time, and the sum of all slices of the span before that one."""

    def at(self, moment: float) -> Tally:
        """The tally to add to for something that happened then."""
        index = int(moment // SLICE_S)
        tally = self._slices.get(index)
        if tally is None:
            tally = self._slices[index] = Tally()
            self._drop_before(max(self._slices) - self._keep)
        if any(index < newest for newest, _ in self._closed.values()):
            self._closed.clear()
        return tally

    def over(self, span_s: int, now: float) -> Tally:
        """Everything of the last `span_s` seconds (at most the horizon)."""
        newest = int(now // SLICE_S)
        cached = self._closed.get(span_s)
        if cached is None or cached[0] != newest:
            closed = Tally()
            for index in range(newest - span_s // SLICE_S + 1, newest):
                if index in self._slices:
                    closed.merge(self._slices[index])
            cached = self._closed[span_s] = (newest, closed)
        total = Tally()
        total.merge(cached[1])
        if newest in self._slices:
            total.merge(self._slices[newest])
        return total

    def idle(self, now: float) -> bool:
        """Nothing happened within the horizon."""
        return not self._slices or max(self._slices) < now // SLICE_S - self._keep

    def _drop_before(self, oldest: int) -> None:
        for index in [index for index in self._slices if index <= oldest]:
            del self._slices[index]


def covered_s(span_s: int, now: float, since: float = 0.0) -> float:
    """How many seconds `Window.over(span_s, now)` covers when counting began at `since`: the divisor of a rate."""
    start = (now // SLICE_S - span_s // SLICE_S + 1) * SLICE_S
    return max(now - max(start, since), 1.0)


class MinuteMean:
    """The mean of at most one value a second over the last minute."""

    __slots__ = ("_count", "_newest", "_ring", "_sum")
    SECONDS = 60

    def __init__(self) -> None:
        self._ring = array("f", [math.nan]) * self.SECONDS
        self._newest = 0
        self._sum = 0.0
        self._count = 0

    def add(self, moment: float, value: float | None) -> None:
        """A second value of one second replaces the first; one older than a minute is ignored."""
        second = int(moment)
        self._advance(second)
        if value is None or second <= self._newest - self.SECONDS:
            return
        place = second % self.SECONDS
        self._clear(place)
        self._ring[place] = value
        self._sum += self._ring[place]
        self._count += 1

    def mean(self, now: float) -> float | None:
        self._advance(int(now))
        return max(self._sum, 0.0) / self._count if self._count else None

    def _advance(self, second: int) -> None:
        if second <= self._newest:
            return
        if second - self._newest >= self.SECONDS:
            self._ring = array("f", [math.nan]) * self.SECONDS
            self._sum, self._count = 0.0, 0
        else:
            for skipped in range(self._newest + 1, second + 1):
                self._clear(skipped % self.SECONDS)
        self._newest = second

    def _clear(self, place: int) -> None:
        old = self._ring[place]
        if not math.isnan(old):
            self._sum -= old
            self._count -= 1
            self._ring[place] = math.nan
