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
