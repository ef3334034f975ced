"""What GPUs were held for, what of it was work, and what was not: per model and pool, over any window. Reads only."""

from __future__ import annotations

from collections.abc import Iterable

from controlplane.telemetry.queries import effective, figures
from controlplane.telemetry.queries.figures import Figure
from controlplane.telemetry.queries.reading import POOLS, Ask, Row, read
from controlplane.telemetry.queries.results import ModelWaste, PoolWaste, Waste
from controlplane.telemetry.queries.shaping import Shape, grouped, together
from controlplane.telemetry.queries.stored import stored
from controlplane.telemetry.queries.windows import Level, Window, one_cell

HOUR_S = 3600
THIRTY_DAYS_S = 30 * 86_400


def today(now: float, midnight: float) -> Waste:
    """Since `midnight` of the viewer's zone. Raises django.db.Error."""
    return waste(Window(min(midnight, now - Level.MINUTE), now, now))


def thirty_days(now: float) -> Waste:
    """Raises django.db.Error."""
    return waste(Window.last(THIRTY_DAYS_S, now))


def waste(window: Window) -> Waste:
    """Raises django.db.Error."""
    since, until = one_cell(window, Level.MINUTE)
    ask = Ask(POOLS, {}, ("model", "role"), effective.PICKS, since, until)
    rows = [row for row in read(ask, stored().hours_until) if row["gpu_seconds"]]
    by_model = grouped(rows, "model")
    spare = by_model.pop(("",), None)
    every = _sum(rows)
    return Waste(
        total=_waste("", "", every, window),
        models=[
            ModelWaste(
                model, _waste(model, "", _sum(pools), window), [_waste(model, row["role"], row, window) for row in pools]
            )
            for (model,), pools in by_model.items()
        ],
        spare=_waste("", "", _sum(spare), window) if spare else None,
        covered=Shape(window, every).figure(lambda row: min(row["covered_s"] / window.span_s, 1.0), figures.SHARE),
    )


def _sum(rows: Iterable[Row]) -> Row | None:
    found = together(rows, tuple(effective.PICKS), ())
    return found[0] if found else None


def _waste(model: str, role: str, row: Row | None, window: Window) -> PoolWaste:
    shape = Shape(window, row)
    use = effective.use(shape)

    def hours(whole: str, part: str = "") -> Figure:
        def value(row: Row) -> float:
            return float(row[whole] - (row[part] if part else 0.0)) / HOUR_S

        return shape.figure(value, figures.GPU_HOURS, "gpu_seconds")

    return PoolWaste(
        model=model,
        role=role,
        held=hours("gpu_seconds"),
        effective=hours("busy_seconds"),
        wasted=hours("known_seconds", "busy_seconds"),
        unknown=hours("gpu_seconds", "known_seconds"),
        effective_gpus=use.effective,
        gpus=use.gpus,
        busy_share=use.busy_share,
    )
