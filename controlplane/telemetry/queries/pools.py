"""Pools: utilization of their GPUs, load, KV cache and the engines' latencies. Reads only."""

from __future__ import annotations

from controlplane.telemetry.queries import effective, figures
from controlplane.telemetry.queries.figures import Series, ratio
from controlplane.telemetry.queries.kept import finest
from controlplane.telemetry.queries.reading import (
    ENGINES,
    POOLS,
    Ask,
    Row,
    buckets,
    latency,
    mean,
    most,
    over,
    read,
    total,
)
from controlplane.telemetry.queries.results import PoolFigures, PoolSeries
from controlplane.telemetry.queries.shaping import Course, Shape, grouped
from controlplane.telemetry.queries.stored import stored
from controlplane.telemetry.queries.windows import Level, Window, cells, one_cell

KEY = ("model", "role")
TOKENS = {name: total(name) for name in ("prompt_tokens", "generation_tokens", "prefix_queries", "prefix_hits")}
ACTIVITY = {"tensor": mean("tensor", "gpu_seconds"), "dram": mean("dram", "gpu_seconds")}
LOAD = {"running": mean("running"), "waiting": mean("waiting"), "waiting_max": most("waiting_max")}
FIGURES = {
    **effective.PICKS,
    **ACTIVITY,
    **LOAD,
    **TOKENS,
    "kv_usage": mean("kv_usage", "engines"),
    "engines": most("engines"),
    "preemptions": total("preemptions"),
    **latency("queue_ms"),
    **latency("ttft_ms"),
    **latency("itl_ms"),
}
GPU_SERIES = {**effective.PICKS, **ACTIVITY}
LATENCIES = {f"{name}_ms": buckets(f"{name}_ms") for name in ("queue", "itl")}
LOAD_SERIES = {**LOAD, **TOKENS, "kv_usage": mean("kv_usage", "engines"), **LATENCIES}
FINE_SERIES = {
    "running": total("running"),
    "waiting": total("waiting"),
    "waiting_max": most("waiting_max"),
    **TOKENS,
    "kv_usage": mean("kv_usage"),
    **LATENCIES,
}
"""Of ten seconds there is one row per engine: a cell of ten seconds is the sum of its engines."""


def pool_figures(window: Window, model: str | None = None) -> list[PoolFigures]:
    """Every pool that reported in the window, by model and role. Raises django.db.Error."""
    since, until = one_cell(window, Level.MINUTE)
    where = {"model": model}
    rows = read(Ask(POOLS, where, KEY, FIGURES, since, until), stored().hours_until)
    return [_figures(row, window) for row in rows if row["model"]]


def _figures(row: Row, window: Window) -> PoolFigures:
    shape = Shape(window, row)
    return PoolFigures(
        model=row["model"],
        role=row["role"],
        engines=shape.figure("engines", figures.COUNT),
        use=effective.use(shape),
        tensor=shape.figure("tensor", figures.SHARE, "gpu_seconds"),
        dram=shape.figure("dram", figures.SHARE, "gpu_seconds"),
        running=shape.figure("running", figures.REQUESTS),
        waiting=shape.figure("waiting", figures.REQUESTS),
        waiting_max=shape.figure("waiting_max", figures.REQUESTS),
        kv_usage=shape.figure("kv_usage", figures.SHARE),
        prefix_hits=shape.figure(hits, figures.SHARE, "prefix_queries"),
        prompt_tokens_per_s=shape.per_s("prompt_tokens", figures.TOKENS_PER_S),
        output_tokens_per_s=shape.per_s("generation_tokens", figures.TOKENS_PER_S),
        preemptions=shape.figure("preemptions", figures.COUNT),
        queue=shape.latency("queue_ms"),
        ttft=shape.latency("ttft_ms"),
        itl=shape.latency("itl_ms"),
    )


def hits(row: Row) -> float | None:
    """Tokens that prefix caches held by tokens they were asked for."""
    return ratio(row["prefix_hits"], row["prefix_queries"])


def pool_series(model: str, window: Window) -> dict[str, PoolSeries]:
    """By role. What GPUs do comes in cells of a minute at least, the rest in cells of ten seconds for short windows. Raises
    django.db.Error."""
    hours_until = stored().hours_until
    fine, coarse = cells(window, finest(window)), cells(window, Level.MINUTE)
    where = {"model": model}
    if fine.level == Level.TEN_SECONDS:
        gpus = read(over(POOLS, where, KEY, GPU_SERIES, coarse), hours_until)
        load = read(over(ENGINES, where, ("role",), FINE_SERIES, fine), hours_until)
    else:
        gpus = load = read(over(POOLS, where, KEY, {**GPU_SERIES, **LOAD_SERIES}, coarse), hours_until)
    gpus_of, load_of = grouped(gpus, "role"), grouped(load, "role")
    roles = [role for (role,) in dict.fromkeys([*gpus_of, *load_of]) if role]
    return {
        role: _series(model, role, Course(coarse, gpus_of.get((role,), [])), Course(fine, load_of.get((role,), [])))
        for role in roles
    }


def _series(model: str, role: str, gpus: Course, load: Course) -> PoolSeries:
    def requests(name: str) -> Series:
        return load.series(name, figures.REQUESTS)

    return PoolSeries(
        model=model,
        role=role,
        gpus=gpus.series(effective.held, figures.GPUS),
        effective=gpus.series(effective.effective, figures.GPUS),
        tensor=gpus.series("tensor", figures.SHARE),
        dram=gpus.series("dram", figures.SHARE),
        running=requests("running"),
        waiting=requests("waiting"),
        waiting_max=requests("waiting_max"),
        kv_usage=load.series("kv_usage", figures.SHARE),
        prefix_hits=load.series(hits, figures.SHARE),
        prompt_tokens_per_s=load.per_s("prompt_tokens", figures.TOKENS_PER_S),
        output_tokens_per_s=load.per_s("generation_tokens", figures.TOKENS_PER_S),
        queue=load.latency("queue_ms"),
        itl=load.latency("itl_ms"),
    )
