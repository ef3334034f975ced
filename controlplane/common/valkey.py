"""Connections to Valkey: no hidden retries, no long waits, no URL in a message. Every caller does its own waiting."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit, urlunsplit

import redis
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError
from redis.retry import Retry as SyncRetry

UNREACHABLE = (RedisError, OSError, TimeoutError)
"""What any call on such a client may raise when the server is away, full or refuses us."""

CONNECT_S = 2.0

CELERY: dict[str, Any] = {
    # A server that vanished without a word is noticed, not waited for.
    "broker_transport_options": {"socket_timeout": 10, "socket_connect_timeout": 3, "socket_keepalive": True},
    "result_backend_transport_options": {"retry_policy": {"max_retries": 2, "interval_start": 0.1, "interval_max": 0.5}},
    "redis_socket_timeout": 5,
    "redis_socket_connect_timeout": 3,
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    "worker_enable_remote_control": False,
    "task_serializer": "json",
    "result_serializer": "json",
    "accept_content": ["json"],
    "result_expires": 60,
    "timezone": "UTC",
}
"""Settings of every Celery application here: JSON only, no remote control, and a broker that may go and come back."""


def connect(url: str, timeout_s: float = 1.5, max_connections: int | None = 2) -> Redis:
    """A client that connects when it is used, gives up after `timeout_s` and connects anew the next time. Raises ValueError
    for a URL that is none."""
    return Redis.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=min(timeout_s, CONNECT_S),
        retry=Retry(NoBackoff(), 0),
        max_connections=max_connections,
    )


def connect_sync(url: str, timeout_s: float = 2.0) -> redis.Redis:
    """The same for threads and commands: `with connect_sync(url) as client`."""
    return redis.Redis.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=min(timeout_s, CONNECT_S),
        retry=SyncRetry(NoBackoff(), 0),
    )


HOW = "write it like redis://:password@host:6379/0"


def usable(url: str) -> bool:
    """Whether this can be the URL of a Valkey."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("redis", "rediss") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def for_celery(url: str) -> str:
    """The URL as Celery takes it: with TLS it wants to be told that the server's certificate is checked."""
    parts = urlsplit(url)
    if parts.scheme != "rediss" or "ssl_cert_reqs=" in parts.query:
        return url
    return urlunsplit(parts._replace(query="&".join(filter(None, [parts.query, "ssl_cert_reqs=required"]))))


def away(error: BaseException) -> str:
    """What is wrong with the server, as the start of a log line. Never holds the URL."""
    if isinstance(error, AuthenticationError):
        return "Valkey refuses the password (of a node: make a new token with `manage.py join-token NODE`)"
    return f"Valkey cannot be reached ({describe(error)})"


def describe(error: BaseException) -> str:
    """An error of the server for a log line. Never holds the URL, which carries the password."""
    return f"{type(error).__name__}: {error}"[:200]
