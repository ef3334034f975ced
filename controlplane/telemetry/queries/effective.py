"""Effective GPUs: the sum of busy shares, where a GPU's busy share is the larger of its tensor-core and DRAM activity. Reads
only."""

from __future__ import annotations

from psycopg import sql

from controlplane.telemetry.queries import figures
from controlplane.telemetry.queries.figures import ratio
from controlplane.telemetry.queries.reading import POOLS, Ask, Pick, Row, read, total
from controlplane.telemetry.queries.results import Effective
from controlplane.telemetry.queries.shaping import Shape, together
from controlplane.telemetry.queries.stored import stored
from controlplane.telemetry.queries.windows import Level, Window, one_cell

KNOWN = Pick(("known_seconds", "gpu_seconds"), sql.SQL("sum(coalesce(known_seconds, gpu_seconds))::float8"))
"""Seconds of GPUs that told their activity; rows of before that was counted tell no difference."""
PICKS = {"gpu_seconds": total("gpu_seconds"), "busy_seconds": total("busy_seconds"), "known_seconds": KNOWN}


def held(row: Row) -> float | None:
    """GPUs on average, from their samples: one a second."""
    return ratio(row["gpu_seconds"], row["covered_s"])


def effective(row: Row) -> float | None:
    """None when no GPU told its activity."""
    return ratio(row["busy_seconds"], row["covered_s"]) if row["known_seconds"] else None


def busy_share(row: Row) -> float | None:
    return ratio(row["busy_seconds"], row["known_seconds"])


def use(shape: Shape) -> Effective:
    """From a row with PICKS."""
    return Effective(
        gpus=shape.figure(held, figures.GPUS, "gpu_seconds"),
        effective=shape.figure(effective, figures.GPUS, "known_seconds"),
        busy_share=shape.figure(busy_share, figures.SHARE, "known_seconds"),
    )


def effective_gpus(window: Window, model: str | None = None) -> Effective:
    """Of one model, or of the whole fleet with its spare GPUs. Raises django.db.Error."""
    since, until = one_cell(window, Level.MINUTE)
    rows = read(Ask(POOLS, {"model": model}, ("model", "role"), PICKS, since, until), stored().hours_until)
    all_pools = together(rows, tuple(PICKS), ())
    return use(Shape(window, all_pools[0] if all_pools else None))
