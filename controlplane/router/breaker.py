"""Whether an engine is used or set aside. Only engine faults count, never a client's 4xx. No I/O, no clock."""

from __future__ import annotations

from controlplane.router.limits import Limits


class Breaker:
    """Closed: in use. Open: set aside until a probe that generates has succeeded; each failed probe doubles the wait."""

    __slots__ = ("_limits", "_soft", "_wait_s", "open", "probe_at", "probing")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._soft = 0
        self._wait_s = limits.set_aside_s
        self.open = False
        self.probe_at = 0.0
        self.probing = False

    def fault(self, hard: bool, now: float) -> bool:
        """Notes a fault of a leg. True if the engine was set aside by it."""
        if self.open:
            return False
        self._soft += 1
        if not hard and self._soft < self._limits.soft_faults:
            return False
        self.open = True
        self.probe_at = now + self._wait_s
        return True

    def success(self) -> None:
        """Notes a leg that went well. It does not close an open breaker: only a probe started after the fault may."""
        if not self.open:
            self._soft = 0
            self._wait_s = self._limits.set_aside_s

    def probe_due(self, now: float) -> bool:
        return self.open and not self.probing and now >= self.probe_at

    def probed(self, good: bool, now: float) -> None:
        self.probing = False
        if good:
            self.open = False
            self._soft = 0
            self._wait_s = self._limits.set_aside_s
        else:
            self._wait_s = min(self._wait_s * 2, self._limits.set_aside_max_s)
            self.probe_at = now + self._wait_s
