"""Lets events of streams gather: while streams run, the loop looks at its sockets only every so often.

An engine answers all of its streams at once, token by token, and tells them one after the other. To be woken for each of
them costs more than to carry it, and so does each write to a client that has gone back to sleep. So after a turn of the loop
that has carried events, the process sleeps, the longer the more streams are open but no more than a millisecond or two, and
finds what came meanwhile all at once. What was read is on its way before that; nothing waits without open streams. Only
events gather: what clients send, and what engines answer before a stream has begun, ends the sleep.
"""

from __future__ import annotations

import asyncio
import select

from controlplane.router.limits import Limits


class Gathering:
    """Of one process. `streams` counts those that are open; `begin` is called by each that carries something."""

    __slots__ = ("_heeded", "_least", "_most_s", "_per_stream_s", "begun", "streams")

    def __init__(self, limits: Limits) -> None:
        self._least = limits.gather_streams
        self._per_stream_s = limits.gather_per_stream_s
        self._most_s = limits.gather_s
        self._heeded = select.epoll()
        self.streams = 0
        self.begun = False
        """This turn of the loop will be followed by a pause."""

    def begin(self) -> None:
        """Something was carried. Called in a running loop, and only while nothing is `begun`."""
        if self.streams >= self._least:
            self.begun = True
            asyncio.get_running_loop().call_soon(self._pause)  # after this turn's writes, before the next look at sockets

    def heed(self, descriptor: int) -> None:
        """From now on something to read there ends a pause; until the socket is closed, or `ignore`. Negative: none."""
        if descriptor >= 0:
            try:
                self._heeded.register(descriptor, select.EPOLLIN)
            except OSError:
                pass  # it is there already, or closed: a pause may last as long as it would without

    def ignore(self, descriptor: int) -> None:
        """It carries a stream now."""
        if descriptor >= 0:
            try:
                self._heeded.unregister(descriptor)
            except OSError:
                pass  # it was not there

    def _pause(self) -> None:
        self.begun = False
        # Not epoll's own wait, which counts in milliseconds.
        select.select((self._heeded,), (), (), min(self._most_s, self._per_stream_s * self.streams))
