"""Handoffs per pair of a prefill and a decode engine, as the routers saw them. Reads only."""

from __future__ import annotations

from controlplane.telemetry.queries import figures
from controlplane.telemetry.queries.kv_results import PairFigures, PairSeries
from controlplane.telemetry.queries.reading import MODELS, PAIRS, Ask, Row, buckets, latency, over, read, total
from controlplane.telemetry.queries.shaping import Course, Shape
from controlplane.telemetry.queries.stored import stored
from controlplane.telemetry.queries.windows import Level, Window, cells, one_cell

KEY = ("prefill", "decode")
TOTALS = ("handoffs", "failed", "kv_bytes")
COUNTS = {name: total(name) for name in TOTALS}
FIGURES = COUNTS | latency("handoff_ms")
SERIES = COUNTS | {"handoff_ms": buckets("handoff_ms")}
MINUTES_FOR_S = 86_400
"""Minutes of pairs are kept for days only: longer windows begin and end at a whole hour."""


def pair_figures(model: str, window: Window) -> list[PairFigures]:
    """Every pair that had a handoff in the window. Raises django.db.Error."""
    grain = Level.HOUR if window.span_s > MINUTES_FOR_S else Level.MINUTE
    since, until = one_cell(window, grain)
    hours_until = stored().hours_until
    recorded = read(Ask(MODELS, {"model": model}, (), {}, since, until), hours_until)
    if not recorded:
        return []
    rows = read(Ask(PAIRS, {"model": model}, KEY, FIGURES, since, until), hours_until)
    return [_figures(model, _covered(row, recorded[0]), window) for row in rows]


def _covered(row: Row, recorded: Row) -> Row:
    """A pair has rows of the minutes in which it had a handoff; what was recorded is known of its model."""
    return row | {name: max(row[name], recorded[name]) for name in ("covered_s", "told_s", "ends")}


def _figures(model: str, row: Row, window: Window) -> PairFigures:
    shape = Shape(window, row)
    return PairFigures(
        model=model,
        prefill=row["prefill"],
        decode=row["decode"],
        handoffs=shape.figure("handoffs", figures.COUNT, "handoffs"),
        failed=shape.figure("failed", figures.REQUESTS, "handoffs"),
        kv_bytes=shape.figure("kv_bytes", figures.BYTES, "handoffs"),
        bytes_per_s=shape.per_s("kv_bytes", figures.BYTES_PER_S, "handoffs"),
        handoff=shape.latency("handoff_ms"),
    )


def pair_series(model: str, prefill: str, decode: str, window: Window) -> PairSeries:
    """In cells of a minute at least; a cell without a handoff is zero where the model was recorded. Raises
    django.db.Error."""
    chart = cells(window, Level.MINUTE)
    hours_until = stored().hours_until
    where = {"model": model, "prefill": prefill, "decode": decode}
    nothing = {**dict.fromkeys(TOTALS, 0.0), "handoff_ms": None}
    found = {row["cell"]: row | nothing for row in read(over(MODELS, {"model": model}, (), {}, chart), hours_until)}
    for row in read(over(PAIRS, where, KEY, SERIES, chart), hours_until):
        found[row["cell"]] = _covered(row, found.get(row["cell"], row))
    course = Course(chart, list(found.values()))
    return PairSeries(
        prefill=prefill,
        decode=decode,
        handoffs_per_s=course.per_s("handoffs", figures.PER_S),
        bytes_per_s=course.per_s("kv_bytes", figures.BYTES_PER_S),
        failed=course.series("failed", figures.REQUESTS),
        handoff=course.latency("handoff_ms"),
    )
