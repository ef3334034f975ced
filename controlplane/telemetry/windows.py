"""Sums and latencies over the last minutes, moving along in slices of five seconds. Pure; times are Unix seconds."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from controlplane.core.sketches import Gained, Sketch

SLICE_S = 5
HORIZON_S = 600
SECONDS_TO_MS = 1000.0


class Tally:
    """Named sums and named sketches. Histograms of engines are added up until a sketch is asked for (`settle`)."""

    __slots__ = ("_gained", "counters", "sketches")

    def __init__(self) -> None:
        self.counters: defaultdict[str, float] = defaultdict(float)
        self.sketches: defaultdict[str, Sketch] = defaultdict(Sketch)
        self._gained: dict[tuple[str, tuple[float, ...]], Gained] = {}

    def count(self, gains: Mapping[str, float]) -> None:
        for name, value in gains.items():
            self.counters[name] += value

    def gain(self, name: str, more: Gained) -> None:
        """Seconds of an engine's histogram; they become milliseconds."""
        key = (name, more.bounds)
        mine = self._gained.get(key)
        if mine is None:
            self._gained[key] = replace(more)
        else:
            mine.add(more)

    def settle(self) -> None:
        """From now on `sketches` hold everything that was gained."""
        for (name, _), gained in self._gained.items():
            self.sketches[name].merge(gained.sketch(SECONDS_TO_MS))
        self._gained.clear()

    def merge(self, other: Tally) -> None:
        self.count(other.counters)
        other.settle()
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


class MinuteMeans:
    """The means of several values, each told at most once a second, over the last minute."""

    __slots__ = ("_counts", "_newest", "_ring", "_sums", "_width")
    SECONDS = 60

    def __init__(self, width: int) -> None:
        self._width = width
        self._newest = 0
        self._forget()

    def add(self, moment: float, *values: float | None) -> None:
        """As many values as it is wide. A second value of one second replaces the first, None does not; what is older than a
        minute is ignored."""
        second = int(moment)
        if second > self._newest:
            self._advance(second)
        elif second <= self._newest - self.SECONDS:
            return
        ring, sums, counts = self._ring, self._sums, self._counts
        start = second % self.SECONDS * self._width
        for place, value in enumerate(values):
            if value is None:
                continue
            old = ring[start + place]
            if old == old:  # no NaN
                sums[place] -= old
            else:
                counts[place] += 1
            ring[start + place] = value
            sums[place] += ring[start + place]

    def mean(self, place: int, now: float) -> float | None:
        second = int(now)
        if second > self._newest:
            self._advance(second)
        count = self._counts[place]
        return max(self._sums[place], 0.0) / count if count else None

    def _advance(self, second: int) -> None:
        if second - self._newest >= self.SECONDS:
            self._forget()
        else:
            for skipped in range(self._newest + 1, second + 1):
                self._clear(skipped % self.SECONDS * self._width)
        self._newest = second

    def _forget(self) -> None:
        self._ring = array("f", [math.nan]) * (self.SECONDS * self._width)
        self._sums = [0.0] * self._width
        self._counts = [0] * self._width

    def _clear(self, start: int) -> None:
        for place in range(self._width):
            old = self._ring[start + place]
            if old == old:
                self._sums[place] -= old
                self._counts[place] -= 1
                self._ring[start + place] = math.nan
