"""The client's side: HTTP/1.1 requests in, answers out, one at a time and in order. Knows nothing of engines or models.

Requests are read by `reading` and queued; while one is being served at most `Limits.held_bytes` more are read, so that a
client that goes away is noticed without its pipeline being buffered without end.
"""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections import deque
from typing import Protocol, cast

from controlplane.core.routing import Reason
from controlplane.router import identity
from controlplane.router.courses import Course
from controlplane.router.errors import ApiError
from controlplane.router.limits import Limits
from controlplane.router.reading import ClientRequest, RequestParser, Stage
from controlplane.router.upstream import EngineConnection


class Handler(Protocol):
    """What the protocol needs of the application."""

    stopping: bool

    def opened(self, client: ClientConnection) -> None: ...
    def closed(self, client: ClientConnection) -> None: ...
    def admit(self, client: ClientConnection, request: ClientRequest) -> None:
        """A large body has begun to come. Raises ApiError if the request will be refused whatever it says."""
        ...

    def serve(self, client: ClientConnection, request: ClientRequest) -> None:
        """Answers now, or sets `client.task`; ends with `client.finish`."""
        ...

    def refuse(self, client: ClientConnection, error: ApiError) -> None:
        """Writes an error for something that was no request. The connection is closed afterwards."""
        ...


_LEFT = (7, 8)
"""TCP_CLOSE and TCP_CLOSE_WAIT of Linux's tcp_states.h."""


class ClientConnection:
    """An `asyncio.Protocol` by its methods alone: compiled classes have no base classes that are not."""

    def __init__(self, handler: Handler, limits: Limits) -> None:
        self._handler = handler
        self._limits = limits
        self._parser = RequestParser(self, limits)
        self._transport: asyncio.Transport | None = None
        self._deadline = math.inf
        self._continue_due = False
        self._queue: deque[ClientRequest | ApiError] = deque()
        self._current: ClientRequest | None = None
        self._held: list[bytes] = []
        self._held_size = 0
        self._reading = True
        self._parsing = True
        self._lingering = False
        """A refusal has been sent; what still comes is dropped."""
        self._advancing = False
        self._writable = True
        self.task: Course | asyncio.Task[None] | None = None
        self.source: EngineConnection | None = None
        """The engine connection whose bytes go to this client: it is left unread while the client takes none."""
        self.gone = False

    # --- used by the application ---

    @property
    def local(self) -> bool:
        """Whether the client is on this machine, as far as its address tells."""
        if self._transport is None or (peer := self._transport.get_extra_info("peername")) is None:
            return False
        # From our own address to itself: nobody else could have that answered.
        return identity.is_loopback(peer[0]) or peer[0] == self._transport.get_extra_info("sockname")[0]

    @property
    def busy(self) -> bool:
        return self._current is not None

    def fileno(self) -> int:
        """Of its socket; negative: there is none."""
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        return sock.fileno() if sock is not None else -1

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self.gone:
            self._transport.write(data)

    def follow(self, source: EngineConnection | None) -> None:
        """Couples an engine connection to this client's back-pressure, or uncouples it."""
        self.source = source
        if source is not None and not self._writable:
            source.pause()

    def finish(self, close: bool = False) -> None:
        """The current answer is complete."""
        request, self._current = self._current, None
        self.task = None
        self.source = None
        if self.gone or request is None:
            return
        if close or not request.keep_alive or self._handler.stopping:
            self.close()
        else:
            self._advance()

    def close(self) -> None:
        """Closes once everything written has been sent."""
        self._parsing = False
        self._queue.clear()
        if self._transport is not None:
            self._deadline = time.monotonic() + self._limits.client_stall_s
            self._transport.close()

    def abort(self) -> None:
        """Closes at once. The client sees an incomplete answer."""
        if self._transport is not None:
            self._transport.abort()

    def close_if_idle(self) -> None:
        if self._current is None and self._parser.stage is not Stage.BODY:
            self.close()

    def sweep(self, now: float) -> None:
        """Called about twice a second: acts on whatever deadline has passed."""
        if not self._reading and self._current is not None and self._has_left():
            self.abort()
        if now < self._deadline:
            return
        self._deadline = math.inf
        if self._current is not None and self._writable:
            return  # the clocks of the next request start when it is read on
        if self._lingering or not self._writable or self._transport is None or self._transport.is_closing():
            self.abort()
        elif self._parser.stage is Stage.IDLE:
            self.close()
        else:
            self.refused(ApiError(408, "The request did not arrive in time.", Reason.BAD_REQUEST, code="request_timeout"))

    def forgive(self, lost_s: float) -> None:
        """Counts time in which this process did not run against nobody: what was sent meanwhile may still be unread."""
        self._deadline += lost_s

    def _has_left(self) -> bool:
        """Whether the peer has closed or reset a connection that is not read at the moment, which nothing else tells."""
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        return sock is not None and sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in _LEFT

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are no subclasses
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._deadline = time.monotonic() + self._limits.keep_alive_s
        self._handler.opened(self)

    def data_received(self, data: bytes) -> None:
        if not self._parsing:
            return
        if self._current is None and not self._queue:
            self._feed(data)
            return
        self._held.append(data)
        self._held_size += len(data)
        if self._held_size > self._limits.held_bytes and self._reading and self._transport is not None:
            self._reading = False
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        self._writable = False
        self._deadline = time.monotonic() + self._limits.client_stall_s
        if self.source is not None:
            self.source.pause()

    def resume_writing(self) -> None:
        self._writable = True
        if not self._lingering:
            self._deadline = math.inf
        if self.source is not None:
            self.source.resume()
        self._advance()

    def eof_received(self) -> None:
        """The transport closes itself then."""

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        self._deadline = math.inf
        self._parser.forget()
        self._handler.closed(self)
        if self.task is not None:
            self.task.cancel()

    # --- reading.Reader ---

    def _feed(self, data: bytes) -> None:
        self._parser.feed(data)
        if self._parser.stage is Stage.BODY and self._parsing:
            self._deadline = time.monotonic() + self._limits.body_idle_s

    def head_begins(self) -> None:
        self._deadline = time.monotonic() + self._limits.head_s

    def expects_continue(self) -> None:
        self._continue_due = True
        self._send_continue()

    def admit(self, request: ClientRequest) -> None:
        self._handler.admit(self, request)

    def complete(self, request: ClientRequest) -> bool:
        self._continue_due = False
        self._deadline = math.inf
        self._queue.append(request)
        if not request.keep_alive or len(self._queue) > self._limits.pipelined:
            request.keep_alive = False
            self._parsing = False
        self._advance()
        return self._parsing

    def refused(self, error: ApiError) -> None:
        self._parsing = False
        self._continue_due = False
        self._queue.append(error)
        self._advance()

    def _send_continue(self) -> None:
        """Asks for the body, unless an earlier answer has still to be written."""
        if self._continue_due and self._current is None and not self._queue:
            self._continue_due = False
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    # --- order ---

    def _advance(self) -> None:
        """Starts what is next. Answers that are made at once come back here through `finish`: hence the loop."""
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._current is None and self._queue and self._writable and not self.gone:
                item = self._queue.popleft()
                if isinstance(item, ApiError):
                    self._handler.refuse(self, item)
                    self._linger()
                    return
                self._current = item
                self._deadline = math.inf
                self._handler.serve(self, item)
        finally:
            self._advancing = False
        if self._current is None and not self._queue and self._parsing and not self.gone:
            self._read_on()

    def _read_on(self) -> None:
        self._send_continue()
        stage, limits = self._parser.stage, self._limits
        patience_s = limits.keep_alive_s
        if stage is not Stage.IDLE:
            patience_s = limits.head_s if stage is Stage.HEAD else limits.body_idle_s
        self._deadline = time.monotonic() + patience_s
        held, self._held, self._held_size = self._held, [], 0
        if not self._reading and self._transport is not None:
            self._reading = True
            self._transport.resume_reading()
        if held:
            self._feed(b"".join(held))

    def _linger(self) -> None:
        """After a refusal in the middle of a request: the client is still sending, and a plain close would reset the
        connection before it has read the answer."""
        self._lingering = True
        self._parsing = False
        self._held.clear()
        self._deadline = time.monotonic() + self._limits.linger_s
        if self._transport is None or self._transport.is_closing():
            return
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()
