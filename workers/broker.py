"""Connections to Valkey for what an agent sends on its own: no hidden retries, no long waits."""

from __future__ import annotations

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

UNREACHABLE = (RedisError, OSError, TimeoutError)
"""What any call on such a client may raise when the server is away, full or refuses us."""


def connect(url: str, timeout_s: float = 1.5) -> Redis:
    """A client that connects when it is used, gives up after `timeout_s` and connects anew the next time."""
    return Redis.from_url(
        url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=Retry(NoBackoff(), 0), max_connections=2
    )


def describe(error: BaseException) -> str:
    """An error of the server for a log line. Never holds the URL, which carries the password."""
    return f"{type(error).__name__}: {error}"[:200]
