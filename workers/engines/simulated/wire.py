"""Messages between two simulated engines on their side ports: JSON objects behind a 4-byte length.

Destination -> source: hello, start, read, stop, done, renew. Source -> destination: hello, rate, kv. Between the ranks of
one engine: see gang. The data itself never travels: a transfer takes the time that the bytes would, then the destination
reads what the blocks contain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, cast

import orjson

MAX_MESSAGE_BYTES = 8 << 20


class BadMessage(ValueError):
    """The other end does not speak this protocol."""


def text(message: Mapping[str, Any], key: str) -> str:
    value = message.get(key)
    if not isinstance(value, str) or len(value) > 512:
        raise BadMessage(f"{key} must be a short text")
    return value


def whole(message: Mapping[str, Any], key: str) -> int:
    value = message.get(key)
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise BadMessage(f"{key} must be a whole number")
    return value


def wholes(message: Mapping[str, Any], key: str) -> list[int]:
    value = message.get(key)
    if not isinstance(value, list) or not all(type(item) is int and 0 <= item < 1 << 64 for item in value):
        raise BadMessage(f"{key} must be a list of whole numbers")
    return value


class Side(asyncio.Protocol):
    """One end of a side connection. `on_message` may raise BadMessage, which closes it; `on_close` is called once."""

    def __init__(self, on_message: Callable[[Side, Mapping[str, Any]], None], on_close: Callable[[Side], None]) -> None:
        self._on_message, self._on_close = on_message, on_close
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_close(self)

    def send(self, op: str, **fields: Any) -> None:
        """A message; dropped silently once the connection is gone (`on_close` has told or will tell)."""
        if self._transport and not self._transport.is_closing():
            body = orjson.dumps({"op": op, **fields})
            self._transport.write(len(body).to_bytes(4, "big") + body)

    def close(self) -> None:
        if self._transport:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            while (message := self._next()) is not None:
                self._on_message(self, message)
        except BadMessage:
            self._buffer.clear()
            self.close()

    def _next(self) -> Mapping[str, Any] | None:
        if len(self._buffer) < 4:
            return None
        length = int.from_bytes(self._buffer[:4], "big")
        if length > MAX_MESSAGE_BYTES:
            raise BadMessage("a message is too long")
        if len(self._buffer) < 4 + length:
            return None
        body = bytes(self._buffer[4 : 4 + length])
        del self._buffer[: 4 + length]
        try:
            message = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise BadMessage("a message is not JSON") from error
        if not isinstance(message, dict):
            raise BadMessage("a message is not an object")
        return message
