"""What the queries about GPUs, engines, pools, models and waste answer with. Pure.

A Figure is of the whole window, a Series is the same over its cells. Units are those of `figures`; see docs/telemetry.md for
each figure's definition and source.
"""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.telemetry.queries.figures import Figure, Latency, LatencySeries, Series


@dataclass(frozen=True)
class GpuFigures:
    """One GPU. `engine` and `role` are the last ones in the window; `count` of all figures: samples (one a second)."""

    uuid: str
    node: str
    engine: str
    role: str
    tensor: Figure
    tensor_peak: Figure
    dram: Figure
    busy: Figure
    memory_used_bytes: Figure
    """The most in the window."""
    power_w: Figure


@dataclass(frozen=True)
class GpuSeries:
    uuid: str
    tensor: Series
    dram: Series
    busy: Series
    memory_used_bytes: Series
    power_w: Series


@dataclass(frozen=True)
class Effective:
    """GPUs of one pool, model or fleet. `gpus`: how many were held, on average over the recorded time; `effective`: the sum
    of their busy shares; `busy_share`: effective by those that tell their activity. `count`: seconds of GPUs."""

    gpus: Figure
    effective: Figure
    busy_share: Figure


@dataclass(frozen=True)
class PoolFigures:
    """All engines of one model and role (arms together)."""

    model: str
    role: str
    engines: Figure
    """The most that reported in one minute."""
    use: Effective
    tensor: Figure
    dram: Figure
    running: Figure
    """Requests, the pool's sum, on average."""
    waiting: Figure
    waiting_max: Figure
    kv_usage: Figure
    prefix_hits: Figure
    """Tokens found in its prefix caches by tokens asked for."""
    prompt_tokens_per_s: Figure
    output_tokens_per_s: Figure
    preemptions: Figure
    queue: Latency
    ttft: Latency
    itl: Latency


@dataclass(frozen=True)
class PoolSeries:
    model: str
    role: str
    gpus: Series
    effective: Series
    tensor: Series
    dram: Series
    running: Series
    waiting: Series
    waiting_max: Series
    kv_usage: Series
    prefix_hits: Series
    prompt_tokens_per_s: Series
    output_tokens_per_s: Series
    queue: LatencySeries
    itl: LatencySeries


@dataclass(frozen=True)
class EngineFigures:
    """One engine in one role. `incarnation` and `state` are the last ones in the window; `count`: samples (one a second), of
    latencies their values."""

    engine: str
    model: str
    role: str
    incarnation: int
    state: str
    running: Figure
    waiting: Figure
    waiting_max: Figure
    kv_usage: Figure
    kv_usage_max: Figure
    requests_per_s: Figure
    prompt_tokens_per_s: Figure
    output_tokens_per_s: Figure
    prefix_hits: Figure
    preemptions: Figure
    transfer_bytes_per_s: Figure
    transfers_failed: Figure
    leases_expired: Figure
    ttft: Latency
    itl: Latency
    queue: Latency
    transfer: Latency


@dataclass(frozen=True)
class EngineSeries:
    engine: str
    running: Series
    waiting: Series
    kv_usage: Series
    prompt_tokens_per_s: Series
    output_tokens_per_s: Series
    transfer_bytes_per_s: Series
    ttft: LatencySeries
    itl: LatencySeries
    queue: LatencySeries
    transfer: LatencySeries


@dataclass(frozen=True)
class ModelFigures:
    """One model as its clients saw it: finished requests of all routers. `count`: requests, of latencies their values."""

    model: str
    requests_per_s: Figure
    requests: Figure
    failed: Figure
    """Lost or failed by us: engine_error and cut."""
    client_errors: Figure
    cancelled: Figure
    retries: Figure
    prompt_tokens_per_s: Figure
    output_tokens_per_s: Figure
    cached: Figure
    """Prompt tokens that were found in a cache, by prompt tokens."""
    kv_bytes: Figure
    """Bytes of KV cache handed over."""
    ttft: Latency
    itl: Latency
    prefill: Latency
    handoff: Latency
    total: Latency


@dataclass(frozen=True)
class ModelSeries:
    model: str
    requests_per_s: Series
    failed: Series
    prompt_tokens_per_s: Series
    output_tokens_per_s: Series
    cached: Series
    ttft: LatencySeries
    itl: LatencySeries
    handoff: LatencySeries


@dataclass(frozen=True)
class PoolWaste:
    """GPU time of one pool. Held = effective + wasted + not known (GPUs that did not tell their activity)."""

    model: str
    """Empty: GPUs that no model held (spare)."""
    role: str
    held: Figure
    effective: Figure
    wasted: Figure
    unknown: Figure
    effective_gpus: Figure
    """On average over the recorded time."""
    gpus: Figure
    busy_share: Figure


@dataclass(frozen=True)
class ModelWaste:
    model: str
    total: PoolWaste
    pools: list[PoolWaste]


@dataclass(frozen=True)
class Waste:
    """`covered`: the share of the window's minutes that have a record; GPU hours are of those alone."""

    total: PoolWaste
    models: list[ModelWaste]
    spare: PoolWaste | None
    covered: Figure
