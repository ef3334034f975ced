"""Reading the telemetry stream: pages of entries, in the shape `telemetry.intake` takes. Positions are stream ids."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from django.conf import settings
from redis import Redis, ResponseError
from redis.asyncio import Redis as AsyncRedis

from controlplane.core import names

log = logging.getLogger(__name__)

PAGE = 500
DELETE_FOREIGN = "return redis.call('TYPE', KEYS[1]).ok ~= 'stream' and redis.call('DEL', KEYS[1]) or 0"
Entries = list[tuple[str, bytes | None]]
_OPTIONS: dict[str, Any] = {"socket_timeout": 5.0, "socket_connect_timeout": 5.0, "protocol": 2}


def connect_async(url: str | None = None) -> AsyncRedis:
    """A client that gives up after five seconds without an answer; the telemetry server unless told another."""
    return AsyncRedis.from_url(url or settings.TELEMETRY_URL, **_OPTIONS)


def connect() -> Redis:
    return Redis.from_url(settings.TELEMETRY_URL, **_OPTIONS)


async def read_new(valkey: AsyncRedis, after: str, block_ms: int) -> Entries:
    """The next page behind `after`, waiting up to `block_ms` for a first entry. What is stored under the stream's key and
    is no stream is deleted: nobody could add to it. Raises redis.RedisError, OSError."""
    try:
        answer: Any = await valkey.xread({names.TELEMETRY_STREAM: after}, count=PAGE, block=block_ms)
    except ResponseError as error:
        if not str(error).startswith("WRONGTYPE"):
            raise
        if await valkey.register_script(DELETE_FOREIGN)(keys=[names.TELEMETRY_STREAM]):
            log.warning("something else was stored under the telemetry stream's key: it is deleted")
        return []
    return _entries(answer[0][1]) if answer else []


def read_page(valkey: Redis, after: str, last: str = "+") -> Entries:
    """The page behind `after`, up to and with `last`. Raises redis.RedisError, OSError."""
    answer: Any = valkey.xrange(names.TELEMETRY_STREAM, min=f"({after}", max=last, count=PAGE)
    return _entries(answer)


def newest_position(valkey: Redis) -> str:
    """The id of the newest entry ever added; "0-0" when the stream does not exist."""
    if not valkey.exists(names.TELEMETRY_STREAM):
        return "0-0"
    return str(_text(valkey.xinfo_stream(names.TELEMETRY_STREAM)["last-generated-id"]))


def position_at(unix_s: float) -> str:
    return f"{max(int(unix_s * 1000), 0)}-0"


def parts(position: str) -> tuple[int, int]:
    """A stream id as numbers that can be compared."""
    ms, _, serial = position.partition("-")
    return int(ms), int(serial or 0)


def _entries(page: Iterable[tuple[Any, Mapping[bytes, bytes] | None]]) -> Entries:
    return [(_text(id), (fields or {}).get(b"r")) for id, fields in page]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
