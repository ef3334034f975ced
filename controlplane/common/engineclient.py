"""A small HTTP/1.1 client for one engine: keep-alive, one request at a time, bounded, with a deadline for the whole call.

Every engine is asked once a second, so a scrape must be cheap: httptools parses in C, nothing else is done per byte.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any

import httptools

MAX_BODY_BYTES = 8 * 2**20


class EngineSilent(OSError):
    """The engine did not answer, or not in HTTP."""


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes
    first_at: float = 0.0
    """When the first byte of the body came; monotonic."""

    def json(self) -> Any:
        """Raises ValueError."""
        return json.loads(self.body)


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None

    def ask(self, request: bytes) -> asyncio.Future[Answer]:
        assert self.transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._size = 0
        self._first_at = 0.0
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self._answer

    @property
    def usable(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    def close(self) -> None:
        if self.transport:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("it closed the connection")

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.close()  # an answer nobody asked for
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("its answer is not HTTP")

    def on_body(self, body: bytes) -> None:
        self._first_at = self._first_at or time.monotonic()
        self._size += len(body)
        if self._size > MAX_BODY_BYTES:
            self._fail("its answer is too long")
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        if self._answer and not self._answer.done():
            self._answer.set_result(Answer(self._parser.get_status_code(), b"".join(self._body), self._first_at))
        if not self._parser.should_keep_alive():
            self.close()

    def _fail(self, why: str) -> None:
        if self._answer and not self._answer.done():
            self._answer.set_exception(EngineSilent(why))
        self.close()


class EngineClient:
    """Talks to http://host:port with a bearer key that is in no message and no repr."""

    def __init__(self, host: str, port: int, key: str) -> None:
        self.host, self.port, self._key = host, port, key
        self._connection: _Connection | None = None
        self._turn = asyncio.Lock()

    async def get(self, path: str, timeout_s: float) -> Answer:
        """Raises EngineSilent."""
        return await self._call("GET", path, b"", timeout_s)

    async def post(self, path: str, document: Any, timeout_s: float) -> Answer:
        """Raises EngineSilent. Never sent twice."""
        return await self._call("POST", path, json.dumps(document).encode(), timeout_s)

    def close(self) -> None:
        if self._connection:
            self._connection.close()
            self._connection = None

    async def _call(self, method: str, path: str, body: bytes, timeout_s: float) -> Answer:
        host = f"[{self.host}]" if ":" in self.host else self.host
        head = f"{method} {path} HTTP/1.1\r\nHost: {host}:{self.port}\r\nAuthorization: Bearer {self._key}\r\n"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        try:
            async with asyncio.timeout(timeout_s), self._turn:
                return await self._exchange(head.encode() + b"\r\n" + body, again=method == "GET")
        except TimeoutError:
            self.close()  # whatever comes later belongs to nobody
            raise EngineSilent(f"no answer to {method} {path} within {timeout_s:g} s") from None
        except asyncio.CancelledError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise EngineSilent(f"{method} {path}: {error}") from error

    async def _exchange(self, request: bytes, *, again: bool) -> Answer:
        kept = self._connection if self._connection and self._connection.usable else None
        if kept:
            try:
                return await kept.ask(request)
            except EngineSilent:
                if not again:
                    raise
                # An idle connection may be closed by the engine at the moment it is used: that says nothing about it.
        loop = asyncio.get_running_loop()
        _, self._connection = await loop.create_connection(_Connection, self.host, self.port)
        return await self._connection.ask(request)
