"""The highest rate of a fixed layout in steady state, when the means of TTFT and TPOT keep the limits.

By the conventions of AIConfigurator (core/comparison.py), so that layouts can be compared with what capacity tools say:
every engine holds its batch all the time, there is no queue and no KV transfer. What p99 becomes at that rate, the
simulation shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.core.comparison import VLLM, Lengths
from controlplane.core.forecast import ForecastRefused
from controlplane.core.layout import Layout, PoolLayout
from controlplane.core.splitengines import Candidates, Engine, Grid, Limits, Question, candidates
from controlplane.physics.asked import MAX_GPUS, ForecastRequest

SLACK = 1.1
"""Limits are stretched by this when nothing keeps them: the phase model is not surer than that."""


@dataclass(frozen=True)
class Steady:
    """`rate`: requests/s, 0 if no batch keeps the limits; times are means. `notes` say what was stretched or missed."""

    rate: float
    ttft_s: float = 0.0
    tpot_s: float = 0.0
    batches: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


def steady(asked: ForecastRequest, layout: Layout) -> Steady:
    """The rate of `layout` under the mean request of the traffic. Raises ForecastRefused for answers of one token."""
    if asked.traffic.output_tokens < 2:
        raise ForecastRefused("a steady state needs answers of 2 tokens or more on average; use --saturate p99")
    found = _within(asked, layout, 1.0)
    if found.rate:
        return found
    stretched = _within(asked, layout, SLACK)
    if not stretched.rate:
        return found
    note = f"keeps the limits only when they are stretched by {SLACK - 1:.0%}: {', '.join(found.notes)}"
    return Steady(stretched.rate, stretched.ttft_s, stretched.tpot_s, stretched.batches, (note,))


def _within(asked: ForecastRequest, layout: Layout, slack: float) -> Steady:
    traffic, slo = asked.traffic, asked.slo
    lengths = Lengths(max(1, round(traffic.prompt_tokens)), round(traffic.output_tokens), asked.prefix_cached)
    limits = Limits(slo.ttft_ms / 1000 * slack, slo.itl_ms / 1000 * slack)
    pools = [(pool, _engines(asked, pool, lengths, limits)) for pool in layout.pools]
    missed = [f"{pool.text}: {found.refusals[-1].reason}" for pool, found in pools if not found.engines and found.refusals]
    if missed or not all(found.engines for _, found in pools):
        return Steady(0.0, notes=tuple(missed or ["no batch is possible"]))
    if layout.mode == "monolithic":
        chosen = [max(found.engines, key=_rate) for _, found in pools]
        rate = sum(engine.requests_per_second * pool.engines for engine, (pool, _) in zip(chosen, pools, strict=True))
    else:
        rate = min(max(map(_rate, found.engines)) * pool.engines for pool, found in pools)
        chosen = [_quickest(found.engines, rate / pool.engines) for pool, found in pools]
    return Steady(
        rate,
        max(engine.ttft_s for engine in chosen),
        max(engine.tpot_s for engine in chosen),
        tuple(engine.batch for engine in chosen),
    )


def _engines(asked: ForecastRequest, pool: PoolLayout, lengths: Lengths, limits: Limits) -> Candidates:
    whole = Grid()
    grid = Grid(
        tensor_parallel=(pool.tensor_parallel,),
        mixed_batches=_up_to(whole.mixed_batches, asked.max_num_seqs),
        decode_batches=_up_to(whole.decode_batches, asked.max_num_seqs),
    )
    question = Question(asked.shape, lengths, limits, VLLM, grid, MAX_GPUS, asked.kv_dtype)
    return candidates(question, pool.role, asked.gpu(pool.gpu))


def _up_to(batches: Sequence[int], most: int) -> tuple[int, ...]:
    return tuple(batch for batch in batches if batch <= most)


def _rate(engine: Engine) -> float:
    return engine.requests_per_second


def _quickest(engines: Sequence[Engine], rate: float) -> Engine:
    """The smallest batch that keeps up: the pool that does not limit needs no larger one."""
    return min((engine for engine in engines if engine.requests_per_second >= rate * (1 - 1e-9)), key=lambda e: e.batch)
