"""Engines: load, KV cache, tokens, transfers and latencies of each, from ten seconds and hours. Reads only."""

from __future__ import annotations

from controlplane.telemetry.queries import figures
from controlplane.telemetry.queries.kept import finest_of_engines
from controlplane.telemetry.queries.pools import hits
from controlplane.telemetry.queries.reading import ENGINES, Ask, Row, buckets, latency, mean, most, newest, over, read, total
from controlplane.telemetry.queries.results import EngineFigures, EngineSeries
from controlplane.telemetry.queries.shaping import Course, Shape
from controlplane.telemetry.queries.stored import stored
from controlplane.telemetry.queries.windows import Level, Window, cells, one_cell

COUNTED = (
    *("requests", "prompt_tokens", "generation_tokens", "prefix_queries", "prefix_hits", "preemptions"),
    *("transfers", "transfer_bytes", "transfers_failed", "leases_expired"),
)
LATENCIES = ("ttft_ms", "itl_ms", "queue_ms", "transfer_ms")
FIGURES = {
    **{name: total(name) for name in COUNTED},
    **{name: mean(name, "samples") for name in ("running", "waiting", "kv_usage")},
    **{name: most(name) for name in ("waiting_max", "kv_usage_max")},
    **{name: newest(name) for name in ("model", "state", "incarnation")},
    "samples": total("samples"),
    **dict(pick for name in LATENCIES for pick in latency(name).items()),
}
SERIES = {
    **{name: total(name) for name in ("prompt_tokens", "generation_tokens", "transfer_bytes")},
    **{name: mean(name, "samples") for name in ("running", "waiting", "kv_usage")},
    **{name: buckets(name) for name in LATENCIES},
}
TENS_FOR_S = 86_400
"""Ten seconds are kept for days only: longer windows begin and end at a whole hour."""


def engine_figures(window: Window, model: str | None = None, engine: str | None = None) -> list[EngineFigures]:
    """By engine and role: one that changed its role within the window comes twice. Hours of engines are kept for weeks; a
    window that begins earlier has what is left. Raises django.db.Error."""
    since, until = one_cell(window, Level.HOUR if window.span_s > TENS_FOR_S else Level.TEN_SECONDS)
    rows = read(
        Ask(ENGINES, {"model": model, "engine": engine}, ("engine", "role"), FIGURES, since, until),
        stored().engine_hours_until,
    )
    return [_figures(row, window) for row in rows]


def _figures(row: Row, window: Window) -> EngineFigures:
    shape = Shape(window, row, Level.TEN_SECONDS)
    return EngineFigures(
        engine=row["engine"],
        model=row["model"],
        role=row["role"],
        incarnation=row["incarnation"],
        state=row["state"],
        running=shape.figure("running", figures.REQUESTS, "samples"),
        waiting=shape.figure("waiting", figures.REQUESTS, "samples"),
        waiting_max=shape.figure("waiting_max", figures.REQUESTS, "samples"),
        kv_usage=shape.figure("kv_usage", figures.SHARE, "samples"),
        kv_usage_max=shape.figure("kv_usage_max", figures.SHARE, "samples"),
        requests_per_s=shape.per_s("requests", figures.PER_S, "requests"),
        prompt_tokens_per_s=shape.per_s("prompt_tokens", figures.TOKENS_PER_S, "samples"),
        output_tokens_per_s=shape.per_s("generation_tokens", figures.TOKENS_PER_S, "samples"),
        prefix_hits=shape.figure(hits, figures.SHARE, "prefix_queries"),
        preemptions=shape.figure("preemptions", figures.COUNT, "samples"),
        transfer_bytes_per_s=shape.per_s("transfer_bytes", figures.BYTES_PER_S, "transfers"),
        transfers_failed=shape.figure("transfers_failed", figures.COUNT, "transfers"),
        leases_expired=shape.figure("leases_expired", figures.COUNT, "samples"),
        ttft=shape.latency("ttft_ms"),
        itl=shape.latency("itl_ms"),
        queue=shape.latency("queue_ms"),
        transfer=shape.latency("transfer_ms"),
    )


def engine_series(engine: str, window: Window) -> EngineSeries:
    """In cells of an hour at least once ten seconds of its beginning are no longer kept; hours are kept for weeks. Raises
    django.db.Error."""
    chart = cells(window, finest_of_engines(window))
    course = Course(chart, read(over(ENGINES, {"engine": engine}, ("engine",), SERIES, chart), stored().engine_hours_until))
    return EngineSeries(
        engine=engine,
        running=course.series("running", figures.REQUESTS),
        waiting=course.series("waiting", figures.REQUESTS),
        kv_usage=course.series("kv_usage", figures.SHARE),
        prompt_tokens_per_s=course.per_s("prompt_tokens", figures.TOKENS_PER_S),
        output_tokens_per_s=course.per_s("generation_tokens", figures.TOKENS_PER_S),
        transfer_bytes_per_s=course.per_s("transfer_bytes", figures.BYTES_PER_S),
        ttft=course.latency("ttft_ms"),
        itl=course.latency("itl_ms"),
        queue=course.latency("queue_ms"),
        transfer=course.latency("transfer_ms"),
    )
