"""What the planner makes of a model's telemetry: present and expected load, mix, bursts, live corrections. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from controlplane.core.backlog import Traffic, minute_of
from controlplane.core.backlog_pools import Minute
from controlplane.core.capacity import Corrections
from controlplane.core.planner_types import Inputs, ModelNow, Peak, Span
from controlplane.core.predict import DAY_S, predict, present_rate
from controlplane.core.workload import Mix, Observed, Window, merged_mix

MIX_S = 1800.0
"""The mix is that of the windows of so long: it shifts within an hour."""
LOOK_S = 3600.0
"""What a layout must stand: the windows of so long, in their order, with their bursts and lulls."""
WHOLE = 0.9
"""Of that time: without the windows of more, it is not an hour."""
HALF_S = 1200.0
"""A request of so long ago counts half."""
AGAIN_S = 900.0
"""Then those of so long once more, at the expected load."""
CLAMP = (0.5, 2.0)
"""A live ratio beyond these says more of a broken measurement than of the engine."""
RATIOS = 10
"""Newest samples, of which the median counts."""
FEWEST_RATIOS = 3


@dataclass(frozen=True)
class Demand:
    """`inputs` for people; `grow`: arrivals/s that engines must take, headroom added."""

    inputs: Inputs
    traffic: Traffic | None
    """What a layout must stand: the last hour, with its bursts and lulls, and what is expected; None: nothing arrives."""
    grow: float
    idle: bool
    """Nothing arrived for as long as GPUs are kept, and nothing is expected."""
    corrections: Corrections


def demand(model: ModelNow, now_s: float) -> Demand | None:
    """None without a complete window."""
    windows = [each for each in model.windows if each.complete and each.until_s <= now_s + 1]
    if not windows:
        return None
    guards = model.guards
    ahead = predict(windows, guards.horizon_s)
    recent = _since(windows, MIX_S)
    mix = merged_mix((each.mix, 1.0) for each in recent) if recent else Mix()
    if not mix.cells:
        mix = next((each.mix for each in reversed(windows) if each.mix.cells), Mix())
    rate, peak = present_rate(windows), _peak(model.peaks, now_s, guards.horizon_s)
    scheduled = peak.rate if peak else 0.0
    found = corrections(model.observed)
    last = model.observed[-1] if model.observed else None
    return Demand(
        Inputs(
            at_s=now_s,
            rate=rate,
            expected_rate=max(ahead.rate, scheduled),
            expected_low=ahead.low,
            expected_high=max(ahead.high, scheduled),
            mix=mix,
            burst=_burst(recent),
            samples=sum(each.samples for each in recent),
            window_s=math.fsum(each.until_s - each.since_s for each in recent),
            prefill_correction=found.prefill,
            decode_correction=found.decode,
            ttft_p99_ms=last.ttft_p99_ms if last else None,
            itl_p99_ms=last.itl_p99_ms if last else None,
            peak=peak.why or "a scheduled peak" if peak else None,
        ),
        traffic=_traffic(windows, mix, max(ahead.rate, scheduled), max(rate, ahead.rate, scheduled)),
        grow=max(rate, ahead.rate, scheduled) * (1 + guards.headroom),
        idle=not any(each.rate for each in _since(windows, guards.idle_s))
        and windows[-1].until_s - windows[0].since_s >= guards.idle_s - 1
        and not scheduled,
        corrections=found,
    )


def corrections(observed: Sequence[Observed]) -> Corrections:
    """Medians of the newest ratios, clamped. Samples of a warming pool are left out: a cold engine's first steps would make
    the whole pool look slow."""
    steady = [each for each in observed if not each.warming]
    return Corrections(_ratio(each.prefill_ratio for each in steady), _ratio(each.decode_ratio for each in steady))


def inside(spans: Iterable[Span], now_s: float) -> Span | None:
    """The span that `now_s` lies in."""
    return next((span for span in spans if _holds(span.since_s, span.until_s, span.daily, now_s)), None)


def _peak(peaks: Iterable[Peak], now_s: float, ahead_s: float) -> Peak | None:
    """The highest that is on, or begins within `ahead_s`."""
    near = [
        peak
        for peak in peaks
        if _holds(peak.since_s, peak.until_s, peak.daily, now_s)
        or _holds(peak.since_s, peak.until_s, peak.daily, now_s + ahead_s)
    ]
    return max(near, key=lambda peak: peak.rate, default=None)


def _holds(since_s: float, until_s: float, daily: bool, now_s: float) -> bool:
    if not daily:
        return since_s <= now_s < until_s
    at = now_s % DAY_S
    return since_s <= at < until_s if since_s <= until_s else at >= since_s or at < until_s


def _ratio(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None and math.isfinite(value) and value > 0][-RATIOS:]
    if len(known) < FEWEST_RATIOS:
        return 1.0
    return min(CLAMP[1], max(CLAMP[0], median(known)))


def _traffic(windows: Sequence[Window], mix: Mix, expected: float, rate: float) -> Traffic | None:
    """Of the windows, and of what is expected; `rate`: for which all of it stands."""
    if rate <= 0 or not mix.cells:
        return None
    end_s = windows[-1].until_s
    seen = [minute_of(each, 0.5 ** ((end_s - each.until_s) / HALF_S), 1.0, mix) for each in _since(windows, LOOK_S)]
    again = _since(windows, AGAIN_S)
    mean = math.fsum(each.rate for each in again) / len(again)
    if mean > 0:
        ahead = [minute_of(each, 1.0, expected / mean, mix) for each in again]
    else:
        ahead = [Minute(AGAIN_S, expected, 1.0, mix, 1.0)]
    whole = math.fsum(each.seconds for each in seen) >= LOOK_S * WHOLE
    return Traffic((*seen, *ahead), rate, len(seen) if whole else 0)


def _since(windows: Sequence[Window], seconds: float) -> list[Window]:
    end = windows[-1].until_s
    return [each for each in windows if each.until_s > end - seconds + 1e-6]


def _burst(windows: Sequence[Window]) -> float:
    weight = sum(each.samples for each in windows)
    return max(1.0, sum(each.burst * each.samples for each in windows) / weight) if weight else 1.0
