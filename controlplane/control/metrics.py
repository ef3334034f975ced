"""Series of a control worker for Prometheus: its ticks, the facts they read, and the fleet as the last one saw it.

Of several workers one ticks at a time; each tells what it did itself and what it saw last. Operations and alerts are counted
in PostgreSQL, so that it does not matter who ended them; while it is away these series are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from django.db import Error as DatabaseError
from django.db import connection
from django.db.models import Count
from prometheus_client import Histogram
from prometheus_client.metrics_core import Metric

from controlplane.alerts.models import Alert, AlertState
from controlplane.common.metrics import by, counter, gauge, one
from controlplane.core.lifecycle import ENDED
from controlplane.core.world import NodeState, World
from controlplane.fleet import models

TICK_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

TickEnd = Literal["done", "waited", "failed"]
"""waited: another worker held the lease all the time; failed: PostgreSQL or Valkey was away."""


@dataclass(frozen=True)
class Seen:
    """The end of a tick: what was desired and observed, and the newest table. `at`: Unix seconds."""

    world: World
    stamp: tuple[int, int]
    at: float


class TickCounts:
    """What this worker's loop has done."""

    def __init__(self) -> None:
        self.ends: Counter[str] = Counter(dict.fromkeys(get_args(TickEnd), 0))
        self.seconds = Histogram(
            "twinpool_control_tick_seconds",
            "How long ticks took that this worker did.",
            buckets=TICK_BOUNDS_S,
            registry=None,
        )
        self.seen: Seen | None = None


def control_series(counts: TickCounts, cpu_s: float, fact_ages: Mapping[str, float], facts_refused: int) -> Iterable[Metric]:
    """`cpu_s`: of all ticks; `fact_ages`: seconds since the newest fact of each key ("agent:n1") was heard;
    `facts_refused`: keys whose fact is refused now."""
    yield counter("twinpool_control_ticks_total", "Ticks by how they ended.", by(counts.ends), ("result",))
    yield from counts.seconds.collect()
    yield counter("twinpool_control_tick_cpu_seconds_total", "Processor time of ticks.", one(cpu_s))
    yield gauge(
        "twinpool_control_fact_age_seconds",
        "Since the newest fact of an agent or router was heard; those silent for a day are forgotten.",
        [(key.split(":", 1), age) for key, age in fact_ages.items()],
        ("kind", "name"),
    )
    yield gauge("twinpool_control_facts_refused", "Facts in Valkey that are not believed now.", one(facts_refused))
    yield from _seen(counts.seen)
    yield from _counted()


def _seen(seen: Seen | None) -> Iterable[Metric]:
    world = seen.world if seen else World(0.0, 0.0)
    stamp = seen.stamp if seen else None
    yield gauge(
        "twinpool_control_last_tick_timestamp_seconds", "Unix time of the last tick's end.", one(seen.at if seen else None)
    )
    yield gauge("twinpool_control_table_epoch", "Of the newest routing table.", one(stamp[0] if stamp else None))
    yield gauge("twinpool_control_table_generation", "Of the newest routing table.", one(stamp[1] if stamp else None))
    yield gauge(
        "twinpool_control_router_generation",
        "Of the table that a router has acknowledged.",
        [((router.router,), router.generation) for router in world.routers],
        ("router",),
    )
    yield gauge(
        "twinpool_control_router_current",
        "1 if a router has acknowledged the newest table.",
        [((router.router,), (router.epoch, router.generation) == stamp) for router in world.routers],
        ("router",),
    )
    yield gauge("twinpool_nodes", "Nodes by state.", by(Counter(map(_state_of_node, world.nodes))), ("state",))
    engines = Counter((each.model, each.role, each.arm, each.state) for each in world.engines)
    yield gauge("twinpool_engines", "Engines by state.", engines.items(), ("model", "role", "arm", "state"))
    yield gauge(
        "twinpool_engines_desired",
        "Engines that a pool should have.",
        [(pool.key, pool.desired) for pool in world.pools],
        ("model", "role", "arm"),
    )
    held = Counter(gpu.engine != "" for gpu in world.gpus)
    yield gauge("twinpool_gpus_held", "GPUs that an engine holds.", one(held[True]))
    yield gauge("twinpool_gpus_spare", "GPUs that no engine holds.", one(held[False]))
    yield gauge(
        "twinpool_pairs_failed",
        "Pairs of running engines between which KV was not seen to move.",
        one(len(world.failed_pairs)),
    )


def _state_of_node(node: NodeState) -> str:
    return "lost" if node.lost else "silent" if node.fact is None else "cordoned" if node.cordoned else "ok"


def _counted() -> Iterable[Metric]:
    """What PostgreSQL counts; nothing while it is away."""
    try:
        rows = list(models.Operation.objects.values_list("verb", "state").annotate(count=Count("pk")).order_by())
        open_alerts = Alert.objects.exclude(state=AlertState.RESOLVED).values_list("rule", "severity", "state")
        alerts = list(open_alerts.annotate(count=Count("pk")).order_by())
    except DatabaseError:
        return
    finally:
        connection.close()  # scrapes are rare, and this thread does nothing else
    labels = ("verb", "state")
    yield gauge(
        "twinpool_operations_open",
        "Operations that have not ended.",
        [((verb, state), count) for verb, state, count in rows if state not in ENDED],
        labels,
    )
    yield counter(
        "twinpool_operations_ended_total",
        "Operations by the state in which they ended, ever.",
        [((verb, state), count) for verb, state, count in rows if state in ENDED],
        labels,
    )
    yield gauge(
        "twinpool_alerts_open",
        "Alerts that are pending or firing.",
        [(key, count) for *key, count in alerts],
        ("rule", "severity", "state"),
    )
