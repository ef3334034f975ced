"""A model's traffic as the planner takes it: windows, and what users and engines saw of late. Reads only; raises
django.db.Error."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from controlplane.core.observed_load import MINUTE_S, ratio, trustworthy, windows_of
from controlplane.core.perf import DoesNotFit
from controlplane.core.planner import ModelNow
from controlplane.core.planner_inputs import MIX_S
from controlplane.core.planner_search import Search
from controlplane.core.predict import DAY_S, DAYS, RECENT_S
from controlplane.core.workload import Mix, Observed, Window, merged_mix
from controlplane.telemetry.queries import loads
from controlplane.telemetry.queries.loads import PoolMinute, Told
from controlplane.telemetry.rollups import LATE_S

RECENT_WINDOWS_S = 7200
OBSERVED = 15
"""Newest minutes that live ratios are taken of."""
LATE_WINDOW_S = MINUTE_S + LATE_S + 12.0
"""How old the newest minute's end may be although all is well."""


@dataclass(frozen=True)
class Load:
    """`told`: the newest minutes, the newest last. `at_s`: up to when the telemetry is complete; None: it never came."""

    windows: tuple[Window, ...]
    told: tuple[Told, ...]
    at_s: float | None


def load_of(model: str, now_s: float, horizon_s: float, idle_s: float) -> Load:
    """Minutes of the last two hours, with their lengths for the last half hour, and of earlier days those around this time
    of day, by which the season is known."""
    until = int((now_s - LATE_S) // MINUTE_S * MINUTE_S)
    told = loads.minutes(model, until - RECENT_WINDOWS_S, until)
    first = next((index for index, each in enumerate(told) if each.minute.complete), len(told))
    told = told[first:]  # before its first minute there was no model
    windows = windows_of([each.minute for each in told], loads.sample(model, until - MIX_S, until))
    if trustworthy(windows, idle_s):
        windows = (*_season(model, until, horizon_s), *windows)
    return Load(windows, tuple(told[-OBSERVED:]), _known_until(model, windows, now_s))


def window_between(model: str, since_s: float, until_s: float) -> Window | None:
    """The whole minutes of a span as one window; None where not one of them is complete."""
    first, last = math.ceil(since_s / MINUTE_S), math.floor(until_s / MINUTE_S)
    since, until = first * int(MINUTE_S), last * int(MINUTE_S)
    told = loads.minutes(model, since, until)
    found = [each for each in windows_of([each.minute for each in told], loads.sample(model, since, until)) if each.complete]
    if not found:
        return None
    mix = merged_mix((each.mix, 1.0) for each in found)
    samples = sum(each.samples for each in found)
    burst = sum(each.burst * each.samples for each in found) / samples if samples else 1.0
    return Window(since, until, math.fsum(each.rate for each in found) / len(found), mix, burst, samples)


def observed(model: ModelNow, told: Sequence[Told], ready_at_s: Sequence[float]) -> tuple[Observed, ...]:
    """The minutes beside what the planner's model predicts for them. `ready_at_s`: when engines became ready: theirs and the
    minute after are warming. Ratios are of prefill and decode pools; an engine that does both stalls one for the other,
    which is no property of its speed."""
    mix = merged_mix((each.mix, 1.0) for each in model.windows[-int(MIX_S / MINUTE_S) :])
    search = Search(model, mix) if mix.cells else None
    found = []
    for each in told:
        ratios = dict(_ratios(model, search, mix, each.pools)) if search else {}
        end_s = each.minute.since_s + MINUTE_S
        found.append(
            Observed(
                at_s=end_s,
                ttft_p99_ms=each.ttft_p99_ms,
                itl_p99_ms=each.itl_p99_ms,
                samples=round(each.streamed),
                prefill_ratio=ratios.get("prefill"),
                decode_ratio=ratios.get("decode"),
                warming=any(end_s - 2 * MINUTE_S <= at_s < end_s for at_s in ready_at_s),
                waiting=sum(pool.waiting for pool in each.pools),
            )
        )
    return tuple(found)


def with_load(model: ModelNow, load: Load, ready_at_s: Sequence[float]) -> ModelNow:
    """The model with its traffic."""
    known = replace(model, windows=load.windows, metrics_at_s=load.at_s)
    return replace(known, observed=observed(known, load.told, ready_at_s)) if not known.obstacle else known


def _season(model: str, until: int, horizon_s: float) -> Iterator[Window]:
    for day in range(DAYS, 0, -1):
        then = until - day * int(DAY_S)
        last = then + math.ceil(horizon_s / MINUTE_S) * int(MINUTE_S)
        told = loads.minutes(model, then - int(RECENT_S) - int(MINUTE_S), last)
        windows = windows_of([each.minute for each in told])
        yield from (each for each in windows[1:] if each.complete)  # the first lacks the minute before it


def _known_until(model: str, windows: Sequence[Window], now_s: float) -> float | None:
    """Both of routers and of engines, so that the silence of either makes the metrics old."""
    engines = loads.newest_of_engines(model, now_s - RECENT_WINDOWS_S)
    complete = next((each.until_s for each in reversed(windows) if each.complete), None)
    return None if engines is None or complete is None else min(engines, complete + LATE_WINDOW_S)


def _ratios(model: ModelNow, search: Search, mix: Mix, pools: Sequence[PoolMinute]) -> Iterator[tuple[str, float | None]]:
    shapes: Mapping[str, tuple[str, int]] = {pool.role: (pool.gpu, pool.tensor_parallel) for pool in model.pools}
    for pool in pools:
        if pool.role == "mixed" or pool.role not in shapes:
            continue
        try:
            speed = search.speed(*shapes[pool.role])
        except DoesNotFit:
            continue
        if pool.role == "prefill":
            pairs = zip(mix.cells, speed.prompts_s, strict=True)
            yield "prefill", ratio(pool.prefill_ms, math.fsum(c.requests * math.fsum(s) for c, s in pairs) / mix.count)
        else:
            yield "decode", ratio(pool.itl_ms, speed.step_s(max(1.0, pool.running / pool.engines)))
