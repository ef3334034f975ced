"""The rows of a fleet of 64 GPUs for the console's tests, recorded in tests/data/live_fleet.json, moved to any moment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TIMES = ("state_since", "sampled_at", "heard_at", "created_at", "finished_at")
RECORDED = json.loads((Path(__file__).parent / "data" / "live_fleet.json").read_text(encoding="utf-8"))


def rows(now: float) -> list[dict[str, Any]]:
    """All rows of topic "fleet" as if recorded at `now`, fresh copies."""
    shift = now - RECORDED["at"]
    moved = []
    for recorded in RECORDED["rows"]:
        row = json.loads(json.dumps(recorded))
        row |= {name: row[name] + shift for name in TIMES if row.get(name) is not None}
        moved.append(row)
    return moved


def find(all_rows: list[dict[str, Any]], id: str) -> dict[str, Any]:
    return next(row for row in all_rows if row["id"] == id)
