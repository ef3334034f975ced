"""Keep-alive connections to one engine, newest first. Connections are made on demand and dropped when unused."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import cast
from urllib.parse import urlsplit

from controlplane.router import courses
from controlplane.router.gathering import Gathering
from controlplane.router.limits import Limits
from controlplane.router.upstream import EngineConnection, Fault


class ConnectFailed(Exception):
    """No connection to the engine could be made in time."""


class Pool:
    def __init__(self, url: str, limits: Limits) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or 80
        self._limits = limits
        self._idle: list[EngineConnection] = []
        self._busy: set[EngineConnection] = set()
        self._connecting: dict[asyncio.Timeout, float] = {}
        """Attempts to connect and their deadlines (monotonic), which `sweep` acts on."""
        self.gathering: Gathering | None = None
        """Whose pauses its connections end."""
        self._closing = False
        self._suspect = False

    def take(self) -> EngineConnection | None:
        """An idle connection that is still open, if there is one."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed:
                self._busy.add(connection)
                return connection
        return None

    async def connect(self) -> EngineConnection:
        """A new connection. Raises ConnectFailed."""
        await courses.in_task()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as patience:
                self._connecting[patience] = time.monotonic() + self._limits.connect_s
                transport, protocol = await loop.create_connection(
                    lambda: cast(asyncio.Protocol, EngineConnection(self._idled, self._gone)), self._host, self._port
                )
        except (OSError, TimeoutError) as error:
            raise ConnectFailed(type(error).__name__) from error
        finally:
            self._connecting.pop(patience, None)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = cast(EngineConnection, protocol)
        self._busy.add(connection)
        if self.gathering is not None:
            self.gathering.heed(connection.fileno())
        return connection

    def sweep(self, now: float) -> None:
        """Called about twice a second: drops unused connections, fails legs and attempts to connect that take too long."""
        oldest = now - self._limits.engine_idle_s
        for connection in [c for c in self._idle if c.closed or c.touched < oldest]:
            self._idle.remove(connection)
            connection.abort()
        for connection in [c for c in self._busy if c.busy and not c.paused and now - c.touched > c.patience_s]:
            connection.fail(Fault("timeout"))
        for patience in [each for each, deadline in self._connecting.items() if now > deadline]:
            del self._connecting[patience]
            patience.reschedule(asyncio.get_running_loop().time())

    def forgive(self, lost_s: float, now: float) -> None:
        """Counts time in which this process did not run against nobody: what engines said meanwhile may still be unread."""
        for connection in self._busy:
            connection.touched = min(now, connection.touched + lost_s)
            connection.heard = min(now, connection.heard + lost_s)
        for patience in self._connecting:
            self._connecting[patience] += lost_s

    def suspicious(self, now: float) -> bool:
        """Whether the engine should be asked if it lives: a leg has heard nothing for long, or was given up so."""
        suspect, self._suspect = self._suspect, False
        return suspect or any(c.busy and not c.paused and now - c.heard > self._limits.silent_s for c in self._busy)

    def fail_silent(self, since: float, fault: Fault) -> None:
        """Fails the legs that have heard nothing since then and whose answer has not begun."""
        for connection in [c for c in self._busy if c.busy and not c.streaming and c.heard < since]:
            connection.fail(fault)

    def close(self) -> None:
        """The engine left the table: idle connections go now, busy ones when their request is done."""
        self._closing = True
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    def reopen(self) -> None:
        """The engine is back in the table."""
        self._closing = False

    @property
    def open_connections(self) -> int:
        return len(self._idle) + len(self._busy)

    def _idled(self, connection: EngineConnection) -> None:
        self._busy.discard(connection)
        if self._closing or len(self._idle) >= self._limits.idle_per_engine:
            connection.abort()
            return
        connection.touched = time.monotonic()
        self._idle.append(connection)

    def _gone(self, connection: EngineConnection) -> None:
        self._busy.discard(connection)
        self._suspect |= connection.left_silent
        if connection in self._idle:
            self._idle.remove(connection)
