"""One layout, one seed, simulated: at the rate that was asked for, or at the highest one. Each run comes with its score.

Three ways, the same two methods: `probe` judges a layout quickly, for the search; `run` makes the figures of one seed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from controlplane.core.forecast import (
    Arrival,
    Criterion,
    Forecast,
    ForecastRefused,
    Outcome,
    Progress,
    highest_rate,
    pools_of,
    simulate_pools,
    summarise,
)
from controlplane.core.layout import Layout
from controlplane.physics.asked import ForecastRequest
from controlplane.physics.rates import Rates, at_rate, counted, with_rates
from controlplane.physics.splits import Score, score
from controlplane.physics.steady import Steady, steady
from controlplane.physics.traffic import MOST_AT_RATE

PROBE_REQUESTS = 1500
"""A split is judged in the search by the first of them."""
PROBE_TOLERANCE = 0.05
TOLERANCE = 0.01
"""Of the highest rate, relative, in the search and in the result."""
ALONE = 50
"""Requests that are shown when no rate is within the SLO."""
REQUEST_S = 100e-6
REQUEST_ENGINE_S = 1e-6
"""What the simulation of a request takes, and what every engine that is looked at for it adds: measured on one core of 2025,
for the estimate alone."""


@dataclass(frozen=True)
class Run:
    """One seed of one layout. `notes`: what must be known about the rate."""

    outcome: Outcome
    rates: Rates
    score: Score
    notes: tuple[str, ...] = ()


class Runs(Protocol):
    def probe(self, layout: Layout) -> Score: ...
    def run(self, layout: Layout, seed: int, progress: Progress | None) -> Run: ...


def runs_of(asked: ForecastRequest) -> Runs:
    """The way that `asked.saturate` means. Raises ForecastRefused if it takes longer than `asked.most_seconds`: at once
    where that can be told, otherwise from a run when they are over."""
    if asked.saturate == "p99":
        return _Highest(asked)
    if asked.saturate == "steady":
        _check_time(asked, MOST_AT_RATE)
        return _Steady(asked)
    _check_time(asked, asked.traffic.requests)
    return _Offered(asked)


def _check_time(asked: ForecastRequest, requests: int) -> None:
    """Raises ForecastRefused if simulations of so many requests take too long."""
    engines = [sum(pool.engines for pool in layout.pools) for layout in asked.layouts]
    if not engines:
        engines = [asked.hardware.gpus // (asked.hardware.tp or 1)] * (3 if asked.mode == "compare" else 1)
    seconds = asked.runs * requests * sum(REQUEST_S + REQUEST_ENGINE_S * count for count in engines)
    if seconds > asked.most_seconds:
        raise ForecastRefused(f"this takes about {seconds / 60:,.0f} minutes, more than {_remedy(asked)}")


def _remedy(asked: ForecastRequest) -> str:
    return f"the {asked.most_seconds / 60:,.3g} allowed; use fewer seeds, requests, layouts or GPUs"


class _Watch:
    """Ends simulations when their time is over."""

    def __init__(self, asked: ForecastRequest) -> None:
        self._asked, self._until = asked, time.monotonic() + asked.most_seconds

    def on(self, progress: Progress | None) -> Progress:
        """`progress`, watched."""

        def told(share: float) -> None:
            if time.monotonic() > self._until:
                raise ForecastRefused(f"this takes more than {_remedy(self._asked)}")
            if progress:
                progress(share)

        return told


def cost_per_hour(asked: ForecastRequest, layout: Layout) -> float:
    """US$ of all its GPUs."""
    return sum(asked.price(kind) * count for kind, count in layout.gpus_by_kind.items())


class _Offered:
    """At the traffic's own rate."""

    def __init__(self, asked: ForecastRequest) -> None:
        self.asked, self.watch = asked, _Watch(asked)
        self.arrivals = cache(lambda seed: asked.traffic.arrivals(seed, asked.most_tokens))

    def probe(self, layout: Layout) -> Score:
        return self._score(_simulated(self.asked, layout, self.arrivals(1)[:PROBE_REQUESTS], self.watch.on(None)))

    def run(self, layout: Layout, seed: int, progress: Progress | None) -> Run:
        arrivals = self.arrivals(seed)
        outcome = _simulated(self.asked, layout, arrivals, self.watch.on(progress))
        return Run(outcome, counted(outcome, arrivals, self.asked.slo), self._score(outcome))

    def _score(self, outcome: Outcome) -> Score:
        return _scored(self.asked, outcome, self.asked.traffic.rate)


class _Highest:
    """At the highest rate at which a simulation keeps both p99s."""

    def __init__(self, asked: ForecastRequest) -> None:
        self.asked, self.watch = asked, _Watch(asked)
        self.patterns = cache(lambda seed: asked.traffic.pattern(seed, asked.most_tokens))

    def probe(self, layout: Layout) -> Score:
        return self._at_highest(layout, self.patterns(1), None, PROBE_TOLERANCE).score

    def run(self, layout: Layout, seed: int, progress: Progress | None) -> Run:
        return self._at_highest(layout, self.patterns(seed), progress, TOLERANCE)

    def _at_highest(self, layout: Layout, arrivals: Sequence[Arrival], progress: Progress | None, tolerance: float) -> Run:
        asked = self.asked
        pools = pools_of(asked.shape, layout, asked.settings, asked.gpu)
        found = highest_rate(
            pools, arrivals, asked.settings, layout.mode, Criterion(asked.slo, tolerance=tolerance), self.watch.on(progress)
        )
        limit = {"ttft": "TTFT", "itl": "ITL", "both": "TTFT and ITL"}[found.missed]
        if found.outcome is None:
            return _nothing(asked, layout, arrivals, (f"even a request alone misses the limit of {limit}",))
        outcome = found.outcome
        value = _scored(asked, outcome, found.requests_per_second)
        rates = at_rate(outcome, found.requests_per_second, asked.slo)
        return Run(outcome, rates, value, (f"more requests miss the limit of {limit} at p99",))


class _Steady:
    """At the highest rate in steady state; the simulation shows what that rate is like with a queue."""

    def __init__(self, asked: ForecastRequest) -> None:
        self.asked, self.watch = asked, _Watch(asked)
        self.plan = cache(lambda layout: steady(asked, layout))

    def probe(self, layout: Layout) -> Score:
        return self._score(layout, self.plan(layout))

    def run(self, layout: Layout, seed: int, progress: Progress | None) -> Run:
        asked, plan = self.asked, self.plan(layout)
        if not plan.rate:
            return _nothing(asked, layout, asked.traffic.pattern(seed, asked.most_tokens), plan.notes)
        arrivals = asked.traffic.at_rate(plan.rate).arrivals(seed, asked.most_tokens)
        outcome = _simulated(asked, layout, arrivals, self.watch.on(progress))
        rates = at_rate(outcome, plan.rate, asked.slo)
        batches = ", ".join(f"{batch} of {pool.text}" for batch, pool in zip(plan.batches, layout.pools, strict=True))
        means = f"TTFT {plan.ttft_s * 1e3:.0f} ms and TPOT {plan.tpot_s * 1e3:.1f} ms with batches of {batches}"
        return Run(outcome, rates, self._score(layout, plan), (f"steady means: {means}", *plan.notes))

    def _score(self, layout: Layout, plan: Steady) -> Score:
        slo = self.asked.slo
        strain = max(plan.ttft_s * 1e3 / slo.ttft_ms, plan.tpot_s * 1e3 / slo.itl_ms) if plan.rate else float("inf")
        return Score(plan.rate * 3600 / cost_per_hour(self.asked, layout), strain)


def _simulated(asked: ForecastRequest, layout: Layout, arrivals: Sequence[Arrival], progress: Progress | None) -> Outcome:
    pools = pools_of(asked.shape, layout, asked.settings, asked.gpu)
    return simulate_pools(pools, arrivals, asked.settings, layout.mode, progress)


def summed(asked: ForecastRequest, runs: Sequence[Run]) -> Forecast:
    """The figures of all seeds of a layout."""
    return with_rates(summarise([run.outcome for run in runs], asked.slo, asked.every_price), [run.rates for run in runs])


def _scored(asked: ForecastRequest, outcome: Outcome, rate: float) -> Score:
    return score(summarise([outcome], asked.slo, asked.every_price), asked.slo, rate)


def _nothing(asked: ForecastRequest, layout: Layout, arrivals: Sequence[Arrival], notes: tuple[str, ...]) -> Run:
    """No rate is within the SLO: some requests, each when the one before is long through."""
    alone = [arrival._replace(at_s=1e5 * number) for number, arrival in enumerate(arrivals[:ALONE])]
    return Run(_simulated(asked, layout, alone, None), Rates(0.0, 0.0, 0.0), Score(0.0, float("inf")), notes)
