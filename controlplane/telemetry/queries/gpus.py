"""GPUs: activity, memory and power of each, from its minutes. Reads only."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.telemetry.queries import figures
from controlplane.telemetry.queries.reading import GPUS, Ask, Row, mean, most, newest, over, read, total
from controlplane.telemetry.queries.results import GpuFigures, GpuSeries
from controlplane.telemetry.queries.shaping import Course, Shape
from controlplane.telemetry.queries.windows import Level, Window, cells, one_cell

MEANS = {name: mean(name, "samples") for name in ("tensor", "dram", "busy", "power_w")}
FIGURES = {
    **MEANS,
    **{name: most(name) for name in ("tensor_peak", "memory_used_bytes")},
    **{name: newest(name) for name in ("node", "engine", "role")},
    "samples": total("samples"),
}
SERIES = {**MEANS, "memory_used_bytes": most("memory_used_bytes")}


def gpu_figures(window: Window, uuids: Sequence[str] | None = None) -> list[GpuFigures]:
    """Every GPU that reported in the window, or these. GPUs are kept for days only; a window that begins earlier has what is
    left. Raises django.db.Error."""
    since, until = one_cell(window, Level.MINUTE)
    where = {"uuid": None if uuids is None else list(uuids)}
    rows = read(Ask(GPUS, where, ("uuid",), FIGURES, since, until), 0.0)
    return sorted((_figures(row, window) for row in rows), key=lambda gpu: (gpu.node, gpu.uuid))


def _figures(row: Row, window: Window) -> GpuFigures:
    shape = Shape(window, row)
    return GpuFigures(
        uuid=row["uuid"],
        node=row["node"],
        engine=row["engine"],
        role=row["role"],
        tensor=shape.figure("tensor", figures.SHARE, "samples"),
        tensor_peak=shape.figure("tensor_peak", figures.SHARE, "samples"),
        dram=shape.figure("dram", figures.SHARE, "samples"),
        busy=shape.figure("busy", figures.SHARE, "samples"),
        memory_used_bytes=shape.figure("memory_used_bytes", figures.BYTES, "samples"),
        power_w=shape.figure("power_w", figures.WATTS, "samples"),
    )


def gpu_series(uuid: str, window: Window) -> GpuSeries:
    """Raises django.db.Error."""
    chart = cells(window, Level.MINUTE)
    course = Course(chart, read(over(GPUS, {"uuid": uuid}, ("uuid",), SERIES, chart), 0.0))
    return GpuSeries(
        uuid=uuid,
        tensor=course.series("tensor", figures.SHARE),
        dram=course.series("dram", figures.SHARE),
        busy=course.series("busy", figures.SHARE),
        memory_used_bytes=course.series("memory_used_bytes", figures.BYTES),
        power_w=course.series("power_w", figures.WATTS),
    )
