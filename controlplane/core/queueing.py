"""Waiting before a pool of equal engines: how likely a wait is longer than t, for any spread of service times. Pure.

Erlang's C for the chance to wait at all, an exponential tail with Kingman's factor (Allen and Cunneen) for how long: exact
for Poisson arrivals and exponential service, within some 10% of simulations for the service times of prompts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FULL = 1 - 1e-9


@dataclass(frozen=True)
class Wait:
    """P(wait > t) = `chance` x exp(-t / `decay_s`). Saturated: chance 1, decay infinite."""

    chance: float
    decay_s: float

    def longer_than(self, seconds: float) -> float:
        """Share of requests that wait longer; 1 for a negative time."""
        if seconds < 0:
            return 1.0
        if not self.decay_s:
            return 0.0
        return self.chance * math.exp(-seconds / self.decay_s)


NONE = Wait(0.0, 0.0)
ENDLESS = Wait(1.0, math.inf)


@dataclass(frozen=True)
class Behind:
    """The wait in a pool that works off a backlog: the distance from nothing of a normal distribution around `mean_s`, as a
    queue cannot be below nothing, and no less than a pool of this load lets wait without a backlog."""

    mean_s: float
    spread_s: float
    chance: Wait

    def longer_than(self, seconds: float) -> float:
        if seconds < 0:
            return 1.0
        above, below = (seconds - self.mean_s) / self.spread_s, (seconds + self.mean_s) / self.spread_s
        return max(normal_tail(above) + normal_tail(below), self.chance.longer_than(seconds))


def waiting(servers: int, rate: float, service_s: float, service_scv: float, burst: float = 1.0) -> Wait:
    """Before `servers` equal servers at `rate` arrivals/s of mean service time `service_s`. `service_scv`: variance ÷
    squared mean of service times; `burst`: variance ÷ mean of arrivals over a long time (1: Poisson)."""
    busy = rate * service_s / servers
    if busy >= FULL:
        return ENDLESS
    if busy <= 0:
        return NONE
    decay_s = service_s * (burst + service_scv) / 2 / (servers * (1 - busy))
    return Wait(erlang_c(servers, rate * service_s), decay_s)


def held(batch: float, inflow: float, most: float, life_s: float, seconds: float) -> tuple[float, float]:
    """Answers that an engine has, with those that wait for one of its `most` places: on average over the time, and at its
    end. Each takes `life_s` from when it has a place."""
    total, left_s = 0.0, seconds
    if batch > most:
        growth = inflow - most / life_s
        full_s = seconds if growth >= 0 else min(seconds, (batch - most) / -growth)
        end = batch + growth * full_s
        total, batch, left_s = (batch + end) / 2 * full_s, end, seconds - full_s
    if left_s > 0:
        goal = inflow * life_s
        free_s = left_s if goal <= most else min(left_s, life_s * math.log((goal - min(batch, most)) / (goal - most)))
        end = goal + (batch - goal) * math.exp(-free_s / life_s)
        total, batch, left_s = total + goal * free_s + (batch - end) * life_s, end, left_s - free_s
    if left_s > 0:
        end = batch + (inflow - most / life_s) * left_s
        total, batch = total + (batch + end) / 2 * left_s, end
    return total / seconds, batch


def erlang_c(servers: int, work: float) -> float:
    """The chance that all of `servers` are busy at `work` erlangs (below `servers`), by the recursion of Erlang's B."""
    blocked = 1.0
    for count in range(1, servers + 1):
        blocked = work * blocked / (count + work * blocked)
    busy = work / servers
    return blocked / (1 - busy * (1 - blocked))


def normal_tail(distance: float) -> float:
    """Share of a normal distribution further than `distance` standard deviations above its mean."""
    return 0.5 * math.erfc(distance / math.sqrt(2))
