"""An engine as its page needs it: identity, place, launch, starts and what was done with it. Reads only."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Q

from controlplane.control.launches import launch_of
from controlplane.core.launch import read_snapshot
from controlplane.fleet import models
from controlplane.telemetry.fleet_view import read_operations

STARTS = 50
OPERATIONS = 30
PLAIN = (
    *("id", "label", "role", "arm", "kind", "state", "reason", "incarnation", "url", "compat", "failures", "held", "wanted"),
    *("weight", "spec_generation", "next_role", "next_arm", "move_phase"),
)


@dataclass(frozen=True)
class Start:
    """One start of an engine; times are Unix seconds, None where it did not come to that."""

    number: int
    started_at: float
    ready_at: float | None
    ended_at: float | None
    reason: str


def engine_facts(row: models.Engine) -> dict[str, Any]:
    """Plain values for a page's data block. `row` comes with its model. Raises django.db.Error."""
    pool = models.Pool.objects.filter(model=row.model, role=row.role, arm=row.arm).first()
    return {
        **{name: getattr(row, name) for name in PLAIN},
        "model": row.model.name,
        "slo": {"ttft_ms": row.model.slo_ttft_ms, "itl_ms": row.model.slo_itl_ms},
        **{name: unix(getattr(row, name)) for name in ("created_at", "state_since", "started_at", "ready_at", "retry_at")},
        "ranks": _ranks(row),
        "launch": _launch(row, pool),
        "pool": {"desired": pool.desired_engines, "floor": pool.floor} if pool else None,
        "starts": [vars(start) for start in starts(row)],
        "operations": [vars_of(each) for each in read_operations(_about(row), OPERATIONS)],
    }


def vars_of(operation: Any) -> dict[str, Any]:
    """What the page shows of an operation."""
    shown = ("number", "verb", "model", "state", "actor", "reason", "outcome", "created_at", "finished_at", "subject")
    return {name: getattr(operation, name) for name in shown}


def starts(row: models.Engine) -> list[Start]:
    """The newest first."""
    found = row.incarnations.order_by("-number")[:STARTS]
    return [
        Start(each.number, each.started_at.timestamp(), unix(each.ready_at), unix(each.ended_at), each.reason)
        for each in found
    ]


def _about(row: models.Engine) -> Q:
    """Operations with a step of this engine, or asked for it by name."""
    stepped = models.Step.objects.filter(engine=row.id).values("operation")
    asked = models.AuditEntry.objects.filter(subject=f"engine:{row.id}").values("operation")
    return Q(pk__in=stepped) | Q(pk__in=asked)


def _ranks(row: models.Engine) -> list[dict[str, Any]]:
    ranks = row.ranks.select_related("node").prefetch_related("reservations__gpu").order_by("index")
    return [
        {
            "index": rank.index,
            "node": rank.node.name,
            "lost": rank.node.lost,
            "gpus": [
                {"uuid": gpu.uuid, "index": gpu.index, "kind": gpu.kind, "memory": gpu.memory_bytes}
                for gpu in sorted((each.gpu for each in rank.reservations.all()), key=lambda gpu: gpu.index)
            ],
        }
        for rank in ranks
    ]


def _launch(row: models.Engine, pool: models.Pool | None) -> dict[str, Any]:
    """What it was started with; `outdated`: its pool launches something else now."""
    launch = read_snapshot(row.launch) or launch_of(row.model, row.tensor_parallel)
    wanted = launch_of(row.model, pool.tensor_parallel, pool.pipeline_parallel) if pool else launch
    return {
        "source": launch.source,
        "connector": launch.connector,
        "tensor_parallel": launch.tensor_parallel,
        "pipeline_parallel": launch.pipeline_parallel,
        "kv_lease_s": launch.kv_lease_s,
        "args": dict(launch.args),
        "digest": launch.digest,
        "outdated": launch.digest != wanted.digest,
    }


def unix(moment: datetime | None) -> float | None:
    return moment.timestamp() if moment else None
