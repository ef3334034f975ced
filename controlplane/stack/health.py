"""Health checks. Each makes an async function that says whether a process started at a Unix time answers now; it does not
raise for what a process does, and gives up within 5 s."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import math
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

import redis

from controlplane.common.valkey import UNREACHABLE, connect_sync
from controlplane.core import names

Check = Callable[[float], Awaitable[bool]]

FRESH_S = 15.0
"""A sign of life that is older counts as none."""


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


def listens_at(path: str) -> Check:
    """Whether somebody listens on a Unix socket."""

    def listens() -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(3.0)
            return probe.connect_ex(path) == 0

    return in_thread(listens)


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
    """Whether the agent tells its fact. (The signature is control's business.)"""

    def told(client: redis.Redis) -> Any:
        return json.loads(json.loads(client.get(names.fact_key("agent", node)) or "")["body"])["at"]

    return _sign(valkey_url, told)


def control(valkey_url: str) -> Check:
    """Whether the control loop ticks."""
    return _sign(valkey_url, lambda client: client.get(names.CONTROL_KEY))


def ingest(valkey_url: str) -> Check:
    """Whether telemetry becomes live rows."""
    return _sign(valkey_url, lambda client: client.hget(names.live_key("fleet"), "at"))


def _sign(valkey_url: str, read: Callable[[redis.Redis], Any]) -> Check:
    """Whether the time (Unix seconds) that a process leaves in Valkey is fresh and later than its start."""

    def told(started_at: float) -> bool:
        try:
            with connect_sync(valkey_url) as client:
                at = float(read(client))
        except (*UNREACHABLE, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return False
        return max(started_at, time.time() - FRESH_S) <= at < math.inf

    async def check(started_at: float) -> bool:
        return await asyncio.to_thread(told, started_at)

    return check
