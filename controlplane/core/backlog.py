"""What pools give under traffic that comes and goes within minutes: what one leaves undone, the next works off. Pure.

The closed form for one load (core/capacity) takes it for one that lasts. Recorded traffic has minutes of more than a pool
can take, and lulls after them. Here the windows of late go by in their order, and what is not done in one is carried into
the next (core/backlog_pools). More engines or less load never make a first token later; of the time per token this is not
sure, where prompts stall decoding.

`docs/planner.md` has how far this is off from the event simulation, and how often both find the same split.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from controlplane.core.backlog_pools import Minute, Moment, Pools, Prepared, late, late_in, prepared, slow
from controlplane.core.capacity import TAIL, EngineSpeed
from controlplane.core.workload import Mix, Window

TURNS = 5
"""To find a p99: by then it is known within a few percent."""
LEAST_SHARE = 1e-6
LONGEST_S = 3600.0
Local = Callable[[Mix], Sequence[bool]]


@dataclass(frozen=True)
class Traffic:
    """Minutes in their order. `rate`: the load (arrivals/s) that they stand for; for others all are scaled alike. `seen`: so
    many of the first are all of the last hour; 0: less was seen."""

    minutes: tuple[Minute, ...]
    rate: float
    seen: int = 0


def minute_of(window: Window, weight: float, factor: float, usual: Mix) -> Minute:
    """`factor`: on its rate; `usual`: the mix of a window whose lengths were not kept."""
    mix = window.mix if window.mix.cells else usual
    return Minute(window.until_s - window.since_s, window.rate * factor, window.burst, mix, weight)


class Backlogged(NamedTuple):
    """Shares of the requests by weight: `late` with the first token, `slow` per token, `in_time`: neither."""

    late: float
    slow: float
    in_time: float


class Backlog:
    """Traffic on one pair of engine kinds in one mode; `local` says which cells are computed where they are answered."""

    def __init__(self, traffic: Traffic, answer: EngineSpeed, prefill: EngineSpeed | None, local: Local) -> None:
        self._traffic, self._answer = traffic, answer
        known: dict[Mix, Prepared] = {}
        self._minutes = []
        for minute in traffic.minutes:
            if not minute.mix.cells:
                continue
            if minute.mix not in known:
                known[minute.mix] = prepared(minute, answer, prefill or answer, local(minute.mix))
            self._minutes.append(known[minute.mix]._replace(told=minute))

    def course(self, answers: int, prefills: int, rate: float) -> Course:
        """With so many engines, at `rate` arrivals/s."""
        scale = rate / self._traffic.rate
        pools = Pools(self._answer, answers, prefills)
        return Course([pools.through(minute, scale) for minute in self._minutes])


class Course:
    """How the traffic went."""

    def __init__(self, minutes: Sequence[Sequence[Moment]]) -> None:
        self._minutes = minutes
        self._moments = [moment for minute in minutes for moment in minute]
        self._weight = math.fsum(each.weight for each in self._moments)

    def part(self, first: int, end: int) -> Course:
        """Of the minutes from `first` on, before `end`; what was left undone before them is in it."""
        return Course(self._minutes[first:end])

    def later_than(self, seconds: float) -> float:
        """Share of the requests whose first token takes longer."""
        return self._mean([late(each, seconds) for each in self._moments])

    def held_by_answers(self, seconds: float) -> bool:
        """Whether of the requests whose first token takes longer more wait for the answering pool than for prefill."""
        found = [late_in(each, seconds) for each in self._moments]
        return self._mean([here for _, here in found]) > self._mean([away for away, _ in found])

    def slower_than(self, seconds: float) -> float:
        """Share of the answers whose tokens take longer on average."""
        return self._mean([slow(each, seconds) for each in self._moments])

    def judged(self, ttft_s: float, itl_s: float) -> Backlogged:
        lates = [late(each, ttft_s) for each in self._moments]
        slows = [slow(each, itl_s) for each in self._moments]
        good = [(1 - one) * (1 - other) for one, other in zip(lates, slows, strict=True)]
        return Backlogged(self._mean(lates), self._mean(slows), self._mean(good))

    def later_than_all_but(self, near_s: float) -> float:
        """TTFT p99, sought around `near_s`; infinite beyond an hour."""
        return _exceeded(self.later_than, near_s)

    def slower_than_all_but(self, near_s: float) -> float:
        """The same of the time per token."""
        return _exceeded(self.slower_than, near_s)

    def _mean(self, shares: Sequence[float]) -> float:
        if not self._weight:
            return 0.0
        return math.fsum(each.weight * share for each, share in zip(self._moments, shares, strict=True)) / self._weight


def _exceeded(share: Callable[[float], float], near: float) -> float:
    """What all but TAIL stay below, sought around `near`: shares fall nearly like an exponential function."""
    low = high = near
    below = above = max(LEAST_SHARE, share(near))
    while above > TAIL:
        low, below = high, above
        high *= 2
        above = max(LEAST_SHARE, share(high))
        if high > LONGEST_S:
            return math.inf
    while below <= TAIL:
        high, above = low, below
        low /= 2
        below = max(LEAST_SHARE, share(low))
        if below <= TAIL and low < near / 64:
            return low
    for _ in range(TURNS):
        middle = low + (high - low) * min(0.9, max(0.1, math.log(below / TAIL) / math.log(below / above)))
        found = max(LEAST_SHARE, share(middle))
        if found > TAIL:
            low, below = middle, found
        else:
            high, above = middle, found
    return high
