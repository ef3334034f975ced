"""How long charts and tables of the past take with much of it: 64 GPUs, 16 engines, 3 models, 90 days.

    manage.py bench queries [--days N] [--runs N]

Loads what retention leaves of that time (benchmarks/_history.py) into a PostgreSQL of its own and asks every query as pages
do; then asks the web process for the documents that a model's page is drawn from. Prints the first and the median call of
each, and rows and bytes of each table; exit 1 beyond 150 ms for a chart or the engines of one model over 24 hours, or
400 ms over 90 days (medians), as a query or over HTTP.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from _servers import servers

DAY_S, HOUR_S = 86_400, 3600
LIMITS_MS = {"24 h": 150.0, "90 d": 400.0}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="manage.py bench queries", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--days", type=int, default=90, metavar="N", help="of minutes and hours (default 90)")
    parser.add_argument("--runs", type=int, default=9, metavar="N", help="of each query after the first (default 9)")
    options = parser.parse_args()
    with servers():
        return _measure(options)


def _measure(options: argparse.Namespace) -> int:
    import django

    os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
    django.setup()
    from django.core.management import call_command

    call_command("migrate", database="owner", verbosity=0)
    from _history import History

    now = float(int(time.time() // HOUR_S) * HOUR_S + 1200)
    History(now, options.days).load()
    _print_tables()
    print(f"load average of {os.cpu_count()} cores: {', '.join(f'{load:.1f}' for load in os.getloadavg())}\n")
    asked_within = _ask(now, options.runs)
    from _chart_pages import ask_pages

    return int(not (ask_pages(LIMITS_MS, options.runs) and asked_within))


def _print_tables() -> None:
    from django.db import connection

    query = """
        SELECT parent.relname, sum(child.reltuples)::bigint, sum(pg_total_relation_size(child.oid))::bigint
        FROM pg_inherits JOIN pg_class parent ON parent.oid = inhparent JOIN pg_class child ON child.oid = inhrelid
        WHERE parent.relkind = 'p' GROUP BY 1 HAVING sum(child.reltuples) > 0 ORDER BY 3 DESC
    """
    with connection.cursor() as cursor:
        cursor.execute(query)
        for name, rows, size in cursor.fetchall():
            print(f"  {name:24} {rows:>10,} rows {size / 1e6:>8,.0f} MB  {size / max(rows, 1):>6,.0f} B/row")


@dataclass(frozen=True)
class Question:
    name: str
    span: str
    ask: Callable[[], Any]
    chart: bool = False
    """The limits are for it."""


def _questions(now: float) -> Iterator[Question]:
    from controlplane.telemetry.queries import (
        engines,
        gpus,
        handoffs,
        markers,
        models,
        pairs,
        pools,
        requests,
        transfers,
        waste,
    )
    from controlplane.telemetry.queries.effective import effective_gpus
    from controlplane.telemetry.queries.records import RequestFilter
    from controlplane.telemetry.queries.windows import Window

    model = "llama-70b"
    for name, span_s in (("15 min", 900), ("24 h", DAY_S), ("90 d", 90 * DAY_S)):
        window = Window.last(span_s, now)
        yield Question("latency and rates of a model", name, lambda w=window: models.model_series(model, w), True)
        yield Question("load and use of its pools", name, lambda w=window: pools.pool_series(model, w), True)
        yield Question("KV transfers, with heat", name, lambda w=window: transfers.transfer_series(model, w), True)
        yield Question("figures of its engines", name, lambda w=window: engines.engine_figures(w, model), True)
        yield Question("figures of a model", name, lambda w=window: models.model_figures(model, w))
        yield Question("figures of all pools", name, lambda w=window: pools.pool_figures(w))
        yield Question("transfers of all pools", name, lambda w=window: transfers.transfer_figures(w))
        yield Question("pair matrix", name, lambda w=window: pairs.pair_figures(model, w))
        yield Question("handoff split", name, lambda w=window: handoffs.handoff_split(model, w))
        yield Question("effective GPUs", name, lambda w=window: effective_gpus(w))
        yield Question("markers", name, lambda w=window: markers.operation_markers(w, "mixtral"))
    day, hour = Window.last(DAY_S, now), Window.last(HOUR_S, now)
    yield Question("waste", "30 d", lambda: waste.thirty_days(now))
    yield Question("waste", "today", lambda: waste.today(now, now - 0.6 * DAY_S))
    yield Question("an engine's chart", "24 h", lambda: engines.engine_series(f"{model}-d0", day))
    yield Question("all engines", "1 h", lambda: engines.engine_figures(hour))
    yield Question("a GPU's chart", "24 h", lambda: gpus.gpu_series("g1", day))
    yield Question("all GPUs", "24 h", lambda: gpus.gpu_figures(day))
    week, today = RequestFilter(now - 7 * DAY_S, now), RequestFilter(now - DAY_S, now)
    yield Question("requests, newest", "7 d", lambda: requests.search(week))
    yield Question("requests, slowest", "24 h", lambda: requests.search(today, "slowest"))
    yield Question("requests, counted", "24 h", lambda: requests.summary(today, now))


def _ask(now: float, runs: int) -> bool:
    """Whether all charts are within their limits."""
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    within = True
    print(f"{'':32} {'span':>7} {'queries':>7} {'first':>8} {'median':>8} {'worst':>8}  ms")
    for question in _questions(now):
        taken = []
        with CaptureQueriesContext(connection) as captured:
            taken.append(_ms(question.ask))
        taken += [_ms(question.ask) for _ in range(runs)]
        median = statistics.median(taken[1:])
        limit = LIMITS_MS.get(question.span) if question.chart else None
        over = limit is not None and median > limit
        within &= not over
        note = f"  limit {limit:.0f}{', OVER' if over else ''}" if limit else ""
        times = "".join(f" {value:>8.1f}" for value in (taken[0], median, max(taken[1:])))
        print(f"{question.name:32} {question.span:>7} {len(captured):>7}{times}{note}", flush=True)
    return within


def _ms(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000


if __name__ == "__main__":
    sys.exit(main())
