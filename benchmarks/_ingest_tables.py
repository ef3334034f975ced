"""What ingest left in PostgreSQL: whether everything that was sent is there once, and what it takes on disk."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

DAY_S = 86_400
MINUTE_IS_IN_AFTER_S = 90.0
"""Longer than a minute that was just begun takes until all its rows are written."""
QUERIES = {
    "seconds of nodes": "SELECT count(*) FROM telemetry_node_second",
    "samples of GPUs in minutes": "SELECT coalesce(sum(samples), 0) FROM telemetry_gpu_minute",
    "samples of engines in ten seconds": "SELECT coalesce(sum(samples), 0) FROM telemetry_engine_10s",
    "requests": "SELECT count(*) FROM telemetry_request",
    "requests in minutes of models": "SELECT coalesce(sum(ok), 0) FROM telemetry_model_minute",
}


def expected(gpus: int, engines: int, requests: int, seconds: int) -> dict[str, int]:
    """What so many seconds of a fleet leave, by the names of QUERIES."""
    per_second = (gpus // 8, gpus // 8 * 8, engines, requests, requests)
    return {name: count * seconds for name, count in zip(QUERIES, per_second, strict=True)}


def stored_counts(wanted: Mapping[str, int]) -> dict[str, int]:
    """As the tables have it, as soon as they have what is wanted or the newest minutes must be in."""
    from django.db import connection

    deadline = time.monotonic() + MINUTE_IS_IN_AFTER_S
    while True:
        found = {}
        with connection.cursor() as cursor:
            for name, query in QUERIES.items():
                cursor.execute(query)
                found[name] = int(cursor.fetchone()[0])
        if found == wanted or time.monotonic() > deadline:
            return found
        time.sleep(2.0)


def tell_counts(wanted: Mapping[str, int], found: Mapping[str, int]) -> bool:
    """Whether they agree."""
    for name, count in wanted.items():
        note = "all there once" if found[name] == count else f"DIFFERS by {found[name] - count:+,}"
        print(f"{name}: {count:,} sent, {found[name]:,} stored: {note}")
    return dict(wanted) == dict(found)


def tell_disk() -> None:
    """Bytes a row of what was written (indexes and TOAST too), times the rows of a day and of the time they are kept."""
    from django.db import connection

    from controlplane.config import config
    from controlplane.telemetry.partitions import keep

    query = """
        SELECT count(*), count(DISTINCT at), extract(epoch FROM max(at) - min(at))::float8,
               (SELECT sum(pg_total_relation_size(inhrelid)) FROM pg_inherits WHERE inhparent = '{0}'::regclass)::float8
        FROM {0}
    """
    day_total = kept_total = rows_total = 0.0
    print("                           rows/s     B/row   GB a day   kept   GB kept")
    for table, kept in keep(config()).items():
        with connection.cursor() as cursor:
            cursor.execute(query.format(table.name))
            found: tuple[Any, ...] = cursor.fetchone()
        rows, moments, span_s, size = found
        if not rows or moments < 2:
            continue
        per_s = rows / (span_s * moments / (moments - 1))
        day = per_s * DAY_S * size / rows / 1e9
        kept_days = kept.total_seconds() / DAY_S
        kept_gb = day * kept_days
        print(f"  {table.name:22} {per_s:>9,.1f} {size / rows:>9,.0f} {day:>10.2f} {_span(kept_days):>6} {kept_gb:>9.1f}")
        day_total, kept_total, rows_total = day_total + day, kept_total + kept_gb, rows_total + per_s
    print(f"  {'all':22} {rows_total:>9,.1f} {'':>9} {day_total:>10.2f} {'':>6} {kept_total:>9.1f}")


def _span(days: float) -> str:
    return f"{days:g} d" if days >= 1 else f"{days * 24:g} h"
