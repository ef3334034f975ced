"""Transfers that share a network link: each gets an equal part of it, or less where its other end gives less. Pure.

A fluid model: rates change only when a transfer starts, ends or is told another limit, and are constant in between.
"""

from __future__ import annotations

from typing import Generic, TypeVar

Transfer = TypeVar("Transfer")


class SharedLink(Generic[Transfer]):
    """One direction of a link of `bytes_per_s`, and the transfers on it. `now` never runs backwards."""

    def __init__(self, bytes_per_s: float) -> None:
        if not bytes_per_s > 0:
            raise ValueError(f"a link needs a positive bandwidth, got {bytes_per_s}")
        self.bytes_per_s = bytes_per_s
        self._left: dict[Transfer, float] = {}
        self._limit: dict[Transfer, float] = {}
        self._at = 0.0

    @property
    def share(self) -> float:
        """Bytes/s that each transfer may use of this link now."""
        return self.bytes_per_s / max(1, len(self._left))

    def start(self, now: float, transfer: Transfer, size_bytes: float, limit: float = float("inf")) -> None:
        """A transfer of `size_bytes` begins; its other end gives at most `limit` bytes/s."""
        self._advance(now)
        self._left[transfer] = size_bytes
        self._limit[transfer] = limit

    def limit(self, now: float, transfer: Transfer, bytes_per_s: float) -> None:
        """The other end of a transfer gives another rate from now on."""
        self._advance(now)
        if transfer in self._limit:
            self._limit[transfer] = bytes_per_s

    def stop(self, now: float, transfer: Transfer) -> None:
        """A transfer has ended, or was given up; unknown ones are ignored."""
        self._advance(now)
        self._left.pop(transfer, None)
        self._limit.pop(transfer, None)

    def next_end(self) -> tuple[float, Transfer] | None:
        """When the next transfer is through if nothing changes, and which; None without transfers."""
        share = self.share
        ends = ((self._at + left / min(share, self._limit[each]), each) for each, left in self._left.items())
        return min(ends, key=lambda end: end[0], default=None)

    def _advance(self, now: float) -> None:
        if now <= self._at:
            return  # many limits change at one time: nothing has moved in between
        share, elapsed = self.share, now - self._at
        for transfer, left in self._left.items():
            self._left[transfer] = max(0.0, left - elapsed * min(share, self._limit[transfer]))
        self._at = now
