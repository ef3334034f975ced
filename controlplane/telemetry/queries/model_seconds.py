"""A model in cells of ten seconds: from the recorded requests themselves, each by what it stands for, and the engines' own
ITL. Reads only.

A request counts in the cell in which it ended, as in the roll-ups. A cell in which no request ended is zero where an engine
of the model reported, and a gap where none did.
"""

from __future__ import annotations

import math
from typing import Any

from django.db import connection

from controlplane.core.sketches import GAMMA, MAX_INDEX, MIN_INDEX
from controlplane.telemetry.merging import pack
from controlplane.telemetry.queries.reading import ENGINES, Row, buckets, over, read
from controlplane.telemetry.queries.windows import Cells
from controlplane.telemetry.tables import moment

OUTCOMES = ("ok", "client_error", "engine_error", "cancelled", "cut")
TOKENS = ("retries", "prompt_tokens", "output_tokens", "cached_tokens", "kv_bytes")
SUMS = (*OUTCOMES, *TOKENS)
LATENCIES = ("ttft_ms", "handoff_ms")
LONGEST_S = 3600.0
"""Requests that arrived longer than this before the window are not looked for."""

ENDED = """
    (SELECT *, floor((extract(epoch FROM at + coalesce(total_ms, 0) * interval '1 ms') - %(first)s) / %(step)s)::int AS cell
     FROM telemetry_request WHERE model = %(model)s AND at >= %(before)s AND at < %(until)s) AS ended
"""
COUNTS = f"""
SELECT cell, {", ".join(f"coalesce(sum(weight) FILTER (WHERE outcome = '{name}'), 0)::float8" for name in OUTCOMES)},
       {", ".join(f"coalesce(sum(weight * {name}::float8), 0)" for name in TOKENS)}
FROM {ENDED} WHERE cell >= 0 AND cell < %(cells)s GROUP BY cell
"""  # noqa: S608  # names of ours
BUCKETS = f"""
SELECT cell, name, least(greatest(ceil(ln(greatest(value, 1e-9)) / %(log_gamma)s), %(lowest)s), %(highest)s)::int AS place,
       sum(weight)::float8
FROM {ENDED} CROSS JOIN LATERAL (VALUES {", ".join(f"('{name}', {name}::float8)" for name in LATENCIES)}) AS one(name, value)
WHERE cell >= 0 AND cell < %(cells)s AND stream AND value IS NOT NULL GROUP BY cell, name, place
"""  # noqa: S608


def rows(model: str, cells: Cells) -> list[Row]:
    """As `reading.read` gives them for the model's minutes, of these cells. Raises django.db.Error."""
    values: dict[str, Any] = {
        "model": model,
        "first": cells.since,
        "step": cells.step_s,
        "cells": len(cells.starts),
        "before": moment(max(cells.since - LONGEST_S, 0)),
        "until": moment(cells.until),
        "log_gamma": math.log(GAMMA),
        "lowest": MIN_INDEX,
        "highest": MAX_INDEX,
    }
    found = {row["cell"]: _nothing(row) for row in read(over(ENGINES, {"model": model}, (), {}, cells), 0.0)}
    _add_itl(found, model, cells)
    with connection.cursor() as cursor:
        cursor.execute(COUNTS, values)
        for cell, *sums in cursor.fetchall():
            row = found.setdefault(cell, _nothing({"cell": cell, "ends": float(cells.starts[cell] + cells.step_s)}))
            row |= dict(zip(SUMS, sums, strict=True))
        cursor.execute(BUCKETS, values)
        places: dict[tuple[int, str], list[tuple[int, float]]] = {}
        for cell, name, place, count in cursor.fetchall():
            places.setdefault((cell, name), []).append((place, count))
    for (cell, name), counts in places.items():
        found[cell][name] = pack(counts)
    for row in found.values():
        row["covered_s"] = row["told_s"] = float(cells.step_s)
    return [found[cell] for cell in sorted(found)]


def _nothing(row: Row) -> Row:
    return {**row, **dict.fromkeys(SUMS, 0.0), **dict.fromkeys((*LATENCIES, "itl_ms"))}


def _add_itl(found: dict[int, Row], model: str, cells: Cells) -> None:
    """Of the engines that answer clients token by token."""
    where = {"model": model, "role": ["decode", "mixed"]}
    for row in read(over(ENGINES, where, (), {"itl_ms": buckets("itl_ms")}, cells), 0.0):
        found[row["cell"]]["itl_ms"] = row["itl_ms"]
