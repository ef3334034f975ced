"""What pages read of the past: telemetry tables in, plain values out. Reads only."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.db import connection

from controlplane.telemetry.tables import moment

HEAT_CELL_S = 50
HEAT_SPAN_S = 7200
ROLES = {"p": "prefill", "d": "decode", "m": "mixed", "": ""}


@dataclass(frozen=True)
class GpuHeat:
    """One GPU's past. `busy[i]` is its mean busy share (0..1) in cell i, None where nothing was recorded (a gap, never 0);
    `roles[i]` the role it had most of that time: prefill, decode, mixed, "" (spare) or None in a gap."""

    uuid: str
    node: str
    roles: list[str | None]
    busy: list[float | None]


@dataclass(frozen=True)
class Heat:
    """`starts[i]`: Unix seconds at which cell i begins; a cell lasts `cell_s`. The last cell is still filling."""

    cell_s: int
    starts: list[int]
    gpus: list[GpuHeat] = field(default_factory=list)


HEAT = """
WITH cells AS (
    SELECT node, gpus, roles, tensor, dram, date_bin(%(cell)s, at, %(since)s) AS cell
    FROM telemetry_node_second WHERE at >= %(since)s AND at < %(until)s
)
SELECT node, uuid, cell, role, count(*) AS samples, avg(greatest(one.tensor, one.dram)) AS busy
FROM cells CROSS JOIN LATERAL unnest(gpus, roles, cells.tensor, cells.dram) AS one(uuid, role, tensor, dram)
GROUP BY node, uuid, cell, role ORDER BY node, uuid, samples
"""


def gpu_heat(now: float, span_s: int = HEAT_SPAN_S, cell_s: int = HEAT_CELL_S) -> Heat:
    """The busy share of every GPU over the last `span_s` seconds in cells of `cell_s`, with the role it had in each.

    Cells lie on multiples of `cell_s`, so that a page asking later gets the same cells moved on. A cell in which a GPU
    changed its role shows the role (and the mean under it) that it had for longer. GPUs come by node and uuid.
    """
    cells = math.ceil(span_s / cell_s)
    start = (int(now // cell_s) - cells + 1) * cell_s
    heat = Heat(cell_s, [start + index * cell_s for index in range(cells)])
    found: dict[tuple[str, str], GpuHeat] = {}
    since = moment(start)
    values: dict[str, Any] = {
        "cell": timedelta(seconds=cell_s),
        "since": since,
        "until": since + timedelta(seconds=cells * cell_s),
    }
    with connection.cursor() as cursor:
        cursor.execute(HEAT, values)
        # Ordered by samples: the role with most of them comes last and stays.
        for node, uuid, at, role, _, busy in cursor.fetchall():
            cell = int((at - since).total_seconds() // cell_s)
            gpu = found.setdefault((node, uuid), GpuHeat(uuid, node, [None] * cells, [None] * cells))
            gpu.roles[cell], gpu.busy[cell] = ROLES.get(role, ""), busy
    heat.gpus.extend(found.values())
    return heat
