"""The values that all queries answer with: a figure with its unit, window, count and age, and a series with its gaps. Pure.

Shares are 0..1, times Unix seconds, latencies milliseconds. None is "not known" or a gap, never 0; 0 was measured.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SHARE = "share"
MS = "ms"
PER_S = "1/s"
BYTES = "B"
BYTES_PER_S = "B/s"
TOKENS_PER_S = "tokens/s"
GPUS = "GPUs"
GPU_HOURS = "GPU-h"
REQUESTS = "requests"
WATTS = "W"
COUNT = "1"


@dataclass(frozen=True)
class Figure:
    """One number of a window. `count`: how many samples it is made of (requests, transfers, seconds of GPUs, …: what, says
    the field that holds it). `at`: when the newest sample of the window ended; None: there is none. `stale`: the window
    reaches to the present, and nothing as new as there should be has come."""

    value: float | None
    unit: str
    window_s: float
    count: float
    at: float | None
    stale: bool


@dataclass(frozen=True)
class Latency:
    """Percentiles of one latency over a window, in ms; all have the number of measured values as `count`."""

    p50: Figure
    p90: Figure
    p99: Figure
    mean: Figure


@dataclass(frozen=True)
class Series:
    """`values[i]` is of the `step_s` seconds from `starts[i]` (Unix seconds); None is a gap."""

    starts: list[int]
    step_s: int
    values: list[float | None]
    unit: str


@dataclass(frozen=True)
class LatencySeries:
    """p50 and p99 of one latency over time, in ms, and how many values each cell has."""

    p50: Series
    p99: Series
    count: Series


@dataclass(frozen=True)
class LatencyHeat:
    """How many values of one latency fell between neighbouring `edges_ms`, per cell of time: `counts[i][j]` of cell i; a
    cell without a record has None. The outermost buckets hold what lies beyond the ends."""

    starts: list[int]
    step_s: int
    edges_ms: list[float]
    counts: list[list[int] | None]


def summed(values: Iterable[float | None]) -> float | None:
    """The sum of what is known; None when nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def ratio(part: float | None, whole: float | None) -> float | None:
    """None where either is not known, or the whole is nothing."""
    return part / whole if part is not None and whole else None
