"""Whether disk is what was calculated, and stays so: days of a small fleet written and dropped by ingest's own parts.

    manage.py bench retention [--hours N] [--gpus N] [--engines N] [--requests N]

The records of `--gpus` GPUs, `--engines` engines and `--requests` finished requests a second become rows as in ingest, in
the stream's own time, which ends now; partitions are kept once a minute of it. Seconds of nodes are kept for 2 h as by
default, all else that is not kept for 90 days for 6 h, so that everything is dropped. Calculated: rows a second of such a
fleet (known), times bytes a row as the first hour has them, times how long rows are there. Prints what is there every six
hours, and exits 1 if at the end a table has rows older than they are kept and one partition is wide, lacks some that are
younger, or takes over a tenth more than was calculated (less is likely: the first hour's pages are not full).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from _servers import servers

HOUR_S, MINUTE_S = 3600, 60
FLUSH_EVERY_S = 30
TOLERATED = 0.1
KEPT_H = 6
LATE_S = 90
"""Of rows that are not written yet, and of upkeep once a minute."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="manage.py bench retention", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", type=int, default=34, metavar="N")
    parser.add_argument("--gpus", type=int, default=16, metavar="N", help="eight a node (default 16)")
    parser.add_argument("--engines", type=int, default=4, metavar="N", help="default 4")
    parser.add_argument("--requests", type=int, default=1, metavar="N", help="finished each second (default 1)")
    options = parser.parse_args()
    with servers(valkey=False):
        return _measure(options)


class Stream:
    """Takes what a Fleet sends as Valkey would, and hands it over."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, bytes | None]] = []
        self._serial = 0

    def pipeline(self, transaction: bool) -> Stream:
        return self

    def xadd(self, key: str, fields: Mapping[str, bytes], id: str, **options: Any) -> None:
        self._serial += 1
        self.entries.append((id.replace("*", str(self._serial)), fields["r"]))

    def xlen(self, key: str) -> None:
        pass

    def execute(self) -> list[Any]:
        return [self.entries[-1][0].encode(), len(self.entries)]


def _measure(options: argparse.Namespace) -> int:
    import django

    os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
    django.setup()
    from django.core.management import call_command

    call_command("migrate", database="owner", verbosity=0)
    from controlplane.config import Config
    from controlplane.telemetry.partitions import Partitions, keep

    short = dict.fromkeys(("keep_gpu_minute_days", "keep_engine_10s_days", "keep_request_days"), KEPT_H / 24)
    kept = {table: span.total_seconds() for table, span in keep(Config(**short)).items()}
    days = Days(options, Partitions(keep(Config(**short))))
    began = time.monotonic()
    found: dict[str, Found] = {}
    per_row: dict[str, float] = {}
    for hour in range(1, options.hours + 1):
        days.hour()
        if hour == 1 or hour % 6 == 0:
            found = {table.name: _look(table.name, days.now) for table in kept}
            per_row = per_row or {name: each.size / each.rows for name, each in found.items() if each.rows}
            total_mb = sum(each.size for each in found.values()) / 1e6
            print(f"after {hour:3} h: {total_mb:8.1f} MB; {days.dropped} partitions dropped", flush=True)
    taken = time.monotonic() - began
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"{options.hours} h in {taken:.0f} s; load average {load} of {os.cpu_count()} cores\n")
    return _compare(options, {table.name: span_s for table, span_s in kept.items()}, found, per_row)


class Days:
    """The fleet's time goes on by hours, as ingest would live through it."""

    def __init__(self, options: argparse.Namespace, partitions: Any) -> None:
        from _large_fleet import make_fleet
        from _telemetry import Fleet

        from controlplane.telemetry import fleet_view
        from controlplane.telemetry.intake import Intake, Refusals
        from controlplane.telemetry.rollups import Rollups
        from controlplane.telemetry.writer import Writer

        nodes = make_fleet(options.gpus, options.engines)
        self._stream = Stream()
        self._fleet = Fleet(self._stream, nodes, virtual=True)  # type: ignore[arg-type]
        self._engines = [id for node in nodes for id, _ in node.engines]
        self._models = sorted({model for node in nodes for _, model in node.engines})
        self._requests = options.requests
        self._view = fleet_view.read()
        self._intake, self._rollups = Intake(Refusals()), Rollups()
        self._partitions, self._writer = partitions, Writer(partitions)
        self.now = (int(time.time()) // HOUR_S - options.hours) * HOUR_S

    @property
    def dropped(self) -> int:
        return int(self._partitions.counts["dropped"])

    def hour(self) -> None:
        for second in range(HOUR_S):
            if second % MINUTE_S == 0:
                self._partitions.maintain(self.now)
            for part in self._fleet.second(1):
                self._fleet.send(part, self.now + 0.5)
            self.now += 1
            self._fleet.requests(self._requests, self._models, self._engines, self.now - 0.01)
            if self.now % FLUSH_EVERY_S == 0:
                self._flush()

    def _flush(self) -> None:
        position = self._stream.entries[-1][0]
        for sample in self._intake.take(self._stream.entries).samples:
            self._rollups.consume(sample, self._view)
        self._stream.entries.clear()
        self._rollups.advance(self.now)
        self._writer.write(self._rollups.closed(), position, self.now)


@dataclass(frozen=True)
class Found:
    rows: int
    size: float
    """Bytes, indexes and TOAST too."""
    oldest_s: float
    """How long ago the oldest row's time is."""
    width_s: float
    """Of a partition."""


def _look(table: str, now: float) -> Found:
    from django.db import connection

    query = f"""
        SELECT count(*), (SELECT coalesce(sum(pg_total_relation_size(inhrelid)), 0)::float8 FROM pg_inherits
                          WHERE inhparent = '{table}'::regclass),
               coalesce(%s - extract(epoch FROM min(at))::float8, 0), telemetry_partition_width_s('{table}')::float8
        FROM {table}
    """
    with connection.cursor() as cursor:
        cursor.execute(query, [now])
        return Found(*cursor.fetchone())


def _per_second(options: argparse.Namespace) -> dict[str, float]:
    """Rows a second of a fleet whose pools are all used, by table."""
    from _large_fleet import MODELS

    pools = min(options.engines, MODELS)  # of one engine each
    return {
        "telemetry_node_second": options.gpus // 8,
        "telemetry_gpu_minute": options.gpus / 60,
        "telemetry_engine_10s": options.engines / 10,
        "telemetry_pool_minute": pools / 60,
        "telemetry_model_minute": MODELS / 60,
        "telemetry_request": options.requests,
    }


def _compare(
    options: argparse.Namespace, kept_s: Mapping[str, float], found: Mapping[str, Found], per_row: Mapping[str, float]
) -> int:
    print(f"{'':24} {'rows/s':>7} {'B/row':>7} {'MB a day':>9} {'kept':>6} {'oldest':>8} {'calculated':>11} {'measured':>9}")
    failed = False
    for name, per_s in _per_second(options).items():
        seen, kept = found[name], kept_s[name]
        there_s = min(seen.oldest_s, options.hours * HOUR_S)
        calculated = per_s * per_row[name] * there_s
        too_old = seen.oldest_s > kept + seen.width_s + LATE_S
        lacking = seen.oldest_s < min(kept, options.hours * HOUR_S - LATE_S)
        off = seen.size / calculated - 1 > TOLERATED
        failed |= too_old or lacking or off
        note = "".join(
            f", {word}" for word, is_so in (("TOO OLD", too_old), ("LACKING", lacking), ("TOO LARGE", off)) if is_so
        )
        per_day_mb = per_s * per_row[name] * 86_400 / 1e6
        print(
            f"{name:24} {per_s:>7.2f} {per_row[name]:>7.0f} {per_day_mb:>9.1f} {kept / HOUR_S:>5.0f}h "
            f"{seen.oldest_s / HOUR_S:>7.2f}h {calculated / 1e6:>8.1f} MB {seen.size / 1e6:>6.1f} MB{note}"
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
