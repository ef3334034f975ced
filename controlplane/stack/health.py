"""Health checks: each makes an async function `check(started_at)` that never raises and never takes longer than 3 s."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import time
from collections.abc import Awaitable, Callable

import redis

from controlplane.core import names

Check = Callable[[float], Awaitable[bool]]


def reachable(host: str) -> str:
    """The address under which this machine reaches a server that listens on `host`."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address or name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def http(host: str, port: int, path: str) -> Check:
    """Whether GET answers 200."""

    async def check(_started_at: float) -> bool:
        return (await get(host, port, path))[0] == 200

    return check


async def get(host: str, port: int, path: str) -> tuple[int, bytes]:
    """Status and body of GET http://host:port/path; status 0 when there is no answer within 3 s."""
    try:
        async with asyncio.timeout(3.0):
            reader, writer = await asyncio.open_connection(reachable(host).strip("[]"), port)
            try:
                writer.write(f"GET {path} HTTP/1.0\r\nHost: {reachable(host)}:{port}\r\n\r\n".encode())
                answer = await reader.read(1 << 20)
                while part := await reader.read(1 << 20):
                    answer += part
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split(b" ", 2)[1]), body
    except (OSError, TimeoutError, ValueError, IndexError):
        return 0, b""


def alive(for_s: float) -> Check:
    """For a process without an endpoint: it has been alive for some seconds."""

    async def check(started_at: float) -> bool:
        return time.time() - started_at >= for_s

    return check


def in_thread(question: Callable[[], bool]) -> Check:
    """A blocking question, asked beside the event loop."""

    async def check(_started_at: float) -> bool:
        return await asyncio.to_thread(question)

    return check


def agent(valkey_url: str, node: str) -> Check:
    """Whether the agent has told its fact since it was started. (The signature is control's business.)"""

    def told(started_at: float) -> bool:
        client = redis.Redis.from_url(valkey_url, socket_timeout=2, socket_connect_timeout=2)
        try:
            envelope = client.get(names.fact_key("agent", node))
            if not isinstance(envelope, bytes):
                return False
            return float(json.loads(json.loads(envelope)["body"])["at"]) >= started_at
        except (redis.RedisError, ValueError, KeyError, TypeError):
            return False
        finally:
            client.close()

    async def check(started_at: float) -> bool:
        return await asyncio.to_thread(told, started_at)

    return check
