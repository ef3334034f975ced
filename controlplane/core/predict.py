"""How much a model will be asked for soon: the season of earlier days, or a damped trend. Pure; own code, since a few dozen
lines of medians do what the planner needs and can be read.

Season: how the rate changed from this time of day to the time asked for, on earlier days; the median over days, so that one
odd day does not count. Without earlier days: the slope of the last half hour (median of all pairs, Theil and Sen), damped.
The interval is how far off the same method was on the windows that have passed since.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from controlplane.core.workload import Window

DAY_S = 86_400.0
DAYS = 7
RECENT_S = 300.0
"""The present rate is that of the windows of so long."""
TREND_BLOCKS = 6
DAMPING = 0.5
"""Of a trend: half of it goes on."""
MOST_CHANGE = 3.0
"""A prediction is at most so many times the present rate, and at least its inverse."""
BACKTESTS = 12
TOO_FEW = 3
NORMAL_90 = 1.645
Method = Literal["season", "trend", "last"]


@dataclass(frozen=True)
class Prediction:
    """Arrivals/s; `low` and `high` hold nine in ten of what the method gave in the past."""

    rate: float
    low: float
    high: float
    method: Method


def present_rate(windows: Sequence[Window]) -> float:
    """Arrivals/s of the newest windows (RECENT_S), by their length; 0 without any."""
    if not windows:
        return 0.0
    since = windows[-1].until_s - RECENT_S
    recent = [each for each in windows if each.until_s > since + 1e-6] or [windows[-1]]
    return math.fsum(each.rate * (each.until_s - each.since_s) for each in recent) / math.fsum(
        each.until_s - each.since_s for each in recent
    )


def predict(windows: Sequence[Window], ahead_s: float) -> Prediction:
    """The rate `ahead_s` after the newest window. `windows`: complete ones in the order of time, without overlap."""
    now = present_rate(windows)
    if not windows:
        return Prediction(0.0, 0.0, 0.0, "last")
    rate, method = _expected(windows, ahead_s)
    spread = _error(windows, ahead_s)
    if spread is None:
        spread = 0.25 * max(rate, now)
    return Prediction(rate, max(0.0, rate - NORMAL_90 * spread), rate + NORMAL_90 * spread, method)


def _expected(windows: Sequence[Window], ahead_s: float) -> tuple[float, Method]:
    now = present_rate(windows)
    change = _season(windows, ahead_s)
    if change is not None:
        return now * min(MOST_CHANGE, max(1 / MOST_CHANGE, change)), "season"
    slope = _slope(windows)
    if slope is None:
        return now, "last"
    return min(now * MOST_CHANGE, max(now / MOST_CHANGE, now + DAMPING * slope * ahead_s)), "trend"


def _season(windows: Sequence[Window], ahead_s: float) -> float | None:
    """The rate then ÷ now, as on earlier days; None where no earlier day is known."""
    now_s = windows[-1].until_s
    changes = []
    for day in range(1, DAYS + 1):
        before = rate_around(windows, now_s - day * DAY_S)
        after = rate_around(windows, now_s - day * DAY_S + ahead_s)
        if before and after is not None:
            changes.append(after / before)
    return median(changes) if changes else None


def rate_around(windows: Sequence[Window], at_s: float) -> float | None:
    """Mean rate in the RECENT_S before `at_s`."""
    near = [each.rate for each in _between(windows, at_s - RECENT_S, at_s)]
    return math.fsum(near) / len(near) if near else None


def _between(windows: Sequence[Window], since_s: float, until_s: float) -> Sequence[Window]:
    """Windows that end in (since_s, until_s], by bisection: a week of them is long."""
    first, last = _place(windows, since_s), _place(windows, until_s)
    return windows[first:last]


def _place(windows: Sequence[Window], at_s: float) -> int:
    low, high = 0, len(windows)
    while low < high:
        middle = (low + high) // 2
        if windows[middle].until_s <= at_s + 1e-6:
            low = middle + 1
        else:
            high = middle
    return low


def _slope(windows: Sequence[Window]) -> float | None:
    """Arrivals/s per second over the last blocks of RECENT_S: single minutes are mostly noise. None with too few blocks."""
    now_s = windows[-1].until_s
    blocks = ((-RECENT_S * back, rate_around(windows, now_s - RECENT_S * back)) for back in range(TREND_BLOCKS))
    points = [(at_s, rate) for at_s, rate in blocks if rate is not None]
    if len(points) < TOO_FEW:
        return None
    pairs = [(rate - later) / (at_s - after) for index, (at_s, rate) in enumerate(points) for after, later in points[:index]]
    return median(pairs)


def _error(windows: Sequence[Window], ahead_s: float) -> float | None:
    """Root of the mean squared miss of the last predictions whose time has come; None with too few."""
    end_s = windows[-1].until_s
    misses = []
    for back in range(1, BACKTESTS + 1):
        count = _place(windows, end_s - ahead_s * back / 4 - ahead_s * 3 / 4)
        if count < TOO_FEW:
            break
        then = rate_around(windows, windows[count - 1].until_s + ahead_s)
        if then is not None:
            misses.append(then - _expected(windows[:count], ahead_s)[0])
    return math.sqrt(math.fsum(miss * miss for miss in misses) / len(misses)) if len(misses) >= TOO_FEW else None
