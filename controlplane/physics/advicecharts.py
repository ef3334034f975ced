"""What the advisor draws beside its verdict, all in closed form: the least time to a first token by prompt length, latencies
by rate for the best layout of each mode, and the layouts that serve a rate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from controlplane.core import kvsize
from controlplane.core.advisor_checks import transfer_s
from controlplane.core.advisor_offline import MODES, Offline
from controlplane.core.capacity import STEP_TOKENS
from controlplane.core.perf import PhaseModel
from controlplane.core.planner import Alternative, frontier
from controlplane.core.planner_layouts import Layouted
from controlplane.core.protocol import Mode
from controlplane.core.shapes import Shape
from controlplane.physics.advising import AdviceRequest, layout_of
from controlplane.physics.forecastdoc import rounded

POINTS = 24
BEYOND = 1.15
"""Rates are drawn up to so many times the highest."""
LONGEST = 8
"""Prompts are drawn up to so many times the mean one."""
LINKS_GBPS = (10.0, 25.0, 100.0, 400.0)
MOST_SPLITS = 6
Best = Mapping[Mode, tuple[float, Layouted] | None]


def charts(asked: AdviceRequest) -> dict[str, Any]:
    """For JSON: `first_token`, `by_rate` and `splits`, each null where no layout keeps the targets at any rate. Raises what
    `advise_offline` raises."""
    offline = asked.offline
    best: Best = {mode: offline.best(mode) for mode in MODES}
    return {
        "first_token": _first_token(offline, best),
        "by_rate": _by_rate(offline, best),
        "splits": _splits(asked, offline, best),
    }


def kv_terms(shape: Shape, dtype: str | None) -> dict[str, int] | None:
    """What bytes per token are a product of, 2 × layers × KV heads × head's size × bytes of a number; None where layers
    differ or keep something else."""
    if len(shape.attention) != 1 or shape.attention[0].kind != "full":
        return None
    group, size = shape.attention[0], kvsize.kv_element_bytes(shape, dtype)
    found = {"layers": group.cached_layers, "kv_heads": group.kv_heads, "head_dim": group.key_dim, "element_bytes": size}
    exact = 2 * math.prod(found.values()) == kvsize.transfer_bytes_per_token(shape, dtype)
    return found if exact else None


def _first_token(offline: Offline, best: Best) -> dict[str, Any] | None:
    """Prefill and transfer of one prompt on idle engines, by its length; `mean_prefill_ms` of the mean prompt."""
    found = best["disaggregated"] or best["monolithic"]
    if found is None:
        return None
    pool = found[1].pools[0]
    model = offline.search.speed(pool.gpu, pool.tensor_parallel).model
    mean = max(1, round(offline.mix.prompt_tokens))
    most = LONGEST * mean
    if offline.shape.max_positions:
        most = max(mean, min(most, offline.shape.max_positions))
    tokens = sorted({max(1, round(most * index / POINTS)) for index in range(1, POINTS + 1)} | {1})
    links = sorted({*LINKS_GBPS, offline.gbps})
    return {
        "engine": pool.text,
        "tokens": tokens,
        "prefill_ms": [rounded(_prefill_s(model, each) * 1e3) for each in tokens],
        "links": [{"gbps": gbps, "ttft_ms": [rounded(_reached_ms(model, each, gbps)) for each in tokens]} for gbps in links],
        "mean_tokens": mean,
        "mean_prefill_ms": rounded(_prefill_s(model, mean) * 1e3),
    }


def _reached_ms(model: PhaseModel, tokens: int, gbps: float) -> float:
    size = kvsize.transfer_bytes(model.shape, model.kv_dtype, tokens)
    return (_prefill_s(model, tokens) + transfer_s(size, gbps)) * 1e3


def _prefill_s(model: PhaseModel, tokens: int) -> float:
    starts = range(0, tokens, STEP_TOKENS)
    return math.fsum(model.prefill(min(STEP_TOKENS, tokens - past), past).seconds for past in starts)


def _by_rate(offline: Offline, best: Best) -> dict[str, Any] | None:
    """Latencies of each mode's best layout; null where it cannot keep up."""
    known = {mode: found for mode, found in best.items() if found}
    if not known:
        return None
    most = BEYOND * max(rate for rate, _ in known.values())
    rates = [most * index / POINTS for index in range(1, POINTS + 1)]
    return {
        "rates": [rounded(rate) for rate in rates],
        "modes": [
            {"mode": mode, "layout": layout_of(found).text, **_latencies(offline, found, rates)}
            for mode, (_, found) in known.items()
        ],
    }


def _latencies(offline: Offline, found: Layouted, rates: list[float]) -> dict[str, list[float | None]]:
    given = [offline.search.estimate(found.mode, found.pools, rate) for rate in rates]
    return {
        "ttft_p99_ms": [_finite(each.ttft_p99_ms) for each in given],
        "itl_p99_ms": [_finite(each.itl_p99_ms) for each in given],
    }


def _splits(asked: AdviceRequest, offline: Offline, best: Best) -> dict[str, Any] | None:
    """The layouts for a rate, the cheapest first: the rate that was asked for, else what monolithic serving reaches (or, if
    it reaches none, most of what another mode does)."""
    reached = best["monolithic"] or best["disaggregated"] or best["conditional"]
    if reached is None:
        return None
    rate = asked.rate or reached[0] * (1.0 if best["monolithic"] else 0.8)
    found = list(_layouts(asked, offline, best, rate))
    kept = [each for each in found if not each.why_not]
    first = found.index(kept[0]) if kept else len(found)
    around = found[max(0, first - MOST_SPLITS // 2) :][:MOST_SPLITS]
    return {
        "requests_per_second": rounded(rate),
        "given": asked.rate is not None,
        "layouts": [_told(each) for each in around],
    }


def _layouts(asked: AdviceRequest, offline: Offline, best: Best, rate: float) -> Iterator[Alternative]:
    """The frontier with the kinds of engine that the best layouts are made of."""
    degrees = {pool.role: (pool.tensor_parallel,) for found in best.values() if found for pool in found[1].pools}
    model = offline.with_degrees(degrees).search.model
    room = dict.fromkeys((offline.prefill_gpu, offline.decode_gpu), offline.gpus)
    for each in frontier(model, rate, offline.mix, room, prices=asked.price_of):
        if each.estimate.gpus <= offline.gpus:
            yield each


def _told(each: Alternative) -> dict[str, Any]:
    given = each.estimate
    return {
        "mode": each.mode,
        "pools": [
            {"role": pool.role, "engines": pool.engines, "gpus_per_engine": pool.tensor_parallel} for pool in each.pools
        ],
        "gpus": given.gpus,
        "ttft_p99_ms": _finite(given.ttft_p99_ms),
        "itl_p99_ms": _finite(given.itl_p99_ms),
        "cost_per_hour": rounded(given.cost_per_hour),
        "cost_per_million_tokens": None if given.cost_per_million_tokens is None else rounded(given.cost_per_million_tokens),
        "within": not each.why_not,
    }


def _finite(value: float) -> float | None:
    return rounded(value) if math.isfinite(value) else None
