"""Mergeable latency histograms: logarithmic buckets, so that any quantile is right within 1% and sums of sketches are exact.

A sketch counts values in buckets (g^(i-1), g^i] with g = 1.02/0.98 ≈ 1.0202, answered by the point whose relative distance
to both ends is equal (the bucket scheme of DDSketch, Masson et al., VLDB 2019). Percentiles of percentiles do not exist
here: merge sketches, then ask. Values carry the caller's unit (telemetry uses milliseconds). Pure.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import add

RELATIVE_ERROR = 0.01
GAMMA = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
MIN_VALUE = 1e-3
"""Smaller values (0 included) count as this one: in milliseconds, a microsecond."""
MAX_VALUE = 1e8

_LOG_GAMMA = math.log(GAMMA)
MIN_INDEX = math.ceil(math.log(MIN_VALUE) / _LOG_GAMMA)
MAX_INDEX = math.ceil(math.log(MAX_VALUE) / _LOG_GAMMA)
POINTS = 16
"""A wide bucket of a cumulative histogram becomes this many points: how its values lie in it nobody knows anyway, and more
points would only be more to store."""
FIRST_AT_LEAST = 1 / 256
"""The part of its first bucket over which a cumulative histogram's values are spread at least."""
_FORMAT = 1
_HEAD = struct.Struct("<BxHdd")
_BUCKET = struct.Struct("<hf")
HEAD_BYTES = _HEAD.size
"""Before the buckets of a stored sketch: who merges many of them at once reads only the buckets (int16, float32) behind
it."""


class BadSketch(ValueError):
    """Bytes that `Sketch.to_bytes` did not write."""


def bucket_index(value: float) -> int:
    """The bucket of a value; values outside MIN_VALUE..MAX_VALUE fall into the outermost ones."""
    if value <= MIN_VALUE:
        return MIN_INDEX
    return min(math.ceil(math.log(value) / _LOG_GAMMA), MAX_INDEX)


def bucket_value(index: int) -> float:
    """The value that stands for all values of a bucket, off by at most RELATIVE_ERROR."""
    return 2 * math.pow(GAMMA, index) / (GAMMA + 1)


class Sketch:
    """Counts per logarithmic bucket. Counts may be fractions, because cumulative histograms are spread over buckets."""

    __slots__ = ("buckets", "count", "sum")

    def __init__(self) -> None:
        self.buckets: dict[int, float] = {}
        self.count = 0.0
        self.sum = 0.0

    @classmethod
    def of(cls, values: Iterable[float], count: float = 1.0) -> Sketch:
        """Each of `values` counted `count` times."""
        sketch = cls()
        for value in values:
            sketch.add(value, count)
        return sketch

    def add(self, value: float, count: float = 1.0) -> None:
        index = bucket_index(value)
        self.buckets[index] = self.buckets.get(index, 0.0) + count
        self.count += count
        self.sum += value * count

    def add_spread(self, low: float, high: float, count: float) -> None:
        """`count` values somewhere in (low, high], taken as evenly spread between them (what Prometheus assumes too); off
        from that by at most a 2 * POINTSth of the interval and RELATIVE_ERROR. `sum` is left alone: a cumulative histogram
        tells its exact sum."""
        for index, share in _spread(low, high):
            self.buckets[index] = self.buckets.get(index, 0.0) + count * share
        self.count += count

    def merge(self, other: Sketch) -> None:
        for index, count in other.buckets.items():
            self.buckets[index] = self.buckets.get(index, 0.0) + count
        self.count += other.count
        self.sum += other.sum

    def quantile(self, q: float) -> float | None:
        """The smallest value that at least q (0..1) of all values do not exceed, within RELATIVE_ERROR; None when empty."""
        if not self.buckets:
            return None
        ordered = sorted(self.buckets.items())
        rank = max(q * math.fsum(count for _, count in ordered) - 1e-6, 0.0)
        seen = 0.0
        for index, count in ordered:
            seen += count
            if seen >= rank and count > 0:
                return bucket_value(index)
        return bucket_value(ordered[-1][0])

    def histogram(self, edges: Sequence[float]) -> list[int]:
        """Counts between neighbouring edges (len(edges) - 1 of them); values beyond the ends go to the outermost ones."""
        counts = [0.0] * (len(edges) - 1)
        for index, count in self.buckets.items():
            value = bucket_value(index)
            slot = sum(1 for edge in edges[1:-1] if value > edge)
            counts[slot] += count
        return [round(count) for count in counts]

    def to_bytes(self) -> bytes:
        """Compact form for storage: version, number of buckets, count, sum, then (index, float32 count) in order."""
        ordered = sorted(self.buckets.items())
        return _HEAD.pack(_FORMAT, len(ordered), self.count, self.sum) + b"".join(
            _BUCKET.pack(index, count) for index, count in ordered
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Sketch:
        """Raises BadSketch."""
        try:
            version, size, count, total = _HEAD.unpack_from(data)
            if version != _FORMAT or len(data) != _HEAD.size + size * _BUCKET.size:
                raise BadSketch("not a sketch of this version")
            sketch = cls()
            sketch.buckets = dict(_BUCKET.iter_unpack(data[_HEAD.size :]))
        except struct.error as error:
            raise BadSketch("too short for a sketch") from error
        sketch.count, sketch.sum = count, total
        return sketch


def merged(sketches: Iterable[Sketch]) -> Sketch:
    total = Sketch()
    for sketch in sketches:
        total.merge(sketch)
    return total


@lru_cache(maxsize=4096)
def _spread(low: float, high: float) -> tuple[tuple[int, float], ...]:
    """The buckets that stand for evenly spread values of (low, high], with the share of each. Shares add up to 1."""
    first, last = bucket_index(low), bucket_index(high)
    if high <= low or first == last:
        return ((last, 1.0),)
    if last - first >= POINTS:
        width = (high - low) / POINTS
        points = Counter(bucket_index(low + (place + 0.5) * width) for place in range(POINTS))
        return tuple((index, count / POINTS) for index, count in points.items())
    shares = []
    for index in range(first, last + 1):
        start = max(low, math.pow(GAMMA, index - 1))
        end = min(high, math.pow(GAMMA, index))
        if end > start:
            shares.append((index, (end - start) / (high - low)))
    scale = 1 / math.fsum(share for _, share in shares)
    return tuple((index, share * scale) for index, share in shares)


def from_cumulative(
    bounds: Sequence[float],
    counts: Sequence[float],
    total: float,
    sum_: float,
    before: tuple[Sequence[float], float, float] | None = None,
    scale: float = 1.0,
) -> Sketch:
    """What a cumulative (Prometheus) histogram gained since `before` (its counts, total and sum), as a sketch.

    The first bucket begins at 0 and may be wide (vLLM's queue times: 0.3 s). Its values are at most what `sum` leaves when
    all others are as small as their buckets allow: if their mean is below the bucket's middle, they are spread over (0, 2 x
    mean]. `counts[i]` values are <= `bounds[i]`; `total` counts them all, so total - counts[-1] lie above the last bound and
    are taken as equal to it (Prometheus answers that bound too). `scale` turns the histogram's unit into the sketch's (1000:
    seconds to milliseconds). A counter that went backwards was reset: everything it shows now is new.
    """
    old_counts, old_total, old_sum = before or ([0.0] * len(counts), 0.0, 0.0)
    if total < old_total or len(old_counts) != len(counts) or any(n < o for n, o in zip(counts, old_counts, strict=False)):
        old_counts, old_total, old_sum = [0.0] * len(counts), 0.0, 0.0
    sketch = Sketch()
    sketch.sum = max(sum_ - old_sum, 0.0)
    parts = _parts(bounds, [count - old for count, old in zip(counts, old_counts, strict=True)])
    above = (total - old_total) - math.fsum(count for _, _, count in parts)
    if above > 0 and bounds:
        sketch.add_spread(bounds[-1] * scale, bounds[-1] * scale, above)
    sketch.sum *= scale
    others = math.fsum(low * count for low, _, count in parts) + max(above, 0.0) * (bounds[-1] if bounds else 0.0)
    for low, high, count in parts:
        end = high * scale
        if low == 0.0:
            end = min(end, _rounded_up(max(2 * (sketch.sum - others * scale) / count, end * FIRST_AT_LEAST)))
        sketch.add_spread(low * scale, end, count)
    return sketch


@dataclass(slots=True)
class Gained:
    """What a cumulative histogram gained, or several of the same bounds together: added up before they become a sketch,
    which costs much more than adding. `counts[i]` values are <= `bounds[i]`."""

    bounds: tuple[float, ...]
    counts: Sequence[float]
    sum: float
    count: float

    def add(self, other: Gained) -> None:
        """`other` must have the same bounds."""
        self.counts = list(map(add, self.counts, other.counts))
        self.sum += other.sum
        self.count += other.count

    def sketch(self, scale: float = 1.0) -> Sketch:
        return from_cumulative(self.bounds, self.counts, self.count, self.sum, scale=scale)


def _rounded_up(value: float) -> float:
    """To a bucket's end, so that few different spreads are asked for."""
    return math.pow(GAMMA, bucket_index(value))


def _parts(bounds: Sequence[float], gained: Sequence[float]) -> list[tuple[float, float, float]]:
    """(low, high, count) of the buckets that gained something, from cumulative gains."""
    parts = []
    low, below = 0.0, 0.0
    for bound, count in zip(bounds, gained, strict=True):
        if count > below:
            parts.append((low, bound, count - below))
        below = max(below, count)
        low = bound
    return parts


def log_edges(low: float, high: float, count: int) -> list[float]:
    """`count` + 1 edges of `count` buckets, evenly spaced on a log scale from `low` to `high`."""
    step = math.log(high / low) / count
    return [low * math.exp(step * index) for index in range(count + 1)]
