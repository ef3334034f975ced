"""The requests a forecast is made for: drawn from distributions, or recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

from controlplane.core.forecast import Arrival, ForecastRefused
from controlplane.physics import checks
from controlplane.physics.traces import MAX_REQUESTS, Trace
from controlplane.physics.workload import ARRIVAL_KINDS, Distribution, draw

MAX_TOKENS = 2_000_000
MAX_RATE = 100_000.0
MAX_SECONDS = 86_400.0
MAX_CV = 10.0
MOST_AT_RATE = 20_000
"""Requests that are drawn for a rate that was found."""
PATTERN_REQUESTS = 4000
"""Enough for the mean of lengths that vary."""


class Traffic(Protocol):
    """`rate`: requests/s offered; `prompt_tokens`, `output_tokens`: means; `block_tokens`: of each id in a prefix, 0 without
    prefixes; `random`: whether another seed gives other requests."""

    @property
    def rate(self) -> float: ...
    @property
    def requests(self) -> int: ...
    @property
    def prompt_tokens(self) -> float: ...
    @property
    def output_tokens(self) -> float: ...
    @property
    def block_tokens(self) -> int: ...
    @property
    def random(self) -> bool: ...

    def arrivals(self, seed: int, most_tokens: int) -> tuple[Arrival, ...]:
        """The requests of a seed. Drawn ones have at most `most_tokens` tokens, answer included; recorded ones are facts."""
        ...

    def pattern(self, seed: int, most_tokens: int) -> tuple[Arrival, ...]:
        """The same, long enough to be repeated at any rate."""
        ...

    def at_rate(self, rate: float) -> Traffic:
        """Such requests at another rate."""
        ...

    def document(self) -> dict[str, Any]:
        """What the traffic was, for people and JSON."""
        ...


@dataclass(frozen=True)
class Drawn:
    """Traffic from distributions; each seed is another draw. Raises ForecastRefused for values that cannot be."""

    distribution: Distribution

    def __post_init__(self) -> None:
        one = self.distribution
        checks.whole("input", one.prompt_tokens, 1, MAX_TOKENS)
        checks.whole("output", one.output_tokens, 1, MAX_TOKENS)
        checks.positive("rate", one.rate, MAX_RATE, "requests/s")
        checks.positive("seconds", one.seconds, MAX_SECONDS, "s")
        checks.not_negative("length-cv", one.length_cv, MAX_CV)
        checks.positive("cv", one.arrival_cv, MAX_CV, "")
        checks.one_of("arrival", one.arrival, ARRIVAL_KINDS)
        if one.expected > MAX_REQUESTS:
            raise ForecastRefused(
                f"rate × seconds is about {one.expected:,} requests, more than the {MAX_REQUESTS:,} that are simulated; "
                f"use fewer seconds, or a lower rate on fewer GPUs"
            )

    @property
    def rate(self) -> float:
        return self.distribution.rate

    @property
    def requests(self) -> int:
        return self.distribution.expected

    @property
    def prompt_tokens(self) -> float:
        return self.distribution.prompt_tokens

    @property
    def output_tokens(self) -> float:
        return self.distribution.output_tokens

    @property
    def block_tokens(self) -> int:
        return 0

    @property
    def random(self) -> bool:
        return self.distribution.arrival != "constant" or self.distribution.length_cv > 0

    def arrivals(self, seed: int, most_tokens: int) -> tuple[Arrival, ...]:
        return draw(self.distribution, seed, most_tokens)

    def pattern(self, seed: int, most_tokens: int) -> tuple[Arrival, ...]:
        longer = max(self.distribution.seconds, PATTERN_REQUESTS / self.rate)
        return draw(replace(self.distribution, seconds=longer), seed, most_tokens)

    def at_rate(self, rate: float) -> Drawn:
        seconds = min(self.distribution.seconds, MOST_AT_RATE / rate)
        return Drawn(replace(self.distribution, rate=rate, seconds=seconds))

    def document(self) -> dict[str, Any]:
        one = self.distribution
        return {
            "kind": "distribution",
            "requests_per_second": one.rate,
            "seconds": one.seconds,
            "input_tokens": one.prompt_tokens,
            "output_tokens": one.output_tokens,
            "length_cv": one.length_cv,
            "arrival": one.arrival,
            "arrival_cv": {"poisson": 1.0, "constant": 0.0, "gamma": one.arrival_cv}[one.arrival],
        }


@dataclass(frozen=True)
class Recorded:
    """A trace: the same requests for every seed. `name` is what it is called for people."""

    name: str
    trace: Trace

    @cached_property
    def rate(self) -> float:
        """Mean requests/s; what arrives within a second counts as one second's."""
        return self.requests / max(1.0, self.trace.arrivals[-1].at_s)

    @property
    def requests(self) -> int:
        return len(self.trace.arrivals)

    @cached_property
    def prompt_tokens(self) -> float:
        return self._mean(lambda each: each.prompt_tokens)

    @cached_property
    def output_tokens(self) -> float:
        return self._mean(lambda each: each.output_tokens)

    @property
    def block_tokens(self) -> int:
        return self.trace.block_tokens

    @property
    def random(self) -> bool:
        return False

    def arrivals(self, seed: int, most_tokens: int) -> tuple[Arrival, ...]:
        return self.trace.arrivals

    pattern = arrivals

    def at_rate(self, rate: float) -> Recorded:
        scale = self.rate / rate
        scaled = tuple(each._replace(at_s=each.at_s * scale) for each in self.trace.arrivals)
        return Recorded(self.name, replace(self.trace, arrivals=scaled))

    def document(self) -> dict[str, Any]:
        return {
            "kind": self.trace.kind,
            "name": self.name,
            "requests": self.requests,
            "requests_per_second": self.rate,
            "seconds": self.trace.arrivals[-1].at_s,
            "input_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "prefix_block_tokens": self.block_tokens or None,
        }

    def _mean(self, of: Callable[[Arrival], int]) -> float:
        return sum(map(of, self.trace.arrivals)) / self.requests
