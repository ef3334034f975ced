"""A day of requests made of recorded hours: chat, code and long documents, each under a daily curve. Seeded.

An hour's requests are kept with the probability that the curve has at that time (two copies where it is above 1), so that
the recorded bursts stay what they were.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from controlplane.core.forecast import Arrival

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
SEED, SECOND_SEED = 20231116, 20240517
Curve = Sequence[tuple[float, float]]
"""(hour of the day, part of the recorded rate), in order; straight between them, and around midnight."""

CHAT: Curve = ((0, 0.20), (2, 0.05), (6, 0.05), (9, 0.15), (17, 0.20), (18.5, 0.75), (22, 0.75), (23.5, 0.25))
CODE: Curve = ((0, 0.03), (7, 0.05), (8.5, 0.60), (12, 0.65), (13, 0.50), (14, 0.65), (17, 0.60), (18, 0.05))
DOCUMENTS: Curve = ((0, 0.25), (1, 0.35), (5, 0.35), (6.5, 0.02), (22.5, 0.02), (23.5, 0.20))
STATIONARY: Mapping[str, Curve] = {"chat": ((0, 0.35),), "code": ((0, 0.25),), "documents": ((0, 0.05),)}
SHIFTING: Mapping[str, Curve] = {"chat": CHAT, "code": CODE, "documents": DOCUMENTS}

SECOND_CHAT: Curve = (
    (0, 0.15),
    (1.5, 0.05),
    (5.5, 0.05),
    (8, 0.25),
    (12, 0.30),
    (16, 0.25),
    (19, 0.65),
    (21, 0.70),
    (23, 0.30),
)
SECOND_CODE: Curve = (
    (0, 0.08),
    (3, 0.05),
    (7, 0.10),
    (9.5, 0.50),
    (11.5, 0.65),
    (13, 0.40),
    (15, 0.60),
    (18.5, 0.40),
    (20, 0.10),
)
SECOND_DOCUMENTS: Curve = ((0, 0.10), (2, 0.40), (4, 0.40), (6, 0.05), (20, 0.02), (23, 0.05))
SECOND_STATIONARY: Mapping[str, Curve] = {"chat": ((0, 0.30),), "code": ((0, 0.30),), "documents": ((0, 0.04),)}
SECOND_SHIFTING: Mapping[str, Curve] = {"chat": SECOND_CHAT, "code": SECOND_CODE, "documents": SECOND_DOCUMENTS}


@dataclass(frozen=True)
class Hour:
    """One recorded hour; requests after its end are left out, and so are prompts that are too long."""

    name: str
    arrivals: tuple[Arrival, ...]

    @classmethod
    def of(cls, name: str, arrivals: Sequence[Arrival], most_prompt: int) -> Hour:
        kept = (
            each._replace(prefix=(), output_tokens=max(2, each.output_tokens))
            for each in arrivals
            if each.at_s < HOUR_S and each.prompt_tokens <= most_prompt
        )
        return cls(name, tuple(kept))


def day(hours: Sequence[Hour], curves: Mapping[str, Curve], seconds: float = DAY_S, seed: int = SEED) -> tuple[Arrival, ...]:
    """The requests of `seconds` from midnight on, in the order of time."""
    streams = [_stream(hour, at_curve(curves[hour.name]), seconds, seed) for hour in hours]
    merged = heapq.merge(*streams, key=lambda each: each.at_s)
    return tuple(each._replace(session=number + 1) for number, each in enumerate(merged))


def at_curve(curve: Curve) -> Callable[[float], float]:
    """The curve as a function of seconds."""

    def at(seconds: float) -> float:
        hour = seconds / HOUR_S % 24
        points = [(curve[-1][0] - 24, curve[-1][1]), *curve, (curve[0][0] + 24, curve[0][1])]
        for (before, low), (after, high) in pairwise(points):
            if before <= hour < after:
                return low + (high - low) * (hour - before) / (after - before)
        return points[-1][1]

    return at


def _stream(hour: Hour, at: Callable[[float], float], seconds: float, seed: int) -> Iterator[Arrival]:
    source = random.Random(f"{seed}:{hour.name}")  # noqa: S311 - a simulation's draw, no secret
    for turn in range(int(-(-seconds // HOUR_S))):
        for each in hour.arrivals:
            at_s = turn * HOUR_S + each.at_s
            if at_s >= seconds:
                return
            share = at(at_s)
            for _ in range(int(share) + (source.random() < share % 1)):
                yield each._replace(at_s=at_s)
