"""What a change would do, said before anybody asks for it. Pure data, made by `core.rehearsal`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any


@dataclass(frozen=True)
class PlannedStep:
    """`verb`: start, stop, retask (an engine joins the pool `role` of `arm` as it runs), switch (the routing table has the
    mode `role`), hold, release. `engine`: "" for one that does not exist yet; `label` as pages show it, e.g. P1."""

    verb: str
    engine: str = ""
    label: str = ""
    role: str = ""
    arm: str = "main"
    node: str = ""
    reason: str = ""


@dataclass(frozen=True)
class PoolCourse:
    """Serving engines of one pool: now, at least while it goes on, and at the end."""

    pool: str
    now: int
    lowest: int
    then: int
    floor: int


@dataclass(frozen=True)
class Estimate:
    """How long it took before: the median of earlier operations of the verb, and the interval that half of them were in."""

    median_s: float
    low_s: float
    high_s: float
    operations: int


@dataclass(frozen=True)
class Preview:
    """`instant`: no engine is started or stopped. `waits`: what it would wait for without end; empty if it gets there.
    `complete` false: there are more steps than were rehearsed. `estimate` None: there is no earlier operation to tell by."""

    verb: str
    model: str
    steps: tuple[PlannedStep, ...] = ()
    instant: bool = True
    pools: tuple[PoolCourse, ...] = ()
    waits: tuple[str, ...] = ()
    complete: bool = True
    estimate: Estimate | None = None
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)


def estimate(seconds: Sequence[float]) -> Estimate | None:
    """From what earlier operations took; None without any."""
    if not seconds:
        return None
    low, median, high = quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else [seconds[0]] * 3
    return Estimate(median, low, high, len(seconds))
