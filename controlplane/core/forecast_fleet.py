"""The forecast's engines, built from pools and settings. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.core.batching import Limits
from controlplane.core.forecast_engine import Account, Engine, StepCosts
from controlplane.core.forecast_gaps import Gaps
from controlplane.core.forecast_merged import MergedEngine
from controlplane.core.forecast_routing import Node, Rates
from controlplane.core.forecast_stepwise import StepwiseEngine
from controlplane.core.forecast_types import Arrival, ForecastRefused, Pool, PoolTotals, Settings


def capacity_tokens(pool: Pool, settings: Settings) -> int:
    """KV tokens of one engine, whole blocks. Raises ForecastRefused if there is no room for a single one beside what all
    prompts share, and DoesNotFit if the model does not fit."""
    tokens = settings.kv_tokens
    if tokens is None:
        tokens = pool.model.kv_capacity_tokens(settings.memory_utilization, settings.max_num_batched_tokens)
    size = settings.block_size
    if tokens // size <= _shared_blocks(settings):
        raise ForecastRefused(
            f"an engine of {pool.name} holds {tokens} tokens of KV, which leaves none beside {settings.prefix_cached} "
            f"cached ones in blocks of {size}: use more GPUs per engine, or a shorter prefix or smaller blocks"
        )
    return tokens // size * size


def build(
    pools: Sequence[Pool], settings: Settings, arrivals: Sequence[Arrival], gaps: Gaps
) -> tuple[list[PoolTotals], list[Node]]:
    """Each pool's totals, and all engines, which add to them and to `gaps`. Raises as `capacity_tokens`."""
    everything = [PoolTotals(pool, capacity_tokens(pool, settings)) for pool in pools]
    nodes: list[Node] = []
    for totals in everything:
        pool = totals.pool
        rates = Rates.of(pool, settings, totals.kv_capacity_tokens, arrivals)
        gbps = pool.network_gbps or settings.network_gbps or pool.model.gpu.network_gbps
        costs, account, limits = StepCosts(pool.model), Account(totals, gaps), _limits(totals, settings)
        for _ in range(pool.engines):
            engine: Engine = (StepwiseEngine if settings.exact else MergedEngine)(costs, limits, account)
            nodes.append(Node(len(nodes), totals, engine, rates, gbps * 1e9 / 8, settings.max_num_seqs))
    return everything, nodes


def _limits(totals: PoolTotals, settings: Settings) -> Limits:
    return Limits(
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        block_size=settings.block_size,
        num_blocks=totals.kv_capacity_tokens // settings.block_size - _shared_blocks(settings),
        prefix_caching=settings.prefix_caching,
    )


def _shared_blocks(settings: Settings) -> int:
    """Blocks of what all prompts share, held once in each engine."""
    return -(-settings.prefix_cached // settings.block_size)
