"""Whether ingest keeps up with a large fleet on one core: lag, processor time, rows, and disk a day from real tables.

    manage.py bench ingest [--gpus N] [--engines N] [--requests N] [--seconds S] [--warm-up S] [--kill-after S]
                              [--work]

Real PostgreSQL and Valkey with the fleet's rows; its agents' records (benchmarks/_telemetry.py) once a second each,
spread over the second, and a router's records of `--requests` finished requests. The ingest process is kept on one core,
everything else on the others. Lag: how old the newest entry of the stream is that was read into rows (stored), and the
newest sample in the live rows (live), asked four times a second on Valkey's clock from the warm-up's end until the last
second was sent. Rows are written when their second, ten seconds or minute has been over for 3 s (minutes of GPUs 3 to 9 s),
which is no lag. `--kill-after`: SIGKILL then, and started again at once. `--work`: the parts of ingest one after the other,
and what each takes of a processor. Exit 1 if a lag is ever beyond 2 s (but for `--kill-after`), or if the tables do not hold
every record that was sent exactly once.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import psutil
from _servers import servers

from controlplane.core import names

if TYPE_CHECKING:
    from _telemetry import Node
    from redis import Redis

ROOT = Path(__file__).parent.parent
LIMIT_S = 2.0
SLICES = 20
ASK_EVERY_S = 0.25


def main() -> int:
    options = _options()
    with servers() as pids:
        cores = sorted(os.sched_getaffinity(0))
        rest = set(cores[:-1]) or set(cores)
        for pid in (0, *pids):
            os.sched_setaffinity(pid, rest)
        return _measure(options, cores[-1], pids)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="manage.py bench ingest", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=8192, metavar="N", help="eight a node (default 8192)")
    parser.add_argument("--engines", type=int, default=1024, metavar="N", help="spread over the nodes (default 1024)")
    parser.add_argument("--requests", type=int, default=100, metavar="N", help="finished each second (default 100)")
    parser.add_argument("--seconds", type=int, default=600, metavar="S")
    parser.add_argument("--warm-up", type=int, default=20, metavar="S", help="not counted (default 20)")
    parser.add_argument("--work", action="store_true", help="only what a second of the fleet costs, on a busy machine too")
    parser.add_argument("--kill-after", type=int, metavar="S", help="kill -9 then, start again at once")
    return parser.parse_args()


def _measure(options: argparse.Namespace, core: int, servers: Sequence[int]) -> int:
    import django

    os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
    django.setup()
    from _large_fleet import make_fleet
    from _telemetry import Fleet
    from django.conf import settings
    from django.core.management import call_command
    from redis import Redis

    call_command("migrate", database="owner", verbosity=0)
    nodes = make_fleet(options.gpus, options.engines)
    valkey = Redis.from_url(settings.TELEMETRY_URL)
    if options.work:
        from _ingest_tables import tell_disk
        from _ingest_work import Work

        asyncio.run(Work(valkey, nodes, options.requests).run(options.seconds, options.warm_up))
        tell_disk()
        return 0
    fleet = Fleet(valkey, nodes)
    watch = Watch(valkey, core)
    watch.start_ingest()
    watcher = threading.Thread(target=watch.run)
    watcher.start()
    try:
        sent = _send(fleet, nodes, options, watch, servers)
        return _tell(options, watch, sent)
    finally:
        watch.over.set()
        watcher.join()
        watch.kill_ingest()


@dataclass
class Sent:
    """What went into the stream while it was counted. Seconds of processor time of ingest, PostgreSQL, Valkey."""

    late_s: float = 0.0
    cpu: dict[str, float] = field(default_factory=dict)
    wall_s: float = 0.0


def _send(fleet: Any, nodes: Sequence[Node], options: argparse.Namespace, watch: Watch, servers: Sequence[int]) -> Sent:
    """Second by second; nothing is caught up that came late, it is sent late and said."""
    engines = [id for node in nodes for id, _ in node.engines]
    models = sorted({model for node in nodes for _, model in node.engines})
    sent = Sent()
    used: dict[str, float] = {}
    counted_at = 0.0
    due, offset_s = time.monotonic(), time.time() - time.monotonic()
    for second in range(options.warm_up + options.seconds):
        if second == options.warm_up:
            watch.counts.set()
            used, counted_at = _cpu(watch.ingest.pid, servers), time.monotonic()
        if options.kill_after is not None and second == options.warm_up + options.kill_after:
            watch.kill_and_start()
            used, counted_at = _cpu(watch.ingest.pid, servers), time.monotonic()
        parts = list(fleet.second(SLICES))
        for part in parts:
            time.sleep(max(0.0, due - time.monotonic()))
            sent.late_s = max(sent.late_s, time.monotonic() - due)
            fleet.send(part, due + offset_s)
            due += 1.0 / len(parts)
        fleet.requests(options.requests, models, engines, time.time())
    watch.counts.clear()
    sent.wall_s = time.monotonic() - counted_at
    now = _cpu(watch.ingest.pid, servers)
    sent.cpu = {name: now[name] - used[name] for name in now}
    return sent


def _cpu(ingest: int, servers: Sequence[int]) -> dict[str, float]:
    """Processor time so far; processes of PostgreSQL that have ended count with their parent."""
    found = {}
    for name, pid in zip(("ingest", "postgresql", "valkey"), (ingest, *servers), strict=True):
        process = psutil.Process(pid)
        own = process.cpu_times()
        found[name] = own.user + own.system + own.children_user + own.children_system
        for child in process.children(recursive=True):
            times = child.cpu_times()
            found[name] += times.user + times.system
    return found


class Watch:
    """Asks all the time how old the newest is that the tables and the live rows do not have yet."""

    def __init__(self, valkey: Redis, core: int) -> None:
        self.over, self.counts = threading.Event(), threading.Event()
        self.stored: list[float] = []
        self.live: list[float] = []
        self.killed_at: float | None = None
        self.well_again: dict[str, float] = {}
        """Seconds after it was killed until a lag was within the limit, by its name."""
        self.peak_mb = 0.0
        self.length = 0
        self.gaps = 0
        self._valkey, self._core = valkey, core
        self._log = Path(tempfile.mkdtemp(prefix="twinpool-bench-")) / "ingest.log"
        self._began = time.time()

    def start_ingest(self) -> None:
        with self._log.open("ab") as log:
            self.ingest = subprocess.Popen(
                [sys.executable, "-m", "django", "ingest"], cwd=ROOT, stdout=log, stderr=log,
                preexec_fn=lambda: os.sched_setaffinity(0, {self._core}),
            )  # fmt: skip

    def kill_ingest(self) -> None:
        self.ingest.send_signal(signal.SIGKILL)
        self.ingest.wait()

    def kill_and_start(self) -> None:
        self.kill_ingest()
        self.killed_at = time.monotonic()
        self.start_ingest()

    def run(self) -> None:
        from django.db import connection

        while not self.over.wait(ASK_EVERY_S):
            seconds, micros = self._valkey.time()
            now = seconds + micros / 1e6
            stored, live = self._stored(), self._live()
            if self.counts.is_set():
                self.stored.append(now - stored)
                self.live.append(now - live)
                self._note_recovery()
                with suppress(psutil.NoSuchProcess):  # it was just killed
                    self.peak_mb = max(self.peak_mb, psutil.Process(self.ingest.pid).memory_info().rss / 1e6)
                self.length = max(self.length, int(self._valkey.xlen(names.TELEMETRY_STREAM)))
        connection.close()

    def _note_recovery(self) -> None:
        if self.killed_at is None:
            return
        after_s = time.monotonic() - self.killed_at
        for name, lag in (("stored", self.stored[-1]), ("live", self.live[-1])):
            if lag > LIMIT_S:
                self.well_again.pop(name, None)
            else:
                self.well_again.setdefault(name, after_s)

    def _stored(self) -> float:
        """Arrival of the newest entry that was read into rows, Unix seconds."""
        from controlplane.telemetry.intake import position_time
        from controlplane.telemetry.writer import last_position

        return max(position_time(last_position() or "0-0"), self._began)

    def _live(self) -> float:
        """When the newest sample in the fleet's live rows was taken."""
        rows: Any = self._valkey.hget(names.live_key("fleet"), "rows")
        nodes = (row for row in orjson.loads(rows or b"[]") if row["type"] == "node")
        return max((row["sampled_at"] or 0.0 for row in nodes), default=0.0) or self._began

    @property
    def said(self) -> str:
        return self._log.read_text()


def _tell(options: argparse.Namespace, watch: Watch, sent: Sent) -> int:
    from _ingest_tables import expected, stored_counts, tell_counts, tell_disk

    print(
        f"{options.gpus} GPUs on {options.gpus // 8} nodes, {options.engines} engines, {options.requests} requests/s, "
        f"{options.seconds} s; load average {', '.join(f'{load:.1f}' for load in os.getloadavg())} of {os.cpu_count()} cores"
    )
    print(f"sent at most {sent.late_s:.2f} s late; {watch.length:,} entries in the stream at the most")
    failed = False
    for name, lags in (("stored", watch.stored), ("live", watch.live)):
        ordered = sorted(lags)
        p50, p99, worst = (ordered[min(int(share * len(ordered)), len(ordered) - 1)] for share in (0.5, 0.99, 1.0))
        over = worst > LIMIT_S and options.kill_after is None
        failed |= over
        print(
            f"lag, {name:6}: p50 {p50:.2f}, p99 {p99:.2f}, most {worst:.2f} s (limit {LIMIT_S:g}){', OVER' if over else ''}"
        )
    for name, after_s in watch.well_again.items():
        print(f"lag, {name:6}: within {LIMIT_S:g} s again {after_s:.0f} s after it was killed")
    cpu = ", ".join(f"{name} {seconds / sent.wall_s:.0%}" for name, seconds in sent.cpu.items())
    print(f"of a core: {cpu}; ingest's memory {watch.peak_mb:.0f} MB at the most", flush=True)
    wanted = expected(options.gpus, options.engines, options.requests, options.warm_up + options.seconds)
    failed |= not tell_counts(wanted, stored_counts(wanted))
    tell_disk()
    print("".join(f"  ingest: {line}\n" for line in watch.said.splitlines()[-5:]), end="")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
