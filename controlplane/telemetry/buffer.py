"""From the thread that follows the stream to the one that stores: decoded samples, or "read them yourself".

While PostgreSQL is away nothing piles up here: after LIMIT_ROWS the storing side is told to read the stream again from where
it stopped; the stream is the buffer. `rejoin` closes the gap between such reading and the samples that follow.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field

from controlplane.telemetry.records import Row, Sample
from controlplane.telemetry.stream import parts

LIMIT_ROWS = 100_000
"""Ten seconds of 8,192 GPUs and 1,024 engines: a slow write must not lead to reading everything twice, which is slower."""


@dataclass
class Share:
    """`position`: everything up to it was handed over; `watermark`: nothing unread arrived before this time (Unix s)."""

    samples: list[Sample[Row]] = field(default_factory=list)
    position: str = "0-0"
    watermark: float = 0.0


class Buffer:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._samples: deque[Sample[Row]] = deque()
        self._rows = 0
        self._joined = False
        self._position: str | None = None
        self._watermark = 0.0

    @property
    def reached(self) -> str | None:
        """Up to where the stream's follower has read; None: it has not begun."""
        return self._position

    def put(self, samples: list[Sample[Row]], position: str, watermark: float) -> None:
        """What the stream's follower read, and how far it is."""
        with self._lock:
            self._position, self._watermark = position, watermark
            if not self._joined:
                return
            self._samples.extend(samples)
            self._rows += sum(len(sample.rows) for sample in samples)
            if self._rows > LIMIT_ROWS:
                self._joined = False
                self._clear()

    def take(self) -> Share | None:
        """Everything since the last call; None: read the stream yourself, then `rejoin`."""
        with self._lock:
            if not self._joined or self._position is None:
                return None
            share = Share(list(self._samples), self._position, self._watermark)
            self._clear()
            return share

    def rejoin(self, position: str) -> str | None:
        """From now on samples are collected again. `position`: what the caller has read up to. Answers up to where it must
        still read; None: the follower is not there yet (it reads old entries for live windows), what it brings would be
        stored twice, so nothing is collected."""
        with self._lock:
            if self._position is None or parts(self._position) < parts(position):
                return None
            self._joined = True
            self._clear()
            return self._position

    def leave(self) -> None:
        """The storing side lost its place: it will read the stream itself."""
        with self._lock:
            self._joined = False
            self._clear()

    def _clear(self) -> None:
        self._samples.clear()
        self._rows = 0
