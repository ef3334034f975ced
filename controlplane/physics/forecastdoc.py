"""The document of a forecast: what `--json` prints, the API answers and the page shows. Plain JSON values, stable keys.

Units are in the keys (`_ms`, `_per_second`, `_per_hour`); money is US$, activity and shares are 0..1. Every figure is a mean
over seeds; `interval` has the 95% interval of that mean under the same keys, null with one seed. What each means:
docs/forecast.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from controlplane.core.forecast import Figure, Forecast, Gaps, Outcome, Percentiles, PoolForecast

_RATES = (
    "tokens_per_second_per_gpu",
    "tokens_per_second",
    "requests_per_second",
    "goodput",
    "attained",
    "effective_gpus",
    "transfer_share",
    "split_share",
    "cost_per_million_tokens",
)
_LATENCIES = ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms", "transfer_ms")
_ACTIVITIES = (
    "tensor",
    "tensor_in_steps",
    "tensor_peak",
    "dram",
    "dram_in_steps",
    "dram_peak",
    "busy_share",
    "effective_gpus",
    "preemptions",
    "cached_share",
)
_CURVE = (
    *(step / 40 for step in range(38)),
    *(0.95, 0.96, 0.97, 0.975, 0.98, 0.985, 0.988, 0.99, 0.9925, 0.995, 0.9965, 0.998, 0.999, 0.9995),
)
"""Shares of requests or tokens at which a distribution is told."""


def figures(forecast: Forecast) -> dict[str, Any]:
    """All figures of one layout."""
    tensor, dram = (_over_gpus(forecast.pools, name) for name in ("tensor", "dram"))
    return {
        **{name: _value(getattr(forecast, name)) for name in _RATES},
        "offered_per_second": _value(forecast.offered_per_second),
        **{name: _percentiles(getattr(forecast, name)) for name in _LATENCIES},
        "gpus": forecast.gpus,
        "tensor_activity": tensor,
        "dram_activity": dram,
        "cost_per_hour": rounded(forecast.cost_per_hour),
        "pools": [_pool(pool) for pool in forecast.pools],
        "arrived": forecast.arrived,
        "served": forecast.served,
        "unfinished": forecast.unfinished,
        "refused": dict(forecast.refused),
        "guesses": list(dict.fromkeys(guess for pool in forecast.pools for guess in pool.guesses)),
        "seeds": forecast.seeds,
        "interval": {
            **{name: _interval(getattr(forecast, name)) for name in _RATES},
            **{name: _intervals(getattr(forecast, name)) for name in _LATENCIES},
            "busy_share": {pool.role: _interval(pool.busy_share) for pool in forecast.pools},
        }
        if forecast.seeds > 1
        else None,
    }


def distributions(outcomes: Sequence[Outcome]) -> dict[str, list[list[float]]]:
    """TTFT and ITL of all seeds together as curves: [share, milliseconds within which that share came]."""
    ttft = sorted(request.ttft_s for outcome in outcomes for request in outcome.served)
    gaps = Gaps()
    for outcome in outcomes:
        gaps.merge(outcome.gaps)
    return {
        "ttft_ms": [[share, rounded(1e3 * ttft[round(share * (len(ttft) - 1))])] for share in _CURVE if ttft],
        "itl_ms": [[share, rounded(1e3 * gaps.quantile(share))] for share in _CURVE if gaps.count],
    }


def rounded(value: float) -> float:
    """Six significant digits: more than a forecast is worth, and short to read."""
    return float(f"{value:.6g}")


def _value(figure: Figure | None) -> float | None:
    return None if figure is None else rounded(figure.value)


def _interval(figure: Figure | None) -> list[float] | None:
    if figure is None or figure.low is None or figure.high is None:
        return None
    return [rounded(figure.low), rounded(figure.high)]


def _percentiles(latency: Percentiles | None) -> dict[str, float | None]:
    return {name: _value(getattr(latency, name)) if latency else None for name in Percentiles._fields}


def _intervals(latency: Percentiles | None) -> dict[str, list[float] | None]:
    return {name: _interval(getattr(latency, name)) if latency else None for name in Percentiles._fields}


def _over_gpus(pools: Sequence[PoolForecast], name: str) -> float:
    """Mean activity over time of all GPUs."""
    busy = sum(getattr(pool, name).value * pool.gpus for pool in pools)
    return rounded(busy / sum(pool.gpus for pool in pools))


def _pool(pool: PoolForecast) -> Mapping[str, Any]:
    return {
        "role": pool.role,
        "text": pool.text,
        "gpus": pool.gpus,
        "kv_capacity_tokens": pool.kv_capacity_tokens,
        **{_ACTIVITY_KEYS.get(name, name): _value(getattr(pool, name)) for name in _ACTIVITIES},
        "basis": pool.basis,
        "guesses": list(pool.guesses),
    }


_ACTIVITY_KEYS = {"tensor": "tensor_activity", "dram": "dram_activity"}
