"""What models spent of their error budgets: how many requests, and gaps between tokens, were beyond their SLO. Reads
only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controlplane.telemetry.merging import Merged
from controlplane.telemetry.queries.models import failed
from controlplane.telemetry.queries.reading import MODELS, Ask, buckets, read, total
from controlplane.telemetry.queries.stored import stored
from controlplane.telemetry.queries.windows import Level, Window, one_cell

PICKS = {
    **{name: total(name) for name in ("engine_error", "cut")},
    **{name: buckets(name) for name in ("ttft_ms", "itl_ms")},
}


@dataclass(frozen=True)
class Limits:
    """A model's SLO, at p99."""

    ttft_ms: float
    itl_ms: float


@dataclass(frozen=True)
class Spent:
    """`requests`: streamed answers and what we lost or failed; `slow`: of these, beyond the TTFT or failed. `gaps`: between
    tokens; `slow_gaps`: beyond the ITL. `stale`: as of a Figure."""

    requests: float
    slow: float
    gaps: float
    slow_gaps: float
    stale: bool


def spent(window: Window, limits: Mapping[str, Limits]) -> dict[str, Spent]:
    """By model, of those with a limit that were recorded in the window; percentile buckets make it right within 1% of the
    limit. Raises django.db.Error."""
    since, until = one_cell(window, Level.MINUTE)
    rows = read(Ask(MODELS, {"model": list(limits)}, ("model",), PICKS, since, until), stored().hours_until)
    found = {}
    for row in rows:
        limit = limits[row["model"]]
        ttft, itl = (Merged.of(1, [(0, row[name] or b"")]) for name in ("ttft_ms", "itl_ms"))
        lost = failed(row)
        found[row["model"]] = Spent(
            requests=float(ttft.totals[0]) + lost,
            slow=ttft.above(limit.ttft_ms)[0] + lost,
            gaps=float(itl.totals[0]),
            slow_gaps=itl.above(limit.itl_ms)[0],
            stale=window.is_stale(row["ends"], Level.MINUTE),
        )
    return found
