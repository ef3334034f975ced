"""KV transfers as the engines count them, by pool and over time. Reads only.

A transfer is counted by the engine that does it: with a connector that pulls, the decode engine. Leases expire at the
prefill engine.
"""

from __future__ import annotations

from controlplane.core.sketches import log_edges
from controlplane.telemetry.queries import figures
from controlplane.telemetry.queries.figures import ratio
from controlplane.telemetry.queries.kept import finest
from controlplane.telemetry.queries.kv_results import TransferFigures, TransferSeries
from controlplane.telemetry.queries.reading import ENGINES, POOLS, Ask, Row, buckets, latency, over, read, total
from controlplane.telemetry.queries.shaping import Course, Shape, together
from controlplane.telemetry.queries.stored import stored
from controlplane.telemetry.queries.windows import Level, Window, cells, one_cell

TOTALS = ("transfers", "transfer_bytes", "transfers_failed", "leases_expired")
COUNTS = {name: total(name) for name in TOTALS}
FIGURES = COUNTS | latency("transfer_ms")
SERIES = COUNTS | {"transfer_ms": buckets("transfer_ms")}
HEAT_EDGES_MS = log_edges(1.0, 10_000.0, 24)


def transfer_figures(window: Window, model: str | None = None) -> list[TransferFigures]:
    """By pool, of those that moved or lost KV in the window. Raises django.db.Error."""
    since, until = one_cell(window, Level.MINUTE)
    rows = read(Ask(POOLS, {"model": model}, ("model", "role"), FIGURES, since, until), stored().hours_until)
    return [_figures(row, window) for row in rows if any(row[name] for name in TOTALS)]


def _figures(row: Row, window: Window) -> TransferFigures:
    shape = Shape(window, row)
    transfer = shape.latency("transfer_ms")

    def while_moving(row: Row) -> float | None:
        busy_ms = (transfer.mean.value or 0.0) * transfer.mean.count
        return ratio(row["transfer_bytes"], busy_ms / 1000)

    return TransferFigures(
        model=row["model"],
        role=row["role"],
        transfers=shape.figure("transfers", figures.COUNT, "transfers"),
        kv_bytes=shape.figure("transfer_bytes", figures.BYTES, "transfers"),
        bytes_per_s=shape.per_s("transfer_bytes", figures.BYTES_PER_S, "transfers"),
        bytes_per_transfer_s=shape.figure(while_moving, figures.BYTES_PER_S, "transfers"),
        failed=shape.figure("transfers_failed", figures.COUNT, "transfers"),
        leases_expired=shape.figure("leases_expired", figures.COUNT, "transfers"),
        transfer=transfer,
    )


def transfer_series(model: str, window: Window) -> TransferSeries:
    """Of all pools of the model together. Raises django.db.Error."""
    chart = cells(window, finest(window))
    source, key = (ENGINES, ()) if chart.level == Level.TEN_SECONDS else (POOLS, ("role",))
    rows = read(over(source, {"model": model}, key, SERIES, chart), stored().hours_until)
    course = Course(chart, together(rows, TOTALS, ("transfer_ms",)))
    return TransferSeries(
        model=model,
        transfer=course.latency("transfer_ms"),
        bytes_per_s=course.per_s("transfer_bytes", figures.BYTES_PER_S),
        failed=course.series("transfers_failed", figures.COUNT),
        leases_expired=course.series("leases_expired", figures.COUNT),
        heat=course.heat("transfer_ms", HEAT_EDGES_MS),
    )
