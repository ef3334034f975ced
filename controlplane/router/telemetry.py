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
from controlplane.core.protocol import VERSION, Record, RecordKind, RequestRow, RouterRow, SessionSeen, UsageRow
from controlplane.router.trials import Trials
from controlplane.router.usage import Usage

KEPT_ROWS = 5000
BATCH_ROWS = 250
UNTOLD_EVERY_S = 1.0


class NoTelemetry:
    """For a router that serves a table from a file and has nobody to tell."""

    dropped = 0

    def request(self, row: RequestRow) -> None:
        pass

    def untold(self, model: str, team: str, api_key: str, usage: Usage) -> None:
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
        self._untold: dict[tuple[str, str, str], list[int]] = {}
        """By model, team and key: requests, prompt, output and cached tokens of requests without a row."""
        self._untold_at = 0.0
        self._unconfirmed: bytes | None = None
        self.trials = Trials(router_id)

    def request(self, row: RequestRow) -> None:
        if len(self._requests) >= KEPT_ROWS:
            self._drop(self._requests.popleft())
        self._requests.append(vars(row))  # a frozen dataclass of plain values: its own dict will do

    def untold(self, model: str, team: str, api_key: str, usage: Usage) -> None:
        """What a request used that has no row. Kept until it is sent, however long that takes."""
        sums = self._untold.setdefault((model, team, api_key), [0, 0, 0, 0])
        prompt = usage.prompt or 0
        sums[0] += 1
        sums[1] += prompt
        sums[2] += usage.output or 0
        sums[3] += min(usage.cached or 0, prompt)

    def router(self, row: RouterRow) -> None:
        """Only the newest is kept: its counters are cumulative."""
        self._routers.append(vars(row))

    def session(self, canary: int, key: int, seen: SessionSeen) -> None:
        """What a request of a model with a canary says of its session, whose hash is `key`."""
        self.trials.saw(canary, key, seen)

    def next_message(self, last: bool = False) -> bytes | None:
        """The next record to send, the same one until `confirmed`; None if there is nothing. `last`: sums of untold requests
        do not wait for their second."""
        if self._unconfirmed is None:
            if self._routers:
                self._unconfirmed = self._record("router", (self._routers.popleft(),))
            elif self._untold and (last or time.time() - self._untold_at >= UNTOLD_EVERY_S):
                self._unconfirmed = self._record("usage", self._used())
            elif self._requests:
                count = min(BATCH_ROWS, len(self._requests))
                self._unconfirmed = self._record("request", tuple(self._requests.popleft() for _ in range(count)))
        return self._unconfirmed

    def confirmed(self) -> None:
        self._unconfirmed = None

    def _drop(self, row: Mapping[str, Any]) -> None:
        self.dropped += 1
        if row["outcome"] != "client_error":
            used = Usage(row["prompt_tokens"], row["output_tokens"], row["cached_tokens"])
            self.untold(row["model"], row["team"], row["api_key"], used)

    def _used(self) -> tuple[Mapping[str, Any], ...]:
        """As rows of this moment; the next ones are of a later one."""
        self._untold_at = time.time()
        keys = list(self._untold)[:BATCH_ROWS]
        return tuple(vars(UsageRow(self._untold_at, *key, *self._untold.pop(key))) for key in keys)

    def _record(self, kind: RecordKind, rows: tuple[Mapping[str, Any], ...]) -> bytes:
        self._seq += 1
        record = Record(v=VERSION, source=self._source, boot=self.boot, seq=self._seq, at=time.time(), kind=kind, rows=rows)
        packed: bytes = msgpack.packb(encode(record))
        return packed
