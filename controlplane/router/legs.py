"""Runs one leg on one engine: takes or makes a connection, and hides connections that had gone stale in the pool."""

from __future__ import annotations

from typing import Any, TypeVar

from controlplane.router.courses import Pause
from controlplane.router.limits import Limits
from controlplane.router.pool import ConnectFailed, Pool
from controlplane.router.upstream import EngineConnection, Fault, Sink

T = TypeVar("T")


class Answer:
    """A complete answer of an engine."""

    __slots__ = ("body", "document", "headers", "status")

    def __init__(
        self, status: int, headers: dict[bytes, bytes], body: bytes, document: dict[str, Any] | None = None
    ) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.document = document
        """The body, if it has been read."""


class WaitingSink(Pause[T | Fault], Sink):
    """A sink that somebody waits for: for the outcome of a leg, or of one stage of it. The leg's connection is closed if
    whoever waits is cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.connection: EngineConnection | None = None
        self.sent = False
        """An engine was given the request."""

    def left(self) -> None:
        self.abort()

    def abort(self) -> None:
        """Ends the leg; the engine sees its connection close and stops working on it. Nothing happens after its end."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.abort()

    def lost(self, fault: Fault) -> None:
        self.connection = None
        self.settle(fault)


class Collector(WaitingSink[Answer]):
    """Keeps a whole answer of at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self.answer: Answer | None = None
        """Set even if nobody waits for it any more."""
        self._status = 0
        self._headers: dict[bytes, bytes] = {}
        self._parts: list[bytes] = []
        self._size = 0

    def head(self, status: int, headers: dict[bytes, bytes]) -> None:
        self._status, self._headers = status, headers

    def body(self, payload: bytes, as_it_came: bytes | None) -> None:
        self._size += len(payload)
        if self._size > self._limit:
            self.abort()
            self.settle(Fault("too_large"))
            return
        self._parts.append(payload)

    def end(self) -> None:
        self.connection = None
        self.answer = Answer(self._status, self._headers, b"".join(self._parts))
        self.settle(self.answer)


async def run(pool: Pool, request: bytes, sink: WaitingSink[T], patience_s: float, limits: Limits) -> T | Fault:
    """Sends `request` and waits for the sink's first outcome. An idle connection that the engine had closed in the
    meantime is replaced by a new one, once, without anybody noticing."""
    connection = pool.take()
    sent = False
    if connection is not None:
        _start(connection, request, sink, patience_s, limits)
        outcome = await sink.wait()
        if not (isinstance(outcome, Fault) and outcome.stale):
            return outcome
        sent = outcome.sent
    try:
        connection = await pool.connect()
    except ConnectFailed:
        return Fault("connect", sent=sent)
    _start(connection, request, sink, patience_s, limits)
    return await sink.wait()


def _start(connection: EngineConnection, request: bytes, sink: WaitingSink[T], patience_s: float, limits: Limits) -> None:
    sink.connection = connection
    sink.sent = True
    connection.start(request, sink, patience_s, limits.stale_s)
