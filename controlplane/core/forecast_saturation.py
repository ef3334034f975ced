"""The highest rate that a layout serves within its SLO, by bisection over simulations. Pure.

Criterion at a rate: of the served requests at least `Criterion.share` (99%) have their first token within the TTFT
target, and of all gaps between tokens at least that share are within the ITL target: both p99s hold. Requests that no engine
could ever serve are left out. The arrivals keep their pattern: their times are scaled, and the pattern is repeated (with
prefixes of its own each time) until it lasts `window_s`. A layout that cannot keep up has no steady state, its queue grows;
a TTFT target of T seconds lets an overload of up to T/window_s pass, 5% at most unless `most_requests` cuts the window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from controlplane.core.forecast_fleet import capacity_tokens
from controlplane.core.forecast_routing import Rates
from controlplane.core.forecast_run import Simulation
from controlplane.core.forecast_types import Arrival, ForecastRefused, Outcome, Pool, Progress, Settings, TooLoose
from controlplane.core.protocol import Mode, Slo

Missed = Literal["ttft", "itl", "both"]

FIRST_FACTOR = 1.5
"""The bracket around the first guess grows by this, squared each time."""
LOWEST_RATE = 1e-3
"""Requests/s. A layout that misses its targets even here misses them for a request alone."""
EXPECTED_TRIES = 11
"""For the progress alone."""


@dataclass(frozen=True)
class Criterion:
    """`tolerance`: how far the rate may be off, relative. `most_requests` bounds a simulation, and so its window at high
    rates. Raises ForecastRefused."""

    slo: Slo
    share: float = 0.99
    tolerance: float = 0.01
    shortest_window_s: float = 60.0
    fewest_requests: int = 200
    most_requests: int = 20_000

    def __post_init__(self) -> None:
        if not (0 < self.slo.ttft_ms < math.inf and 0 < self.slo.itl_ms < math.inf):
            raise ForecastRefused(
                f"the SLO's targets must be positive, got TTFT {self.slo.ttft_ms} ms and ITL {self.slo.itl_ms} ms"
            )
        if not 0 < self.share <= 1:
            raise ForecastRefused(f"the share within the SLO must lie above 0 and at most at 1, got {self.share}")
        if not 1e-4 <= self.tolerance <= 0.5:
            raise ForecastRefused(f"the tolerance must lie between 0.0001 and 0.5, got {self.tolerance}")

    def window_s(self, arrivals: Sequence[Arrival]) -> float:
        """Twenty times the TTFT target, and four times what an average answer may take."""
        answer = sum(each.output_tokens for each in arrivals) / len(arrivals)
        return max(self.shortest_window_s, 20 * self.slo.ttft_ms / 1e3, 4 * answer * self.slo.itl_ms / 1e3)

    def missed(self, outcome: Outcome) -> Missed | None:
        """Which target an outcome misses; None: it holds both."""
        within = sum(request.ttft_s * 1e3 <= self.slo.ttft_ms for request in outcome.served)
        ttft = within < self.share * len(outcome.served)
        itl = outcome.gaps.share_within(self.slo.itl_ms / 1e3) < self.share
        if ttft and itl:
            return "both"
        return "ttft" if ttft else "itl" if itl else None


@dataclass(frozen=True)
class Saturation:
    requests_per_second: float
    """0 if even a request alone misses a target."""
    outcome: Outcome | None
    """At that rate; None at rate 0."""
    missed: Missed
    """What fails just above it."""
    tries: int


def saturate(
    pools: Sequence[Pool],
    arrivals: Sequence[Arrival],
    settings: Settings,
    mode: Mode,
    criterion: Criterion,
    progress: Progress | None = None,
    near: float | None = None,
) -> Saturation:
    """The highest rate of such arrivals (checked by the caller) within the SLO. `near`: where it is looked for first. Raises
    ForecastRefused if they say nothing of rates or no engine can serve any of them, TooLoose, and DoesNotFit."""
    search = _Search(pools, arrivals, settings, mode, criterion, progress)
    rate = near or _guess(pools, arrivals, settings)
    factor = FIRST_FACTOR
    if search.holds(rate):
        while search.holds(rate * factor):
            rate, factor = rate * factor, min(factor * factor, 4.0)
            _check_window(rate, criterion)
        return search.bisect(rate, rate * factor)
    while rate / factor > LOWEST_RATE:
        if search.holds(rate / factor):
            return search.bisect(rate / factor, rate)
        rate, factor = rate / factor, min(factor * factor, 4.0)
    return search.result(0.0)


def _check_window(rate: float, criterion: Criterion) -> None:
    """Requests that come all within the TTFT target and hold it would hold it at any rate."""
    if criterion.most_requests / rate * 1e3 < criterion.slo.ttft_ms:
        raise TooLoose(
            f"{criterion.most_requests:,} requests within the TTFT target of {criterion.slo.ttft_ms:g} ms keep it, so that "
            f"a simulation of so many finds no highest rate: give a tighter target or fewer GPUs"
        )


class _Search:
    def __init__(
        self,
        pools: Sequence[Pool],
        arrivals: Sequence[Arrival],
        settings: Settings,
        mode: Mode,
        criterion: Criterion,
        progress: Progress | None,
    ) -> None:
        self._pools = pools
        self._settings = settings
        self._mode = mode
        self._criterion = criterion
        self._progress = progress
        self._pattern = _Pattern(arrivals)
        self._window_s = criterion.window_s(arrivals)
        self._best: Outcome | None = None
        self._missed: Missed = "both"
        self._tries = 0

    def holds(self, rate: float) -> bool:
        criterion = self._criterion
        count = math.ceil(rate * self._window_s)
        arrivals = self._pattern.at(rate, min(max(count, criterion.fewest_requests), criterion.most_requests))
        outcome = Simulation(self._pools, arrivals, self._settings, self._mode, self._inner_progress()).run()
        if not outcome.served:
            raise ForecastRefused(f"no request can be served: {', '.join(outcome.refused) or 'the horizon is too short'}")
        self._tries += 1
        missed = criterion.missed(outcome)
        if missed is None:
            self._best = outcome
            return True
        self._missed = missed
        return False

    def bisect(self, low: float, high: float) -> Saturation:
        """Between a rate that holds (the last success) and one that does not."""
        while high / low > 1 + self._criterion.tolerance:
            middle = math.sqrt(low * high)
            if self.holds(middle):
                low = middle
            else:
                high = middle
        return self.result(low)

    def result(self, rate: float) -> Saturation:
        if self._progress:
            self._progress(1.0)
        return Saturation(rate, self._best, self._missed, self._tries)

    def _inner_progress(self) -> Progress | None:
        outer, tries = self._progress, self._tries
        if outer is None:
            return None
        return lambda share: outer(min(0.99, (tries + share) / EXPECTED_TRIES))


class _Pattern:
    """Arrivals without an end: their times relative to the mean gap, repeated."""

    def __init__(self, arrivals: Sequence[Arrival]) -> None:
        self._arrivals = arrivals
        first, count = arrivals[0].at_s, len(arrivals)
        gap_s = (arrivals[-1].at_s - first) / (count - 1) if count > 1 else 1.0
        if gap_s <= 0:
            raise ForecastRefused("all arrivals come at one time, which has no rate: spread them, e.g. with a rate")
        self._places = [(each.at_s - first) / gap_s for each in arrivals]

    def at(self, rate: float, count: int) -> list[Arrival]:
        """The first `count` at `rate` requests/s."""
        size = len(self._arrivals)
        found = []
        for number in range(count):
            turn, index = divmod(number, size)
            arrival = self._arrivals[index]
            prefix = tuple(key + (turn << 64) for key in arrival.prefix) if turn else arrival.prefix
            found.append(arrival._replace(at_s=(turn * size + self._places[index]) / rate, prefix=prefix))
        return found


def _guess(pools: Sequence[Pool], arrivals: Sequence[Arrival], settings: Settings) -> float:
    """Requests/s at which the busiest role would have no time left, a little less."""
    prompt = sum(each.prompt_tokens for each in arrivals) / len(arrivals)
    answer = sum(each.output_tokens for each in arrivals) / len(arrivals)
    able: dict[str, float] = {}
    for pool in pools:
        rates = Rates.of(pool, settings, capacity_tokens(pool, settings), arrivals)
        seconds = (0 if pool.role == "decode" else prompt / rates.prefill) + (
            0 if pool.role == "prefill" else answer / rates.decode
        )
        able[pool.role] = able.get(pool.role, 0.0) + pool.engines / seconds
    return 0.7 * min(able.values())
