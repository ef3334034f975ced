"""The time that an engine runs on: its event loop's, or one that a test moves by hand.

An engine asks a clock for the time and for calls at a time, and knows nothing else of time. An asyncio event loop is such a
clock; `ManualClock` is another, on which ten minutes of traffic pass as fast as they can be computed.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any, Protocol


class Timer(Protocol):
    """A call that is yet to come."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Seconds that never run backwards, and calls at a time. asyncio's event loops are clocks."""

    def time(self) -> float: ...

    def call_soon(self, callback: Callable[..., object], *args: Any) -> Timer: ...

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> Timer: ...

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Timer: ...


class _Call:
    __slots__ = ("args", "callback", "cancelled")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.callback, self.args = callback, args
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class ManualClock:
    """Time that passes only in `run_until`, in jumps from call to call. Calls of one time run in the order they were asked
    for, as on an event loop; what a callback raises comes out of `run_until`."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._order = count()
        self._calls: list[tuple[float, int, _Call]] = []

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Callable[..., object], *args: Any) -> Timer:
        return self.call_at(self._now, callback, *args)

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Timer:
        return self.call_at(self._now + delay, callback, *args)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> Timer:
        """A call at `when`, or as soon as time runs if that has passed."""
        call = _Call(callback, args)
        heappush(self._calls, (max(when, self._now), next(self._order), call))
        return call

    def next_call(self) -> float | None:
        """When the next call is due; None when nothing will happen any more."""
        while self._calls and self._calls[0][2].cancelled:
            heappop(self._calls)
        return self._calls[0][0] if self._calls else None

    def run_until(self, end: float) -> None:
        """Makes every call due by `end`, those that they ask for included; then it is `end`."""
        while (when := self.next_call()) is not None and when <= end:
            call = heappop(self._calls)[2]
            self._now = when
            call.callback(*call.args)
        self._now = max(self._now, end)

    def run(self) -> None:
        """Until nothing will happen any more."""
        while (when := self.next_call()) is not None:
            self.run_until(when)
