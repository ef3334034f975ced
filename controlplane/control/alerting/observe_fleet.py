"""What rules about the fleet's own rows look at: pools, nodes and engines as the control loop recorded them. Reads only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from django.db.models import Count
from django.utils import timezone

from controlplane.core.alerts import Observation
from controlplane.core.lifecycle import SERVING
from controlplane.fleet import models

CRASHES_WITHIN = timedelta(minutes=30)
ON_ITS_WAY = frozenset({"planned", "starting", "verifying"})
MOVING = frozenset({"leaving", "verifying"})


@dataclass(frozen=True)
class Fleet:
    """What all rules need to know of, read once for a look."""

    now: float
    by_name: Mapping[str, models.Model] = field(default_factory=dict)
    pools: tuple[models.Pool, ...] = ()
    engines: tuple[models.Engine, ...] = ()
    nodes: tuple[models.Node, ...] = ()

    @property
    def serving(self) -> tuple[models.Engine, ...]:
        return tuple(engine for engine in self.engines if engine.state in SERVING)

    def desired_roles(self, model: str) -> frozenset[str]:
        """Roles of its pools that are to have engines."""
        return frozenset(pool.role for pool in self.pools if pool.model.name == model and pool.desired_engines)


def read_fleet(now: float) -> Fleet:
    """Wanted engines, models that are not being retired, nodes that ever reported. Raises django.db.Error."""
    return Fleet(
        now=now,
        by_name={row.name: row for row in models.Model.objects.filter(retiring=False)},
        pools=tuple(models.Pool.objects.filter(model__retiring=False).select_related("model")),
        engines=tuple(models.Engine.objects.filter(wanted=True, model__retiring=False).select_related("model")),
        nodes=tuple(models.Node.objects.exclude(seen_at=None).order_by("name")),
    )


def empty_pools(fleet: Fleet) -> list[Observation]:
    """Engines that take work, by pool. Not known while a pool's first engines are on their way and none has failed."""
    found = []
    for pool in fleet.pools:
        if not pool.desired_engines:
            continue
        own = [
            engine
            for engine in fleet.engines
            if engine.model_id == pool.model_id and (engine.role, engine.arm) == (pool.role, pool.arm)
        ]
        serving = sum(_takes_work(engine) for engine in own)
        first = not serving and all(each.state in ON_ITS_WAY and not each.failures and each.ready_at is None for each in own)
        arm = "" if pool.arm == models.MAIN else f"/{pool.arm}"
        name = pool.model.name
        found.append(
            Observation(
                subject=f"pool:{name}/{pool.role}{arm}",
                value=None if own and first else float(serving),
                model=name,
                label=f"{name} {pool.role}{' of the canary' if arm else ''}",
                facts={"serving": serving, "desired": pool.desired_engines, "role": pool.role},
            )
        )
    return found


def _takes_work(engine: models.Engine) -> bool:
    return engine.state == "ready" and not engine.held and engine.move_phase not in MOVING


def silent_nodes(fleet: Fleet, control_ticks: bool) -> list[Observation]:
    """Seconds since each node's agent was heard; not known while control itself hears nothing (`control_ticks`)."""
    return [
        Observation(
            subject=f"node:{node.name}",
            value=max(0.0, fleet.now - node.seen_at.timestamp()) if control_ticks and node.seen_at else None,
            label=f"node {node.name}",
            facts={"lost": node.lost},
        )
        for node in fleet.nodes
    ]


def crashing_engines(fleet: Fleet) -> list[Observation]:
    """How often each engine failed in a row, or began anew in the last half hour, whichever is more."""
    since = timezone.now() - CRASHES_WITHIN
    rows = models.Incarnation.objects.filter(started_at__gte=since, engine__in=[each.pk for each in fleet.engines])
    starts = Counter(dict(rows.order_by().values_list("engine").annotate(Count("pk"))))
    return [
        Observation(
            subject=f"engine:{engine.pk}",
            value=float(max(engine.failures, starts[engine.pk] - 1)),
            model=engine.model.name,
            label=label_of(engine),
            facts={"failures": engine.failures, "starts": starts[engine.pk], "reason": engine.reason[:200]},
        )
        for engine in fleet.engines
    ]


def label_of(engine: models.Engine) -> str:
    return f"{engine.label} of {engine.model.name}"
