"""Gives memory back to the system after a burst of requests: the C library keeps what was freed for itself otherwise."""

from __future__ import annotations

import ctypes
import gc

BURST = 256
"""Client connections at once that are worth it."""
QUIET_S = 15.0
"""After the burst: unused connections to engines have been closed by then, and the next burst of several has begun."""


class Bursts:
    """Says when one is over. No clock."""

    def __init__(self) -> None:
        self._most = 0
        self._quiet_since: float | None = None

    def over(self, connections: int, now: float) -> bool:
        """Called about twice a second with the open connections. True once after a burst: no more than a quarter of its
        connections have been there for `QUIET_S`."""
        self._most = max(self._most, connections)
        if self._most < BURST or connections > self._most // 4:
            self._quiet_since = None
            return False
        if self._quiet_since is None:
            self._quiet_since = now
        if now - self._quiet_since < QUIET_S:
            return False
        self._most, self._quiet_since = connections, None
        return True


def give_back() -> None:
    """Takes some milliseconds. Does nothing where the C library cannot."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
