"""Rows on their way to the telemetry stream: kept in memory, sent in batches, dropped and counted when there is no room.
The request path only appends to a list."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import msgpack

from controlplane.core.codec import encode
from controlplane.core.protocol import VERSION, Record, RecordKind, RequestRow, RouterRow, SessionSeen
from controlplane.router.trials import Trials

KEPT_ROWS = 5000
BATCH_ROWS = 250


class NoTelemetry:
    """For a router that serves a table from a file and has nobody to tell."""

    dropped = 0

    def request(self, row: RequestRow) -> None:
        pass

    def router(self, row: RouterRow) -> None:
        pass

    def session(self, canary: int, key: int, seen: SessionSeen) -> None:
        pass


class Outbox:
    """A record is sent again until that is confirmed, with the same number, by which its reader knows it again."""

    def __init__(self, router_id: str) -> None:
        self.boot = secrets.token_hex(8)
        self.dropped = 0
        self._source = f"router:{router_id}"
        self._seq = 0
        self._requests: deque[Mapping[str, Any]] = deque()
        self._routers: deque[Mapping[str, Any]] = deque(maxlen=1)
        self._unconfirmed: bytes | None = None
        self.trials = Trials(router_id)

    def request(self, row: RequestRow) -> None:
        if len(self._requests) >= KEPT_ROWS:
            self._requests.popleft()
            self.dropped += 1
        self._requests.append(vars(row))  # a frozen dataclass of plain values: its own dict will do

    def router(self, row: RouterRow) -> None:
        """Only the newest is kept: its counters are cumulative."""
        self._routers.append(vars(row))

    def session(self, canary: int, key: int, seen: SessionSeen) -> None:
        """What a request of a model with a canary says of its session, whose hash is `key`."""
        self.trials.saw(canary, key, seen)

    def next_message(self) -> bytes | None:
        """The next record to send, the same one until `confirmed`; None if there is nothing."""
        if self._unconfirmed is None:
            if self._routers:
                self._unconfirmed = self._record("router", (self._routers.popleft(),))
            elif self._requests:
                count = min(BATCH_ROWS, len(self._requests))
                self._unconfirmed = self._record("request", tuple(self._requests.popleft() for _ in range(count)))
        return self._unconfirmed

    def confirmed(self) -> None:
        self._unconfirmed = None

    def _record(self, kind: RecordKind, rows: tuple[Mapping[str, Any], ...]) -> bytes:
        self._seq += 1
        record = Record(v=VERSION, source=self._source, boot=self.boot, seq=self._seq, at=time.time(), kind=kind, rows=rows)
        packed: bytes = msgpack.packb(encode(record))
        return packed
