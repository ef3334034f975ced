"""A lean HTTP/1.1 server on raw asyncio protocols: keep-alive, bounded requests, whole and streamed answers.

One request at a time per connection; what a client pipelines waits. The handler is called in the event loop with a complete
request and answers through its Exchange, at once or later.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import cast

import httptools

MAX_HEAD_BYTES = 64 << 10
MAX_BODY_BYTES = 16 << 20
MAX_PIPELINED = 16
MAX_UNREAD_BYTES = 4 << 20
"""A streaming client that reads this much too slowly is cut off."""

_REASONS = {status.value: status.phrase for status in HTTPStatus}


class Exchange:
    """One request and its answer. `on_disconnect` is called if the client goes before the answer is complete."""

    __slots__ = ("_chunked", "_connection", "_keep", "body", "headers", "method", "on_disconnect", "path", "query")

    def __init__(
        self, connection: Connection, method: str, path: str, query: str, headers: dict[str, str], body: bytes
    ) -> None:
        self.method, self.path, self.query, self.headers, self.body = method, path, query, headers, body
        self.on_disconnect: Callable[[], None] | None = None
        self._connection = connection
        self._keep = self._chunked = True

    def version(self, http_11: bool, keep_alive: bool) -> None:
        """What the client's HTTP version allows."""
        self._chunked, self._keep = http_11, keep_alive

    def answer(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        """A whole answer."""
        self._connection.write(self, self._head(status, content_type, f"content-length: {len(body)}\r\n") + body)
        self._connection.done(self, self._keep)

    def stream(self, content_type: str = "text/event-stream; charset=utf-8") -> None:
        """Begin a streamed answer; `send` its parts, then `finish`."""
        if not self._chunked:
            self._keep = False
        framing = "transfer-encoding: chunked\r\n" if self._chunked else ""
        self._connection.write(self, self._head(200, content_type, framing))

    def send(self, data: bytes) -> None:
        self._connection.write(self, b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def finish(self) -> None:
        if self._chunked:
            self._connection.write(self, b"0\r\n\r\n")
        self._connection.done(self, self._keep)

    def cut(self) -> None:
        """No answer: the connection is reset, as by a server that is not there."""
        self._connection.reset()

    def _head(self, status: int, content_type: str, framing: str) -> bytes:
        closing = "" if self._keep else "connection: close\r\n"
        return (
            f"HTTP/1.1 {status} {_REASONS.get(status, '')}\r\ncontent-type: {content_type}\r\n{framing}{closing}\r\n"
        ).encode()


class Connection(asyncio.Protocol):
    """One client connection."""

    def __init__(self, handler: Callable[[Exchange], None]) -> None:
        self._handler = handler
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._queue: deque[Exchange] = deque()
        self.current: Exchange | None = None
        """The request being answered."""
        self._slow = False

    # --- asyncio ----------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        exchange, self.current = self.current, None
        self._queue.clear()
        if exchange and exchange.on_disconnect:
            exchange.on_disconnect()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            # What a callback raises comes as the context of the parser's own error.
            self._refuse(error.__context__.status if isinstance(error.__context__, _TooLarge) else 400)
        except httptools.HttpParserUpgrade:
            self._refuse(400)
        else:
            self._next()

    def pause_writing(self) -> None:
        self._slow = True

    def resume_writing(self) -> None:
        self._slow = False

    # --- httptools --------------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._path = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._head_bytes = self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._grow_head(len(url))
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._grow_head(len(name) + len(value))
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._headers.get("expect", "").lower() == "100-continue" and self._transport and self.current is None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > MAX_BODY_BYTES:
            raise _TooLarge(413)
        self._body.append(body)

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode("latin-1")
        path, _, query = self._path.decode("latin-1").partition("?")
        exchange = Exchange(self, method, path, query, self._headers, b"".join(self._body))
        exchange.version(self._parser.get_http_version() == "1.1", self._parser.should_keep_alive())
        self._body = []
        if len(self._queue) >= MAX_PIPELINED:
            raise _TooLarge(400)
        self._queue.append(exchange)

    def _grow_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            raise _TooLarge(431)

    # --- answers ----------------------------------------------------------------------------------------------------------

    def write(self, exchange: Exchange, data: bytes) -> None:
        """Bytes of an answer; dropped if its client has gone."""
        if self._transport is None or self.current is not exchange:
            return
        if self._slow and self._transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            self._transport.abort()
            return
        self._transport.write(data)

    def done(self, exchange: Exchange, keep_alive: bool) -> None:
        if self.current is not exchange:
            return
        self.current = None
        if not keep_alive:
            self._close()
        elif self._queue and self._transport:
            asyncio.get_running_loop().call_soon(self._next)

    def reset(self) -> None:
        """Drop the client at once."""
        if self._transport:
            self._transport.abort()

    def _next(self) -> None:
        if self.current is None and self._queue:
            self.current = self._queue.popleft()
            self._handler(self.current)

    def _refuse(self, status: int) -> None:
        """The bytes are no acceptable request: say so if no answer is under way, and close."""
        if self._transport and self.current is None:
            body = b'{"error":{"message":"%b","type":"BadRequestError","param":null,"code":%d}}' % (
                _REASONS[status].encode(),
                status,
            )
            self._transport.write(
                b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
                % (status, _REASONS[status].encode(), len(body), body)
            )
        self._close()

    def _close(self) -> None:
        if self._transport:
            self._transport.close()


class _TooLarge(Exception):
    def __init__(self, status: int) -> None:
        self.status = status
