"""Many stored sketches merged at once: their buckets are added up in one array, a row per cell of time. Exact, as
`core.sketches.Sketch.merge` is; thousands of sketches take milliseconds. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from controlplane.core.sketches import (
    HEAD_BYTES,
    MAX_INDEX,
    MIN_INDEX,
    BadSketch,
    Sketch,
    bucket_value,
)

BUCKET = np.dtype([("index", "<i2"), ("count", "<f4")])
"""As `Sketch.to_bytes` writes it."""
WIDTH = MAX_INDEX - MIN_INDEX + 1
VALUES = np.array([bucket_value(MIN_INDEX + place) for place in range(WIDTH)])
_SUMS = struct.Struct("<dd")
SUMS_AT = 4
"""Where in a sketch's head its count and sum are, as float64; the head ends with them."""
Counts = npt.NDArray[np.float64]


class Merged:
    """`counts[cell][place]`: how many values of that cell are in the bucket MIN_INDEX + place."""

    def __init__(self, counts: Counts) -> None:
        self.counts = counts
        self._cumulative: Counts = counts.cumsum(axis=1)
        self.totals: Counts = self._cumulative[:, -1]

    @classmethod
    def of(cls, cells: int, buckets: Iterable[tuple[int, bytes]]) -> Merged:
        """`buckets`: a cell's number, and the buckets of one or more stored sketches, one after another and without their
        heads. Raises BadSketch."""
        numbers, parts = [], []
        for cell, part in buckets:
            if part:
                numbers.append(cell)
                parts.append(part)
        found = _parsed(b"".join(parts))
        sizes = np.array([len(part) // BUCKET.itemsize for part in parts], dtype=np.int64)
        places = np.repeat(np.array(numbers, dtype=np.int64), sizes) * WIDTH + (found["index"].astype(np.int64) - MIN_INDEX)
        counts: Counts = np.bincount(places, found["count"].astype(np.float64), cells * WIDTH).astype(np.float64)
        return cls(counts.reshape(cells, WIDTH))

    def quantiles(self, q: float) -> list[float | None]:
        """Per cell what `Sketch.quantile` would say; None where there is no value."""
        rank = np.maximum(q * self.totals - 1e-6, 0.0)
        first = np.argmax((self._cumulative >= rank[:, None]) & (self.counts > 0), axis=1)
        return [float(VALUES[place]) if total > 0 else None for place, total in zip(first, self.totals, strict=True)]

    def histograms(self, edges: Sequence[float]) -> list[list[int]]:
        """Per cell the counts between neighbouring edges, as `Sketch.histogram` has them."""
        slots = np.searchsorted(np.array(edges[1:-1]), VALUES, side="left")
        places = np.zeros((WIDTH, len(edges) - 1))
        places[np.arange(WIDTH), slots] = 1.0
        return [[round(value) for value in row] for row in (self.counts @ places).tolist()]

    def above(self, limit: float) -> list[float]:
        """Per cell how many values are larger, as far as buckets tell."""
        counts: Counts = self.counts[:, limit < VALUES].sum(axis=1)
        return [float(count) for count in counts]


def mean_of(sums: bytes) -> float | None:
    """The exact mean of sketches, from their (count, sum) as they are stored, one after another."""
    count, total = np.frombuffer(sums, dtype="<f8").reshape(-1, 2).sum(axis=0)
    return float(total / count) if count else None


def pack(counts: Sequence[tuple[int, float]]) -> bytes:
    """Buckets (index, count) as they are stored behind a sketch's head."""
    return np.array(counts, dtype=BUCKET).tobytes()


def merge_stored(sketches: Iterable[bytes]) -> bytes | None:
    """Stored sketches as one; None when there are none. Raises BadSketch."""
    stored = list(sketches)
    if not stored:
        return None
    buckets = Merged.of(1, [(0, sketch[HEAD_BYTES:]) for sketch in stored]).counts[0]
    sketch = Sketch()
    for place in np.flatnonzero(buckets):
        sketch.buckets[MIN_INDEX + int(place)] = float(buckets[place])
    for count, total in (_SUMS.unpack_from(each, SUMS_AT) for each in stored):
        sketch.count += count
        sketch.sum += total
    return sketch.to_bytes()


def _parsed(data: bytes) -> npt.NDArray[np.void]:
    if len(data) % BUCKET.itemsize:
        raise BadSketch("its buckets are cut off")
    found = np.frombuffer(data, dtype=BUCKET)
    if len(found) and not (found["index"].min() >= MIN_INDEX and found["index"].max() <= MAX_INDEX):
        raise BadSketch("a bucket lies beyond the ends")
    return found
