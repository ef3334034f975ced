"""What simulations (one per seed) say together: percentiles, goodput, activity, cost, each with its interval. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from controlplane.core.forecast_types import ForecastRefused, Outcome, PoolTotals, Served
from controlplane.core.protocol import Mode, Role, Slo

_STUDENT_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10)
"""Two-sided 95% quantiles of Student's t for 1, 2, … degrees of freedom; 1.96 + 2.4/df beyond."""


class Figure(NamedTuple):
    """A mean over seeds, and the 95% interval of that mean (Student's t); no interval with one seed."""

    value: float
    low: float | None = None
    high: float | None = None


class Percentiles(NamedTuple):
    """Means over seeds of each seed's own percentile, in milliseconds."""

    p50: Figure
    p90: Figure
    p99: Figure


@dataclass(frozen=True)
class PoolForecast:
    role: Role
    text: str
    """As a layout writes it."""
    gpus: int
    kv_capacity_tokens: int
    """Of each engine."""
    tensor: Figure
    """Mean tensor activity of its GPUs over the whole time, idle included."""
    tensor_in_steps: Figure
    """The same while steps ran."""
    tensor_peak: Figure
    """The highest inside the kernels of any step."""
    dram: Figure
    dram_in_steps: Figure
    dram_peak: Figure
    """The highest average of any step."""
    busy_share: Figure
    """Mean over time of max(tensor, DRAM)."""
    effective_gpus: Figure
    """busy_share × gpus."""
    preemptions: Figure
    cached_share: Figure
    """Of the prompt tokens begun here, found in the prefix cache."""
    basis: str
    guesses: tuple[str, ...]
    """Why the figures are a guess; empty: calibrated."""


@dataclass(frozen=True)
class Forecast:
    """`ttft_ms`, `itl_ms` and `e2e_ms` are None when nothing was served (or no answer had two tokens)."""

    mode: Mode
    gpus: int
    seeds: int
    arrived: int
    """Over all seeds, as `served`, `unfinished` and `refused`."""
    served: int
    unfinished: int
    refused: Mapping[str, int]
    offered_per_second: Figure
    requests_per_second: Figure
    tokens_per_second: Figure
    """Output tokens."""
    tokens_per_second_per_gpu: Figure
    ttft_ms: Percentiles | None
    itl_ms: Percentiles | None
    """Over all tokens, each with equal weight."""
    tpot_ms: Percentiles | None
    """Over requests: each one's mean time per output token."""
    e2e_ms: Percentiles | None
    goodput: Figure
    """Requests/s whose TTFT and mean time per output token are both within the SLO (as DistServe counts)."""
    attained: Figure
    """Share of the arrived requests that goodput counts."""
    transfer_share: Figure
    """KV transfer's part of the served requests' end-to-end time."""
    transfer_ms: Percentiles | None
    """Of the requests that were split."""
    split_share: Figure
    """Of the served requests, those that had a prefill leg."""
    effective_gpus: Figure
    cost_per_hour: float
    cost_per_million_tokens: Figure | None
    """Output tokens. None when a seed gave none."""
    pools: tuple[PoolForecast, ...]


def summarise(outcomes: Sequence[Outcome], slo: Slo, prices: Mapping[str, float] | None = None) -> Forecast:
    """All figures of simulations that differ only in their seed. `prices`: US$ per GPU-hour by kind, in place of the GPU
    table's. Raises ForecastRefused without outcomes, for a bad price or target, or if the layouts differ."""
    _check(outcomes, slo, prices or {})
    first = outcomes[0]
    cost = sum(_price(totals, prices or {}) * totals.pool.gpus for totals in first.pools)
    each = _Each(outcomes)
    tokens_per_second = each(lambda one: one.output_tokens / one.span_s)
    refused: Counter[str] = Counter()
    for outcome in outcomes:
        refused.update(outcome.refused)
    return Forecast(
        mode=first.mode,
        gpus=first.gpus,
        seeds=len(outcomes),
        arrived=sum(one.arrived for one in outcomes),
        served=sum(len(one.served) for one in outcomes),
        unfinished=sum(one.unfinished for one in outcomes),
        refused=dict(refused),
        offered_per_second=each(lambda one: one.arrived / one.span_s),
        requests_per_second=each(lambda one: len(one.served) / one.span_s),
        tokens_per_second=tokens_per_second,
        tokens_per_second_per_gpu=each(lambda one: one.output_tokens / one.span_s / one.gpus),
        ttft_ms=each.percentiles(lambda request: request.ttft_s),
        itl_ms=_gap_percentiles(outcomes),
        tpot_ms=each.percentiles(lambda request: request.tpot_s),
        e2e_ms=each.percentiles(lambda request: request.e2e_s),
        goodput=each(lambda one: _within(one, slo) / one.span_s),
        attained=each(lambda one: _within(one, slo) / one.arrived),
        transfer_share=each(_transfer_share),
        transfer_ms=each.percentiles(lambda request: request.transfer_s if request.path == "split" else None),
        split_share=each(lambda one: sum(each.path == "split" for each in one.served) / max(1, len(one.served))),
        effective_gpus=each(lambda one: sum(_effective(totals, one.span_s) for totals in one.pools)),
        cost_per_hour=cost,
        cost_per_million_tokens=each(lambda one: cost / 3600 * one.span_s / one.output_tokens * 1e6)
        if all(one.output_tokens for one in outcomes)
        else None,
        pools=tuple(_pool(outcomes, index) for index in range(len(first.pools))),
    )


def quantile(ordered: Sequence[float], q: float) -> float:
    """The smallest of the sorted values that a share `q` of them does not exceed."""
    return ordered[min(len(ordered) - 1, max(0, math.ceil(q * len(ordered) - 1e-9) - 1))]


def interval(values: Sequence[float]) -> Figure:
    """Mean and 95% interval of the mean of independent values."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return Figure(mean)
    freedom = len(values) - 1
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / freedom)
    student = _STUDENT_95[freedom - 1] if freedom <= len(_STUDENT_95) else 1.96 + 2.4 / freedom
    half = student * deviation / math.sqrt(len(values))
    return Figure(mean, mean - half, mean + half)


def _check(outcomes: Sequence[Outcome], slo: Slo, prices: Mapping[str, float]) -> None:
    if not outcomes:
        raise ForecastRefused("there is no simulation to sum up")
    if len({tuple(totals.pool.name for totals in one.pools) for one in outcomes}) > 1:
        raise ForecastRefused("simulations of different layouts cannot be summed up together")
    if not (0 < slo.ttft_ms < math.inf and 0 < slo.itl_ms < math.inf):
        raise ForecastRefused(f"the SLO's targets must be positive, got TTFT {slo.ttft_ms} ms and ITL {slo.itl_ms} ms")
    for kind, price in prices.items():
        if not 0 <= price < math.inf:
            raise ForecastRefused(f"the price of {kind} must be 0 or more, got {price}")


class _Each:
    """Figures over the outcomes."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self._outcomes = outcomes

    def __call__(self, figure: Callable[[Outcome], float]) -> Figure:
        return interval([figure(one) for one in self._outcomes])

    def percentiles(self, value: Callable[[Served], float | None]) -> Percentiles | None:
        seeds = [sorted(v for v in map(value, one.served) if v is not None) for one in self._outcomes]
        return _percentiles([partial(quantile, ordered) for ordered in seeds]) if all(seeds) else None


def _gap_percentiles(outcomes: Sequence[Outcome]) -> Percentiles | None:
    return _percentiles([one.gaps.quantile for one in outcomes]) if all(one.gaps.count for one in outcomes) else None


def _percentiles(quantiles: Sequence[Callable[[float], float]]) -> Percentiles:
    p50, p90, p99 = (interval([at(q) * 1e3 for at in quantiles]) for q in (0.5, 0.9, 0.99))
    return Percentiles(p50, p90, p99)


def _within(outcome: Outcome, slo: Slo) -> int:
    ttft_s, itl_s = slo.ttft_ms / 1e3, slo.itl_ms / 1e3
    return sum(request.ttft_s <= ttft_s and (request.tpot_s or 0.0) <= itl_s for request in outcome.served)


def _transfer_share(outcome: Outcome) -> float:
    whole = math.fsum(request.e2e_s for request in outcome.served)
    return math.fsum(request.transfer_s for request in outcome.served) / whole if whole else 0.0


def _price(totals: PoolTotals, prices: Mapping[str, float]) -> float:
    gpu = totals.pool.model.gpu
    return prices.get(gpu.name, gpu.price_per_hour)


def _effective(totals: PoolTotals, span_s: float) -> float:
    return totals.busy_s / span_s * totals.pool.model.tensor_parallel


def _pool(outcomes: Sequence[Outcome], index: int) -> PoolForecast:
    first = outcomes[0].pools[index]
    pool = first.pool

    def each(figure: Callable[[PoolTotals, float], float]) -> Figure:
        return interval([figure(one.pools[index], one.span_s) for one in outcomes])

    return PoolForecast(
        role=pool.role,
        text=pool.name,
        gpus=pool.gpus,
        kv_capacity_tokens=first.kv_capacity_tokens,
        tensor=each(lambda totals, span: totals.tensor_busy_s / span / pool.engines),
        tensor_in_steps=each(lambda totals, span: totals.tensor_busy_s / totals.step_s if totals.step_s else 0.0),
        tensor_peak=each(lambda totals, span: totals.tensor_peak),
        dram=each(lambda totals, span: totals.dram_busy_s / span / pool.engines),
        dram_in_steps=each(lambda totals, span: totals.dram_busy_s / totals.step_s if totals.step_s else 0.0),
        dram_peak=each(lambda totals, span: totals.dram_peak),
        busy_share=each(lambda totals, span: totals.busy_s / span / pool.engines),
        effective_gpus=each(_effective),
        preemptions=each(lambda totals, span: totals.preemptions),
        cached_share=each(lambda totals, span: totals.cached_tokens / max(1, totals.prompt_tokens)),
        basis=pool.model.basis,
        guesses=pool.model.guesses,
    )
