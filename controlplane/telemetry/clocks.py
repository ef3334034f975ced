"""When a sample was really taken, on the broker's clock, whatever the source's clock says. Pure.

The stream's ids are Valkey's time of arrival: one clock for all sources. A source's clock differs from it by an offset; the
smallest delay between "taken" and "arrived" seen lately is that offset plus almost no waiting time (Cristian, 1989).
"""

from __future__ import annotations

TRUSTED_S = 1.0
"""Clocks this close are left alone: correcting them would only add the jitter of the estimate."""
WINDOW_S = 60.0
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
