"""The client's side: HTTP/1.1 requests in, answers out, one at a time and in order. Knows nothing of engines or models.

Requests are parsed by httptools and queued; while one is being served at most `Limits.held_bytes` more are read, so that a
client that goes away is noticed without its pipeline being buffered without end.
"""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, cast

import httptools

from controlplane.core.routing import Reason
from controlplane.router.errors import ApiError, bad_request
from controlplane.router.limits import Limits
from controlplane.router.upstream import EngineConnection

_KEPT_HEADERS = frozenset({
    b"authorization", b"x-api-key", b"content-encoding", b"content-length", b"expect", b"transfer-encoding",
    b"x-request-id", b"traceparent", b"tracestate", b"x-session-id",
})  # fmt: skip
"""What the router uses. All else a client sends is dropped: no steering or hop-by-hop header can reach an engine."""


@dataclass(slots=True)
class ClientRequest:
    method: str
    target: bytes
    headers: dict[bytes, bytes]
    keep_alive: bool
    http10: bool
    body_parts: list[bytes] = field(default_factory=list)
    size: int = 0

    def body(self) -> bytes:
        return self.body_parts[0] if len(self.body_parts) == 1 else b"".join(self.body_parts)


class Handler(Protocol):
    """What the protocol needs of the application."""

    stopping: bool

    def opened(self, client: ClientConnection) -> None: ...
    def closed(self, client: ClientConnection) -> None: ...
    def serve(self, client: ClientConnection, request: ClientRequest) -> None:
        """Answers now, or sets `client.task`; ends with `client.finish`."""
        ...

    def refuse(self, client: ClientConnection, error: ApiError) -> None:
        """Writes an error for something that was no request. The connection is closed afterwards."""
        ...


class _Stage(Enum):
    IDLE = 0
    HEAD = 1
    BODY = 2
    LINGER = 3
    """A refusal has been sent; what still comes is dropped."""


class _StopParsing(Exception):
    """Raised inside a parser callback: nothing after this point of the stream is looked at."""


class ClientConnection(asyncio.Protocol):
    def __init__(self, handler: Handler, limits: Limits) -> None:
        self._handler = handler
        self._limits = limits
        self._parser: Any = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._stage = _Stage.IDLE
        self._deadline = math.inf
        self._head_size = 0
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._header_count = 0
        self._request: ClientRequest | None = None
        self._continue_due = False
        self._upgrade = False
        self._queue: deque[ClientRequest | ApiError] = deque()
        self._current: ClientRequest | None = None
        self._held: list[bytes] = []
        self._held_size = 0
        self._reading = True
        self._parsing = True
        self._advancing = False
        self._writable = True
        self.task: asyncio.Task[None] | None = None
        self.source: EngineConnection | None = None
        """The engine connection whose bytes go to this client: it is left unread while the client takes none."""
        self.gone = False

    # --- used by the application ---

    @property
    def busy(self) -> bool:
        return self._current is not None

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
        if self._current is None and self._stage in (_Stage.IDLE, _Stage.HEAD):
            self.close()

    def sweep(self, now: float) -> None:
        """Called about once a second: acts on whatever deadline has passed."""
        if now < self._deadline:
            return
        self._deadline = math.inf
        if self._current is not None and self._writable:
            return  # the clocks of the next request start when it is read on
        if self._stage is _Stage.LINGER or not self._writable or self._transport is None or self._transport.is_closing():
            self.abort()
        elif self._stage is _Stage.IDLE:
            self.close()
        else:
            self._enqueue_refusal(
                ApiError(408, "The request did not arrive in time.", Reason.BAD_REQUEST, code="request_timeout")
            )

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are no subclasses
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._deadline = time.monotonic() + self._limits.keep_alive_s
        self._handler.opened(self)

    def data_received(self, data: bytes) -> None:
        if self._stage is _Stage.LINGER or not self._parsing:
            return
        if self._current is None and not self._queue:
            self._parse(data)
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
        if self._stage is not _Stage.LINGER:
            self._deadline = math.inf
        if self.source is not None:
            self.source.resume()
        self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        self._deadline = math.inf
        self._parser = None  # it knows us: without this, memory would wait for the garbage collector
        self._handler.closed(self)
        if self.task is not None:
            self.task.cancel()

    # --- parsing ---

    def _parse(self, data: bytes) -> None:
        if self._stage is _Stage.IDLE:
            self._begin()
        elif self._stage is _Stage.BODY:
            self._deadline = time.monotonic() + self._limits.body_idle_s
        if self._stage is _Stage.HEAD:
            self._head_size += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, ApiError):
                self._enqueue_refusal(error.__context__)
            elif not isinstance(error.__context__, _StopParsing):
                self._enqueue_refusal(bad_request("This is not a valid HTTP/1.1 request.", code="invalid_http"))
            return
        if self._stage is _Stage.HEAD and self._head_size > self._limits.head_bytes:
            self._enqueue_refusal(self._head_too_large())

    def _begin(self) -> None:
        self._stage = _Stage.HEAD
        self._deadline = time.monotonic() + self._limits.head_s
        self._head_size = 0

    def on_message_begin(self) -> None:
        self._begin()
        self._target = b""
        self._headers = {}
        self._header_count = 0

    def on_url(self, url: bytes) -> None:
        self._target += url
        if len(self._target) > self._limits.head_bytes:
            raise self._head_too_large()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._stage is not _Stage.HEAD:
            return  # a trailer
        self._header_count += 1
        # 64: about what an entry costs us beyond its bytes.
        self._head_size += 64
        if self._header_count > self._limits.headers or len(name) + len(value) > self._limits.head_bytes:
            raise self._head_too_large()
        name = name.lower()
        if name in _KEPT_HEADERS:
            self._headers[name] = value

    def on_headers_complete(self) -> None:
        if self._parser.should_upgrade():
            self._upgrade = True
            return
        self._stage = _Stage.BODY
        self._deadline = time.monotonic() + self._limits.body_idle_s
        version = self._parser.get_http_version()
        self._request = ClientRequest(
            self._parser.get_method().decode("ascii"),
            self._target,
            self._headers,
            self._parser.should_keep_alive(),
            version == "1.0",
        )
        length = self._headers.get(b"content-length", b"0")
        if int(length) > self._limits.body_bytes:
            raise self._body_too_large()
        if self._headers.get(b"expect", b"").lower() == b"100-continue":
            self._continue_due = True
            self._send_continue()

    def on_body(self, data: bytes) -> None:
        request = self._request
        assert request is not None
        request.size += len(data)
        if request.size > self._limits.body_bytes:
            raise self._body_too_large()
        request.body_parts.append(data)

    def on_message_complete(self) -> None:
        if self._upgrade:
            return
        request, self._request = self._request, None
        assert request is not None
        self._continue_due = False
        self._stage = _Stage.IDLE
        self._deadline = math.inf
        self._queue.append(request)
        if not request.keep_alive or len(self._queue) > self._limits.pipelined:
            request.keep_alive = False
            self._parsing = False
        self._advance()
        if not self._parsing:
            raise _StopParsing

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Goes on in HTTP/1.1, as RFC 9110 section 7.8 allows: llhttp stops at an upgrade, so the head is given again
        without it."""
        self._upgrade = False
        lines = [b"%b: %b\r\n" % pair for pair in self._headers.items()]
        method = self._parser.get_method()
        if method == b"CONNECT":
            self._enqueue_refusal(bad_request("CONNECT is not supported.", code="invalid_http"))
            return
        head = b"%b %b HTTP/1.1\r\n%b\r\n" % (method, self._target, b"".join(lines))
        self._parser = httptools.HttpRequestParser(self)
        self._stage = _Stage.IDLE
        self._parse(head + rest)

    def _send_continue(self) -> None:
        """Asks for the body, unless an earlier answer has still to be written."""
        if self._continue_due and self._current is None and not self._queue:
            self._continue_due = False
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _head_too_large(self) -> ApiError:
        return ApiError(431, "The request's headers are too large.", Reason.TOO_LARGE, code="headers_too_large")

    def _body_too_large(self) -> ApiError:
        message = f"The request's body is over the limit of {self._limits.body_bytes} bytes."
        return ApiError(413, message, Reason.TOO_LARGE, code="body_too_large")

    # --- order ---

    def _enqueue_refusal(self, error: ApiError) -> None:
        self._parsing = False
        self._request = None
        self._continue_due = False
        self._queue.append(error)
        self._advance()

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
        patience = {_Stage.HEAD: self._limits.head_s, _Stage.BODY: self._limits.body_idle_s}
        self._deadline = time.monotonic() + patience.get(self._stage, self._limits.keep_alive_s)
        held, self._held, self._held_size = self._held, [], 0
        if not self._reading and self._transport is not None:
            self._reading = True
            self._transport.resume_reading()
        if held:
            self._parse(b"".join(held))

    def _linger(self) -> None:
        """After a refusal in the middle of a request: the client is still sending, and a plain close would reset the
        connection before it has read the answer."""
        self._stage = _Stage.LINGER
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
