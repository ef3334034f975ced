"""How the REST API reads a large fleet: 1,000 engines on 512 GPUs' nodes, one web process, 80 requests a second.

    manage.py bench api [--rate N] [--seconds N] [--engines N]

Starts PostgreSQL, Valkey and one web process of its own, sends mixed reads at fixed times whatever the answers take (so
that a stall shows), then pages of 50 of each list one after the other and reads the web process's processor time. Exit 1 if
the p99 of the mixed reads is over 150 ms or a page of 50 takes more than 10 ms of processor time.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import sys
import time
from dataclasses import dataclass, field

import httpx
import psutil
from _servers import servers

LIMIT_P99_MS, LIMIT_CPU_MS = 150.0, 10.0
PAGES = 60
MIXED = (
    "models", "models/model-1", "models/model-2/mode", "pools?model=model-3", "engines?page_size=50",
    "engines?state=ready&role=decode", "engines/e-000007", "gpus?node=n0003", "nodes", "operations",
    "engines?model=model-4", "operations?open=true", "alerts", "audit", "operations/{operation}", "proposals",
)  # fmt: skip
LISTS = ("engines", "gpus", "nodes", "pools", "operations", "audit", "models")


@dataclass
class Times:
    """Of the mixed reads, in milliseconds."""

    by_address: dict[str, list[float]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def all(self) -> list[float]:
        return sorted(time_ms for times in self.by_address.values() for time_ms in times)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="manage.py bench api", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=80.0, metavar="N", help="requests a second (default 80)")
    parser.add_argument("--seconds", type=float, default=30.0, metavar="N", help="of mixed reads (default 30)")
    parser.add_argument("--engines", type=int, default=1000, metavar="N", help="in the database (default 1000)")
    options = parser.parse_args()
    with servers():
        return _measure(options)


def _measure(options: argparse.Namespace) -> int:
    import django

    os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
    os.environ["TWINPOOL_API_READS_PER_MINUTE"] = "1000000"
    django.setup()
    from django.core.management import call_command

    call_command("migrate", database="owner", verbosity=0)
    token, operation = _fill(options.engines)
    sys.path.insert(0, os.getcwd())
    from controlplane.stack.ports import free_port
    from tests.console_web import Web

    web = Web(free_port())
    web.start()
    try:
        assert web.process
        process = psutil.Process(web.process.pid)
        headers = {"authorization": f"Bearer {token}"}
        base = f"{web.url}/api/v1/"
        _warm(base, headers, operation)
        began, cpu = time.perf_counter(), _cpu_s(process)
        times = asyncio.run(_mixed(base, headers, operation, options.rate, options.seconds))
        share = (_cpu_s(process) - cpu) / (time.perf_counter() - began)
        pages = _pages(base, headers, process)
    finally:
        web.stop()
    return _report(options, times, share, pages)


def _fill(engines: int) -> tuple[str, int]:
    """A large fleet with a history, and an operator. Returns a token and the number of an operation."""
    from _large_fleet import make_fleet
    from django.contrib.auth.models import Group, User

    from controlplane.access.tokens import add_token
    from controlplane.control import actions
    from controlplane.control.actor import Actor
    from controlplane.fleet.models import Model

    make_fleet(engines, engines)
    root = Actor("root", "admin")
    for number in range(200):
        name = Model.objects.values_list("name", flat=True).order_by("pk")[number % 8]
        changed = actions.update_model(root, name, actions.Update(slo_itl_ms=40.0 + number % 7), reason="bench")
    user = User.objects.create_user("bench")
    user.groups.add(Group.objects.get_or_create(name="operator")[0])
    return add_token(root, "bench", "bench", days=1)[1], changed.pk


def _warm(base: str, headers: dict[str, str], operation: int) -> None:
    with httpx.Client(headers=headers, timeout=60) as client:
        for address in (*MIXED, *LISTS):
            client.get(base + address.format(operation=operation)).raise_for_status()


async def _mixed(base: str, headers: dict[str, str], operation: int, rate: float, seconds: float) -> Times:
    """Requests at times that were fixed before (exponential gaps): one that is answered late delays no other."""
    dice = random.Random(8)
    times = Times()
    limits = httpx.Limits(max_connections=200, max_keepalive_connections=200, keepalive_expiry=3.0)
    async with httpx.AsyncClient(headers=headers, timeout=60, limits=limits) as client:

        async def ask(address: str, due: float) -> None:
            answer = await client.get(base + address.format(operation=operation))
            times.by_address.setdefault(address, []).append((time.perf_counter() - due) * 1000)
            if not answer.is_success:
                times.wrong.append(f"{address}: {answer.status_code}")

        due, end = time.perf_counter(), time.perf_counter() + seconds
        asked: list[asyncio.Task[None]] = []
        while (due := due + dice.expovariate(rate)) < end:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            asked.append(asyncio.create_task(ask(dice.choice(MIXED), due)))
        await asyncio.gather(*asked)
    return times


def _pages(base: str, headers: dict[str, str], process: psutil.Process) -> dict[str, tuple[float, float]]:
    """Processor time and median time of a page of 50, in milliseconds, by list."""
    found = {}
    with httpx.Client(headers=headers, timeout=60) as client:
        for name in LISTS:
            waits, before = [], _cpu_s(process)
            for _ in range(PAGES):
                began = time.perf_counter()
                client.get(f"{base}{name}?page_size=50").raise_for_status()
                waits.append((time.perf_counter() - began) * 1000)
            found[name] = (_cpu_s(process) - before) / PAGES * 1000, statistics.median(waits)
    return found


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _report(options: argparse.Namespace, times: Times, share: float, pages: dict[str, tuple[float, float]]) -> int:
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    taken = times.all()
    p50, p99 = statistics.median(taken), taken[int(len(taken) * 0.99)]
    print(f"{options.engines} engines; load average of {os.cpu_count()} cores: {load}")
    print(f"mixed reads, {options.rate:g}/s for {options.seconds:g} s: {len(taken)} answers, {len(times.wrong)} wrong")
    print(
        f"  p50 {p50:.1f} ms, p99 {p99:.1f} ms (limit {LIMIT_P99_MS:g}), longest {taken[-1]:.0f} ms; web {share:.2f} cores"
    )
    slowest = sorted(times.by_address, key=lambda each: -statistics.median(times.by_address[each]))[:4]
    print("  slowest: " + ", ".join(f"{each} {statistics.median(times.by_address[each]):.1f} ms" for each in slowest))
    print(f"page of 50 (processor time, limit {LIMIT_CPU_MS:g} ms; median answer):")
    for name, (cpu_ms, wait_ms) in pages.items():
        print(f"  {name:<12}{cpu_ms:6.1f} ms {wait_ms:6.1f} ms")
    return int(p99 > LIMIT_P99_MS or bool(times.wrong) or max(cpu for cpu, _ in pages.values()) > LIMIT_CPU_MS)


if __name__ == "__main__":
    sys.exit(main())
