"""The fleet's tables and its heat map to take away."""

from __future__ import annotations

import time

from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext

from controlplane.console.data import BadQuery, answer, data, window_of
from controlplane.console.history import RANGES
from controlplane.telemetry.fleet_view import read_operations
from controlplane.telemetry.queries.engines import engine_figures
from controlplane.telemetry.queries.exports import Table, figures_table, utc
from controlplane.telemetry.queries.heat import Heat, gpu_heat

MOST_OPERATIONS = 10_000
MOST_CELLS = 500_000


@data
def engines(request: HttpRequest) -> HttpResponse:
    """Figures of every engine that reported in the window (data.window_of; a quarter of an hour if none is asked for)."""
    found = engine_figures(window_of(request.GET, time.time(), "15m"))
    return answer(request, "engines", lambda: found, lambda: figures_table(found))


@data
def operations(request: HttpRequest) -> HttpResponse:
    """The newest MOST_OPERATIONS."""
    found = read_operations(Q(), MOST_OPERATIONS)
    return answer(request, "operations", lambda: found, lambda: figures_table(found))


@data
def heat(request: HttpRequest) -> HttpResponse:
    """?span_s=900&step_s=5, as the page offers: the busy share of every GPU, cell by cell."""
    asked = (request.GET.get("span_s", ""), request.GET.get("step_s", ""))
    span_s, cell_s = next((each for each in RANGES if asked == tuple(map(str, each))), (0, 0))
    if not span_s:
        raise BadQuery(gettext("Ask for a range that the page offers (span_s and step_s)."))
    found = gpu_heat(time.time(), span_s, cell_s)
    if len(found.gpus) * len(found.starts) > MOST_CELLS:
        raise BadQuery(gettext("This table has more cells than one file holds: ask for the GPUs' minutes instead."))
    return answer(request, "gpu-activity", lambda: found, lambda: _cells(found))


def _cells(heat: Heat) -> Table:
    """A row per GPU and cell that was recorded."""
    return Table(
        ["time", "node", "gpu", "role", "busy"],
        ["UTC", "", "", "", "share"],
        [
            [utc(start), gpu.node, gpu.uuid, role, busy]
            for gpu in heat.gpus
            for start, role, busy in zip(heat.starts, gpu.roles, gpu.busy, strict=True)
            if role is not None
        ],
    )
