"""Models as their clients saw them: finished requests of all routers. Reads only.

Latencies are of streamed answers (a whole answer's first byte is its last), ITL of the gaps between their first 256 chunks.
"""

from __future__ import annotations

from controlplane.telemetry.queries import figures, model_seconds
from controlplane.telemetry.queries.figures import ratio
from controlplane.telemetry.queries.kept import finest
from controlplane.telemetry.queries.reading import MODELS, Ask, Row, buckets, latency, over, read, total
from controlplane.telemetry.queries.results import ModelFigures, ModelSeries
from controlplane.telemetry.queries.shaping import Course, Shape
from controlplane.telemetry.queries.stored import stored
from controlplane.telemetry.queries.windows import Level, Window, cells, one_cell

LATENCIES = ("ttft_ms", "itl_ms", "prefill_ms", "handoff_ms", "total_ms")
SHOWN = ("ttft_ms", "itl_ms", "handoff_ms")
TOTALS = {name: total(name) for name in model_seconds.SUMS}
FIGURES = TOTALS | dict(pick for name in LATENCIES for pick in latency(name).items())
SERIES = {**TOTALS, **{name: buckets(name) for name in SHOWN}}


def model_figures(model: str, window: Window) -> ModelFigures:
    """Raises django.db.Error."""
    since, until = one_cell(window, Level.MINUTE)
    rows = read(Ask(MODELS, {"model": model}, (), FIGURES, since, until), stored().hours_until)
    shape = Shape(window, rows[0] if rows else None)
    return ModelFigures(
        model=model,
        requests_per_s=shape.figure(lambda row: ratio(finished(row), row["told_s"]), figures.PER_S, finished),
        requests=shape.figure(finished, figures.REQUESTS, finished),
        failed=shape.figure(failed, figures.REQUESTS, finished),
        client_errors=shape.figure("client_error", figures.REQUESTS, finished),
        cancelled=shape.figure("cancelled", figures.REQUESTS, finished),
        retries=shape.figure("retries", figures.COUNT, finished),
        prompt_tokens_per_s=shape.per_s("prompt_tokens", figures.TOKENS_PER_S, finished),
        output_tokens_per_s=shape.per_s("output_tokens", figures.TOKENS_PER_S, finished),
        cached=shape.figure(cached, figures.SHARE, "prompt_tokens"),
        kv_bytes=shape.figure("kv_bytes", figures.BYTES, finished),
        ttft=shape.latency("ttft_ms"),
        itl=shape.latency("itl_ms"),
        prefill=shape.latency("prefill_ms"),
        handoff=shape.latency("handoff_ms"),
        total=shape.latency("total_ms"),
    )


def finished(row: Row) -> float:
    """Requests of all outcomes."""
    return float(sum(row[name] for name in model_seconds.OUTCOMES))


def failed(row: Row) -> float:
    """Lost or failed by us."""
    return float(row["engine_error"] + row["cut"])


def cached(row: Row) -> float | None:
    return ratio(row["cached_tokens"], row["prompt_tokens"])


def model_series(model: str, window: Window) -> ModelSeries:
    """For short windows in cells of ten seconds (`model_seconds`). Raises django.db.Error."""
    chart = cells(window, finest(window))
    if chart.level == Level.TEN_SECONDS:
        course = Course(chart, model_seconds.rows(model, chart))
    else:
        course = Course(chart, read(over(MODELS, {"model": model}, (), SERIES, chart), stored().hours_until))
    return ModelSeries(
        model=model,
        requests_per_s=course.series(lambda row: ratio(finished(row), row["told_s"]), figures.PER_S),
        failed=course.series(failed, figures.REQUESTS),
        prompt_tokens_per_s=course.per_s("prompt_tokens", figures.TOKENS_PER_S),
        output_tokens_per_s=course.per_s("output_tokens", figures.TOKENS_PER_S),
        cached=course.series(cached, figures.SHARE),
        ttft=course.latency("ttft_ms"),
        itl=course.latency("itl_ms"),
        handoff=course.latency("handoff_ms"),
    )
