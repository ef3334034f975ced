"""Traffic that a forecast is made for: a recorded trace, or lengths and arrivals drawn from distributions.

All randomness is seeded: the same workload and seed give the same requests on every machine and Python. Gaps and lengths
come from two streams, so that a higher rate meets the same requests sooner.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Literal

from controlplane.core.forecast import Arrival

ArrivalKind = Literal["poisson", "constant", "gamma"]
ARRIVAL_KINDS: tuple[ArrivalKind, ...] = ("poisson", "constant", "gamma")
NO_LIMIT = 1 << 40


@dataclass(frozen=True)
class Distribution:
    """Requests at `rate` per second for `seconds`.

    Lengths are log-normal with these means and the coefficient of variation `length_cv` (0: all equal). Gaps are exponential
    (`poisson`), equal (`constant`) or gamma with the coefficient of variation `arrival_cv` (`gamma`: 1 is poisson, more is
    burstier).
    """

    prompt_tokens: int
    output_tokens: int
    rate: float
    seconds: float
    length_cv: float = 0.0
    arrival: ArrivalKind = "poisson"
    arrival_cv: float = 1.0

    @property
    def expected(self) -> int:
        """About how many requests there will be."""
        return math.ceil(self.rate * self.seconds)


def draw(workload: Distribution, seed: int, most_tokens: int = NO_LIMIT) -> tuple[Arrival, ...]:
    """The requests of one seed, in the order of time. Never empty: the first arrives at 0 s.

    Every length is at least 1 token; answers, then prompts, are cut so that both together have at most `most_tokens`.
    """
    lengths = random.Random(f"{seed}:lengths")  # noqa: S311 - a simulation's draw, no secret
    gaps = _gaps(workload, random.Random(f"{seed}:gaps"))  # noqa: S311
    arrivals: list[Arrival] = []
    at_s = 0.0
    for number in count():
        if at_s >= workload.seconds and arrivals:
            break
        prompt = _length(workload.prompt_tokens, workload.length_cv, lengths)
        output = _length(workload.output_tokens, workload.length_cv, lengths)
        output = min(output, most_tokens - 1)
        arrivals.append(Arrival(at_s, min(prompt, most_tokens - output), output, session=number + 1))
        at_s += next(gaps)
    return tuple(arrivals)


def _gaps(workload: Distribution, source: random.Random) -> Iterator[float]:
    mean = 1 / workload.rate
    if workload.arrival == "constant":
        while True:
            yield mean
    shape = 1.0 if workload.arrival == "poisson" else workload.arrival_cv**-2
    while True:
        yield source.gammavariate(shape, mean / shape)


def _length(mean: int, cv: float, source: random.Random) -> int:
    """A log-normal length; drawn even when all are equal would only cost time."""
    if cv == 0:
        return mean
    spread = math.log1p(cv * cv)
    return max(1, round(source.lognormvariate(math.log(mean) - spread / 2, math.sqrt(spread))))
