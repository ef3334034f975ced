"""How long one tick of the control loop takes for a large fleet, and how much memory.

    manage.py bench reconcile [--nodes N] [--gpus N] [--models N] [--tensor-parallel N] [--ticks N]

Real PostgreSQL and Valkey with every row and every agent's fact: nodes full of engines in a prefill and a decode pool per
model (room is left for one more engine of each), 8 routers, all told anew every 5 s as agents do. A process of its own does
nothing but whole ticks (facts read and checked, rows written and read, plan, table, operations), one every 2 s: satisfied
ones, and then one after a rebalance of every fifth model. Prints the parts of a tick; exit 1 if the median of satisfied
ones is beyond 1 s, or memory beyond 300 MB.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _servers import servers

LIMIT_S = 1.0
LIMIT_MB = 300.0
TOLD_EVERY_S = 5.0
BEAT_S = 2.0
ROUTERS = 8

if TYPE_CHECKING:
    from controlplane.core.fake_node import FakeNode


def main() -> int:
    options = _options()
    if options.tick_only:
        return _ticks(options.ticks)
    with servers():
        return _measure(options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="manage.py bench reconcile", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=1000, metavar="N")
    parser.add_argument("--gpus", type=int, default=8, metavar="N", help="per node (default 8)")
    parser.add_argument("--models", type=int, default=50, metavar="N")
    parser.add_argument("--tensor-parallel", type=int, default=2, metavar="N", help="GPUs per engine (default 2)")
    parser.add_argument("--ticks", type=int, default=6, metavar="N")
    parser.add_argument("--tick-only", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _measure(options: argparse.Namespace) -> int:
    _django()
    from django.core.management import call_command

    call_command("migrate", database="owner", verbosity=0)
    nodes = _rows(options)
    over = threading.Event()
    teller = threading.Thread(target=_tell, args=(nodes, over))
    teller.start()
    try:
        time.sleep(TOLD_EVERY_S)
        command = [sys.executable, str(Path(__file__)), "--tick-only", "--ticks", str(options.ticks)]
        paths = os.pathsep.join((str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")))
        return subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, check=False).returncode
    finally:
        over.set()
        teller.join()


def _django() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    import django

    django.setup()


# --- the fleet -----------------------------------------------------------------------------------------------------------


def _rows(options: argparse.Namespace) -> list[FakeNode]:
    """Nodes whose GPUs are all taken but those of one engine per model, and the same as agents see it."""
    from django.utils import timezone

    from controlplane.control.launches import launch_of
    from controlplane.core.fake_node import FakeNode
    from controlplane.core.protocol import EngineFact
    from controlplane.fleet import models

    now, per_node = timezone.now(), options.gpus // options.tensor_parallel
    fleet = [FakeNode(f"n{i:04}", gpu_count=options.gpus) for i in range(options.nodes)]
    nodes = [models.Node(name=node.name, agent_boot=node.boot, seen_at=now, address="127.0.0.1") for node in fleet]
    rows = models.Node.objects.bulk_create(nodes)
    models.Gpu.objects.bulk_create(
        models.Gpu(uuid=gpu.uuid, node=row, index=gpu.index, kind=gpu.kind, memory_bytes=gpu.memory_bytes, simulated=True)
        for row, node in zip(rows, fleet, strict=True)
        for gpu in node.gpus
    )
    offered = [_model(f"m{i:02}", options.tensor_parallel) for i in range(options.models)]
    snapshots = {model.pk: launch_of(model, options.tensor_parallel).snapshot() for model in offered}
    engines, ranks, held = [], [], []
    for i in range(options.nodes * per_node - options.models):
        place, slot = divmod(i, per_node)
        node, model = fleet[place], offered[i % len(offered)]
        gpus = tuple(gpu.uuid for gpu in node.gpus[slot * options.tensor_parallel : (slot + 1) * options.tensor_parallel])
        role = "prefill" if i // len(offered) % 2 else "decode"
        engine = models.Engine(
            id=f"e-{i:06}",
            model=model,
            role=role,
            number=i,
            kind="simulated",
            compat="c",
            tensor_parallel=options.tensor_parallel,
            launch=snapshots[model.pk],
            state="ready",
            incarnation=1,
            url=f"http://127.0.0.1:{20000 + i % 9000}",
            started_at=now,
            ready_at=now,
        )
        ranks.append(models.Rank(engine=engine, node=rows[place]))
        held += [(gpu, ranks[-1]) for gpu in gpus]
        engines.append(engine)
        node.engines[engine.id, 0] = EngineFact(
            id=engine.id,
            model=model.name,
            rank=0,
            incarnation=1,
            spec_generation=1,
            state="ready",
            kind="simulated",
            pid=i,
            url=engine.url,
            started_at=now.timestamp(),
            ready_at=now.timestamp(),
            quiet_since=now.timestamp(),
            scraped_at=now.timestamp(),
            compat="c",
            gpus=gpus,
        )
    models.Engine.objects.bulk_create(engines)
    models.Rank.objects.bulk_create(ranks)
    models.Reservation.objects.bulk_create(models.Reservation(gpu_id=gpu, rank=rank) for gpu, rank in held)
    for pool in models.Pool.objects.all():
        pool.desired_engines = sum((each.model_id, each.role) == (pool.model_id, pool.role) for each in engines)
        pool.save()
    print(
        f"{len(fleet)} nodes, {models.Gpu.objects.count()} GPUs, {len(offered)} models, {len(engines)} engines", flush=True
    )
    return fleet


def _model(name: str, tensor_parallel: int) -> Any:
    from controlplane.fleet import models
    from controlplane.physics.catalog import read_config

    model = models.Model.objects.create(
        name=name,
        source=f"org/{name}",
        config=read_config("llama-3.1-70b"),
        engine_kind="simulated",
        mode="disaggregated",
        served_mode="disaggregated",
    )
    for role in ("prefill", "decode"):
        models.Pool.objects.create(model=model, role=role, tensor_parallel=tensor_parallel)
    return model


def _tell(nodes: list[FakeNode], over: threading.Event) -> None:
    """Facts of all agents and routers, again and again as they tell them."""
    import redis
    from django.conf import settings

    from controlplane.config import config
    from controlplane.core import names
    from controlplane.core.codec import encode
    from controlplane.core.protocol import EngineLoad, RouterFact
    from controlplane.core.signing import node_key, router_key, seal

    secret = config().fleet_secret()
    valkey = redis.Redis.from_url(settings.VALKEY_URL)
    engines = [id for node in nodes for id, _ in node.engines]
    seq = 0
    while not over.is_set():
        began, seq = time.monotonic(), seq + 1
        for node in nodes:
            fact = seal(node_key(secret, node.name), encode(node.fact(time.time())))
            valkey.set(names.fact_key("agent", node.name), fact, ex=names.FACT_TTL_S)
            if over.is_set():
                return
        for i in range(ROUTERS):
            loads = tuple(EngineLoad(id, 1, 1) for id in engines[i :: 4 * ROUTERS])
            router = RouterFact(f"r{i}", "boot", seq, time.time(), 0, 1 << 40, loads=loads)
            valkey.set(
                names.fact_key("router", router.router), seal(router_key(secret), encode(router)), ex=names.FACT_TTL_S
            )
        over.wait(max(0.0, TOLD_EVERY_S - (time.monotonic() - began)))


# --- the ticks -----------------------------------------------------------------------------------------------------------


class Parts:
    """Seconds by part of a tick."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

    def wrap(self, module: Any, name: str) -> None:
        """Time every call of a function where it is used."""
        original = getattr(module, name)

        def timed(*args: Any, **options: Any) -> Any:
            with self.part(name.strip("_")):
                return original(*args, **options)

        setattr(module, name, timed)


def _ticks(count: int) -> int:
    _django()
    from controlplane.control import loop as loop_module
    from controlplane.fleet import models

    loop, parts = loop_module.Loop(), Parts()
    loop.link_since = time.time() - 60
    for name in ("record_nodes", "gather", "record_losses", "record_engines", "reconcile", "apply", "advance_operations"):
        parts.wrap(loop_module, name)
    parts.wrap(loop, "_read_facts")
    parts.wrap(loop.table, "publish")
    took: list[float] = []
    changed: list[models.Model] = []
    for index in range(count + 1):
        if index == count:
            changed = list(models.Model.objects.order_by("name")[::5])
            for model in changed:
                prefill, decode = model.pools.order_by("-role")
                models.Pool.objects.filter(pk=prefill.pk).update(desired_engines=prefill.desired_engines - 2)
                models.Pool.objects.filter(pk=decode.pk).update(desired_engines=decode.desired_engines + 2)
        took.append(_tick(loop, parts, "after rebalances of every fifth model" if index == count else f"tick {index + 1}"))
        time.sleep(max(0.0, BEAT_S - took[-1]))
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    steady = sorted(took[1:count])
    median = steady[len(steady) // 2]
    print(
        f"one tick {median:.2f} s (median of {len(steady)}; slowest {steady[-1]:.2f} s, first of the process "
        f"{took[0]:.2f} s, with {len(changed)} rebalances {took[-1]:.2f} s), memory at most {peak_mb:.0f} MB; "
        f"load average of {os.cpu_count()} cores: {os.getloadavg()[0]:.1f}"
    )
    return int(median > LIMIT_S or peak_mb > LIMIT_MB)


def _tick(loop: Any, parts: Parts, name: str) -> float:
    parts.seconds.clear()
    began = time.perf_counter()
    began_cpu = time.process_time()
    plan = loop.tick()
    took, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    share = ", ".join(f"{part} {seconds:.2f}" for part, seconds in parts.seconds.items())
    print(f"{name}: {took:.2f} s (own processor time {cpu:.2f} s), {len(plan.actions)} actions ({share})", flush=True)
    return took


if __name__ == "__main__":
    sys.exit(main())
