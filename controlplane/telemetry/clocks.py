"""When a sample was really taken, on the broker's clock, whatever the source's clock says; which second it stands for. Pure.

The stream's ids are Valkey's time of arrival: one clock for all sources. A source's clock differs from it by an offset; the
smallest delay between "taken" and "arrived" seen lately is that offset plus almost no waiting time (Cristian, 1989).
"""

from __future__ import annotations

from collections.abc import Hashable

TRUSTED_S = 1.0
"""Clocks this close are left alone: correcting them would only add the jitter of the estimate."""
WINDOW_S = 60.0
NEAR_S = 0.25
"""A sample this close to the turn of a second may stand for the second beside it."""
FORGET_S = 60.0
LATE_S = 120.0
"""A source holds records back for less than this; a larger jump of the delay means that its clock was set."""


class SourceClock:
    """The offset of one source, from the smallest delay of this and the previous window."""

    __slots__ = ("_current", "_previous", "_started")

    def __init__(self) -> None:
        self._current: float | None = None
        self._previous: float | None = None
        self._started = 0.0

    def correct(self, at: float, received: float) -> float:
        """`at` of a record that arrived at `received`, on the broker's clock; never later than it arrived."""
        delay = received - at
        best = min((value for value in (self._current, self._previous) if value is not None), default=delay)
        if delay - best > LATE_S:
            self._current = self._previous = None
            best = delay
        if self._current is None or received - self._started > WINDOW_S:
            self._previous, self._current, self._started = self._current, delay, received
        self._current = min(self._current, delay)
        best = min(best, delay)
        offset = best if abs(best) > TRUSTED_S else 0.0
        return min(at + offset, received)


class NodeSeconds:
    """Which second a node's sample stands for. A node samples once a second; when that is near the turn of a second, two
    samples lie in one and none in the next, and one of them stands for its neighbour."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, int]] = {}
        """Per node its newest sample and the second that it stood for."""

    def of(self, node: str, at: float) -> int:
        """Records that were taken together stand for the same second."""
        second = int(at)
        last_at, last = self._last.get(node, (0.0, 0))
        since_s = at - last_at
        if 0 <= since_s < NEAR_S:
            return last
        if since_s < 0:  # late
            return second
        if second == last and at - second > 1 - NEAR_S:
            second += 1
        elif second == last + 2 and at - second < NEAR_S:
            second -= 1
        self._last[node] = (at, second)
        return second

    def forget(self, now: float) -> None:
        """Nodes that have not told for long."""
        self._last = {node: last for node, last in self._last.items() if now - last[0] < FORGET_S}


class CountedSeconds:
    """Seconds that figures stand for, each counted once however many sources tell of it."""

    def __init__(self) -> None:
        self._until: dict[Hashable, int] = {}
        """Per key: the newest second that was counted."""

    def more(self, key: Hashable, second: int, span_s: int = 1) -> int:
        """How many of the `span_s` seconds that end with `second` are new for `key`."""
        new = min(span_s, second - self._until.get(key, 0))
        if new <= 0:
            return 0
        self._until[key] = second
        return new

    def since_last(self, key: Hashable, second: int, most_s: int) -> int:
        """How long ago `key` told before, which is what its counters have gained over: 1 if it never did, or longer ago than
        `most_s`."""
        span_s = second - self._until.get(key, 0)
        return self.more(key, second, span_s if span_s <= most_s else 1)

    def forget(self, before: float) -> None:
        """Keys that were told of nothing since then."""
        self._until = {key: second for key, second in self._until.items() if second >= before}
