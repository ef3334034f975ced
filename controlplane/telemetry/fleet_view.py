"""Reads the fleet's rows as live topics need them (telemetry.view), in eight queries whatever the size."""

from __future__ import annotations

from collections import defaultdict

from django.db.models import Count, F, OuterRef, Q, Subquery

from controlplane.core.lifecycle import OVER
from controlplane.fleet.models import AuditEntry, Engine, Gpu, Model, Node, Operation, Pool, Rank, TableState
from controlplane.telemetry.rows import OperationRow
from controlplane.telemetry.view import EngineView, FleetView, GpuView, ModelView, PoolView

QUERIES = 8
OPERATIONS = 20
GONE = OVER | {"planned"}
"""States in which an engine that nobody wants any more is history and is not shown."""


def read() -> FleetView:
    """The fleet now. Raises django.db.Error when PostgreSQL is away."""
    gpus = _gpus()
    table = TableState.objects.filter(pk=1).values_list("generation", flat=True).first()
    return FleetView(
        nodes=dict(Node.objects.order_by("name").values_list("name", "lost")),
        gpus=gpus,
        models=_models(),
        engines=_engines(gpus),
        operations=_operations(),
        table_generation=table or 0,
    )


def _gpus() -> tuple[GpuView, ...]:
    found = (
        Gpu.objects.annotate(engine=F("reservation__rank__engine_id"))
        .order_by("node__name", "index")
        .values_list("uuid", "node__name", "index", "kind", "engine")
    )
    return tuple(GpuView(uuid, node, index, kind, engine or "") for uuid, node, index, kind, engine in found)


def _models() -> tuple[ModelView, ...]:
    pools = defaultdict(list)
    for pool in Pool.objects.order_by("id"):
        pools[pool.model_id].append(PoolView(pool.role, pool.desired_engines, pool.tensor_parallel))
    found = Model.objects.only("name", "mode", "connector", "slo_ttft_ms", "slo_itl_ms")
    return tuple(
        ModelView(model.name, model.mode, model.connector, model.slo_ttft_ms, model.slo_itl_ms, tuple(pools[model.pk]))
        for model in found
    )


def _engines(gpus: tuple[GpuView, ...]) -> dict[str, EngineView]:
    held, nodes = defaultdict(list), defaultdict(list)
    for gpu in gpus:
        held[gpu.engine].append(gpu)
    for engine_id, node in Rank.objects.order_by("engine_id", "index").values_list("engine_id", "node__name"):
        nodes[engine_id].append(node)
    shown = Engine.objects.filter(Q(wanted=True) | ~Q(state__in=GONE)).select_related("model")
    return {
        engine.id: EngineView(
            id=engine.id,
            label=engine.label,
            model=engine.model.name,
            role=engine.role,
            state=engine.state,
            state_since=engine.state_since.timestamp(),
            reason=engine.reason,
            incarnation=engine.incarnation,
            nodes=tuple(dict.fromkeys(nodes[engine.id])),
            gpus=tuple(held[engine.id]),
        )
        for engine in shown
    }


def _operations() -> tuple[OperationRow, ...]:
    subject = AuditEntry.objects.filter(operation=OuterRef("pk")).order_by("pk").values("subject")[:1]
    newest = Operation.objects.select_related("model").annotate(
        done=Count("steps", filter=Q(steps__state__in=("done", "skipped"))), total=Count("steps"), subject=Subquery(subject)
    )[:OPERATIONS]
    return tuple(
        OperationRow(
            id=f"operation:{operation.pk}",
            type="operation",
            number=operation.pk,
            verb=operation.verb,
            model=operation.model.name if operation.model else "",
            state=operation.state,
            actor=operation.actor,
            reason=operation.reason,
            outcome=operation.outcome,
            created_at=operation.created_at.timestamp(),
            finished_at=operation.finished_at.timestamp() if operation.finished_at else None,
            steps_done=operation.done,
            steps_total=operation.total,
            subject=operation.subject or "",
        )
        for operation in newest
    )
