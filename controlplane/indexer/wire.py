"""What routers and the indexer say to each other on a unix socket: msgpack lists behind a 4-byte length.

Router: [ENGINES, [[id, incarnation, url, model], …]], the engines of its table, which replace those told before; and
[ASK, number, path, model, adapter, cache_salt, {engine: cache_salt} where that is another, the client's body] and
[STATUS, number], answered by [number, counters].
Indexer: [number, prompt tokens, {engine: [tokens held, 1 if it holds no more]}]; 0 prompt tokens: it does not know.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import msgpack

ENGINES, ASK, STATUS = 1, 2, 3
MAX_FRAME_BYTES = 8 << 20

_LENGTH = struct.Struct(">I")


class BadFrame(ValueError):
    """The other end does not speak this protocol."""


def pack(message: list[Any]) -> bytes:
    body = msgpack.packb(message)
    return _LENGTH.pack(len(body)) + bytes(body)


class Reader:
    """Puts frames together."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[list[Any]]:
        """Every message that is complete now. Raises BadFrame."""
        buffer = self._buffer
        buffer += data
        while len(buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer)
            if length > MAX_FRAME_BYTES:
                raise BadFrame("a frame is too long")
            if len(buffer) < _LENGTH.size + length:
                return
            body = bytes(buffer[_LENGTH.size : _LENGTH.size + length])
            del buffer[: _LENGTH.size + length]
            try:
                message = msgpack.unpackb(body)
            except (ValueError, msgpack.UnpackException) as error:
                raise BadFrame("a frame is not msgpack") from error
            if not isinstance(message, list):
                raise BadFrame("a frame is no list")
            yield message
