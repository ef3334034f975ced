"""How many retries a router allows itself: when most engines fail, asking twice for every request only doubles the load."""

from __future__ import annotations

from controlplane.router.limits import Limits


class RetryBudget:
    """Each request earns a part of a retry; what is not used is kept up to a limit, with which a router begins."""

    def __init__(self, limits: Limits) -> None:
        self._most = self._left = float(limits.retry_burst)
        self._share = limits.retry_share

    def earn(self) -> None:
        """A request has come."""
        self._left = min(self._most, self._left + self._share)

    def spend(self) -> bool:
        """False if there is nothing left for a retry."""
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
