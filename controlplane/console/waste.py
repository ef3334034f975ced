"""What all GPUs were held for and what of it was work: the fleet page's panel, and the same to take away."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse

from controlplane.console.data import answer, data
from controlplane.console.model_data import midnight
from controlplane.telemetry.queries.exports import Cell, Table, figures_table
from controlplane.telemetry.queries.results import PoolWaste, Waste
from controlplane.telemetry.queries.waste import thirty_days, today

TOTAL, SPARE = "total", "spare"


@data
def fleet(request: HttpRequest) -> HttpResponse:
    """Since the viewer's midnight (`?midnight=`, Unix seconds; else that of UTC) and over 30 days, by model and pool."""
    now = time.time()
    found = {"today": today(now, midnight(request.GET, now)), "30 d": thirty_days(now)}
    return answer(request, "waste", lambda: found, lambda: _table(found))


def _table(found: Mapping[str, Waste]) -> Table:
    lines: list[list[Cell]] = []
    head: Any = Table([], [], [])
    for span, waste in found.items():
        for name, pool in _lines(waste):
            head = figures_table([pool])
            lines.append([span, name, *head.rows[0]])
    return Table(["span", "line", *head.columns], ["", "", *head.units], lines)


def _lines(waste: Waste) -> Iterator[tuple[str, PoolWaste]]:
    """Each with what it is of: a model's sum, one of its pools, the spare GPUs, the sum of all."""
    for model in waste.models:
        yield "model", model.total
        yield from (("pool", pool) for pool in model.pools)
    if waste.spare:
        yield SPARE, waste.spare
    yield TOTAL, waste.total
