"""What a split of GPUs would do under a workload: the event simulation's entrance. Pure: no clock, no randomness, no I/O.

`simulate` runs a layout over arrivals, `summarise` puts the outcomes of several seeds together. The engines follow
`core.batching` (token budget, chunked prefill, paged blocks, prefix cache, preemption) on `core.perf`'s step times; with
`Settings.exact` they run it step by step, otherwise equal decode steps are merged (the same results, 4 to 20 times
sooner). KV moves at the links' shared bandwidth. In disaggregated mode the first token that counts is the decode engine's:
TTFT = queue + prefill + KV transfer + decode queue + one decode step. Not modelled: leases (a waiting decode leg's is
renewed, so that none ends), failures, the router's and clients' own time, hits on blocks of generated tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from controlplane.core.forecast_control import Control
from controlplane.core.forecast_gaps import Gaps
from controlplane.core.forecast_run import Simulation
from controlplane.core.forecast_saturation import Criterion, Saturation, saturate
from controlplane.core.forecast_summary import Figure, Forecast, Percentiles, PoolForecast, summarise
from controlplane.core.forecast_types import (
    Arrival,
    ForecastRefused,
    Outcome,
    Pool,
    PoolTotals,
    Progress,
    Served,
    Settings,
    TooLoose,
)
from controlplane.core.gpus import Gpu, gpu
from controlplane.core.layout import Layout
from controlplane.core.modelconfig import Shape
from controlplane.core.perf import PhaseModel
from controlplane.core.protocol import ROLES_OF_MODE, Mode

__all__ = [
    "Arrival",
    "Criterion",
    "Figure",
    "Forecast",
    "ForecastRefused",
    "Gaps",
    "Outcome",
    "Percentiles",
    "Pool",
    "PoolForecast",
    "PoolTotals",
    "Progress",
    "Saturation",
    "Served",
    "Settings",
    "TooLoose",
    "highest_rate",
    "pools_of",
    "simulate",
    "simulate_pools",
    "summarise",
]


def simulate(
    shape: Shape,
    layout: Layout,
    arrivals: Sequence[Arrival],
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Serve `arrivals` (in the order of time) on `layout`, in its mode. Raises ForecastRefused for arrivals that cannot be,
    perf.DoesNotFit (which says by how many GB) and gpus.UnknownGpu; whatever `progress` raises comes through."""
    settings = settings or Settings()
    return simulate_pools(pools_of(shape, layout, settings), arrivals, settings, layout.mode, progress)


def pools_of(shape: Shape, layout: Layout, settings: Settings, kind: Callable[[str], Gpu] = gpu) -> tuple[Pool, ...]:
    """The layout's pools with the model on their GPUs. `kind` knows GPUs by name: the GPU table, or what a calibration made
    of it. Raises DoesNotFit, UnknownGpu."""
    return tuple(
        Pool(each.role, each.engines, PhaseModel(shape, kind(each.gpu), each.tensor_parallel, settings.kv_dtype))
        for each in layout.pools
    )


def simulate_pools(
    pools: Sequence[Pool],
    arrivals: Sequence[Arrival],
    settings: Settings,
    mode: Mode,
    progress: Progress | None = None,
    control: Control | None = None,
) -> Outcome:
    """`simulate` for pools with phase models of their own; a role may have several. `control` changes engines' roles on the
    way. Raises as `simulate`."""
    _check_pools(pools, mode)
    _check_arrivals(arrivals, settings)
    return Simulation(pools, arrivals, settings, mode, progress, control).run()


def highest_rate(
    pools: Sequence[Pool],
    arrivals: Sequence[Arrival],
    settings: Settings,
    mode: Mode,
    criterion: Criterion,
    progress: Progress | None = None,
    near: float | None = None,
) -> Saturation:
    """The highest rate within the SLO (see core.forecast_saturation for the criterion) at which the pools serve requests
    that follow each other as `arrivals` do; `near`: about where. Raises as `simulate`."""
    _check_pools(pools, mode)
    _check_arrivals(arrivals, settings)
    return saturate(pools, arrivals, settings, mode, criterion, progress, near)


def _check_pools(pools: Sequence[Pool], mode: Mode) -> None:
    roles = ROLES_OF_MODE[mode]
    if {pool.role for pool in pools} != set(roles):
        raise ForecastRefused(f"mode {mode} needs pools of the roles {' and '.join(roles)}, and no others")
    for pool in pools:
        if pool.engines < 1:
            raise ForecastRefused(f"a pool needs at least one engine, got {pool.engines} in {pool.name}")
        if pool.network_gbps is not None and not 0 < pool.network_gbps < math.inf:
            raise ForecastRefused(f"network_gbps of {pool.name} must be a positive number, got {pool.network_gbps}")


def _check_arrivals(arrivals: Sequence[Arrival], settings: Settings) -> None:
    if not arrivals:
        raise ForecastRefused("there are no arrivals: give a trace with at least one request, or a rate and a duration")
    before = 0.0
    for number, arrival in enumerate(arrivals, 1):
        if not before <= arrival.at_s < math.inf:
            problem = (
                "comes before the one ahead of it: sort them by time" if 0 <= arrival.at_s < before else "must be 0 or more"
            )
            raise ForecastRefused(f"arrival {number}: its time {arrival.at_s} s {problem}")
        before = arrival.at_s
        lengths = arrival.prompt_tokens, arrival.output_tokens
        if not all(isinstance(tokens, int) and tokens >= 1 for tokens in lengths):
            raise ForecastRefused(
                f"arrival {number}: prompt and answer need a whole number of tokens, at least one each, got {lengths[0]} "
                f"and {lengths[1]}"
            )
    if settings.prefix_cached and any(arrival.prefix for arrival in arrivals):
        raise ForecastRefused("prefix_cached and arrivals with prefixes of their own exclude each other: leave one out")
    if settings.horizon_s is not None and settings.horizon_s <= arrivals[0].at_s:
        raise ForecastRefused(f"horizon_s ({settings.horizon_s}) must come after the first arrival ({arrivals[0].at_s} s)")
