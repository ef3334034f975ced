"""Reads the fleet's rows as live topics need them (telemetry.view), in fourteen queries whatever the size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, F, OuterRef, Q, Subquery
from django.utils import timezone

from controlplane.alerts.models import Alert, AlertState, Silence
from controlplane.alerts.selectors import silence_of, silences_now
from controlplane.core.lifecycle import ENDED, OVER
from controlplane.fleet.models import AuditEntry, Canary, Engine, Gpu, Model, Node, Operation, Pool, Rank, Step, TableState
from controlplane.telemetry import sources
from controlplane.telemetry.queries.prices import books
from controlplane.telemetry.rows import AlertRow, OperationRow, StepRow
from controlplane.telemetry.view import EngineView, FleetView, GpuView, ModelView, PoolView

QUERIES = 14
OPERATIONS = 20
ALERTS = 200
STEPS_SHOWN_FOR = timedelta(minutes=2)
"""After an operation's end its steps are still read: pages that follow it must see how it ended."""
GONE = OVER | {"planned"}
"""States in which an engine that nobody wants any more is history and is not shown."""


def read() -> FleetView:
    """The fleet now. Raises django.db.Error when PostgreSQL is away."""
    gpus = _gpus()
    engines = _engines(gpus)
    labels = {engine.id: engine.label for engine in engines.values()}
    nodes = list(Node.objects.order_by("name").values_list("name", "lost", "cordoned", "seen_at"))
    table = TableState.objects.filter(pk=1).values_list("generation", flat=True).first()
    return FleetView(
        nodes={name: lost for name, lost, _, _ in nodes},
        cordoned=frozenset(name for name, _, cordoned, _ in nodes if cordoned),
        heard_at={name: seen_at.timestamp() for name, _, _, seen_at in nodes if seen_at},
        gpus=gpus,
        prices=books().at(timezone.now().timestamp()).known(),
        models=_models(),
        engines=engines,
        operations=read_operations(newest_and_open()),
        steps=read_steps(open_or_ended_lately(), labels),
        table_generation=table or 0,
        alerts=firing_alerts(),
        proposals=sources.proposals(),
    )


def _gpus() -> tuple[GpuView, ...]:
    found = (
        Gpu.objects.annotate(engine=F("reservation__rank__engine_id"))
        .order_by("node__name", "index")
        .values_list("uuid", "node__name", "index", "kind", "engine", "memory_bytes")
    )
    return tuple(GpuView(uuid, node, index, kind, engine or "", size) for uuid, node, index, kind, engine, size in found)


def _models() -> tuple[ModelView, ...]:
    pools = defaultdict(list)
    for pool in Pool.objects.order_by("id"):
        pools[pool.model_id].append(PoolView(pool.role, pool.desired_engines, pool.tensor_parallel))
    running = Canary.objects.filter(ended_at=None).values_list("model_id", "mode", "share")
    canaries: dict[int, dict[str, Any]] = {model: {"mode": mode, "share": share} for model, mode, share in running}
    shown = ("name", "mode", "connector", "slo_ttft_ms", "slo_itl_ms", "served_mode", "version", "frozen_until")
    return tuple(
        ModelView(
            name=model.name,
            mode=model.mode,
            connector=model.connector,
            slo_ttft_ms=model.slo_ttft_ms,
            slo_itl_ms=model.slo_itl_ms,
            pools=tuple(pools[model.pk]),
            served_mode=model.served_mode,
            version=model.version,
            frozen_until=_unix(model.frozen_until),
            min_uncached_tokens=model.conditional_min_uncached_tokens,
            canary=canaries.get(model.pk),
        )
        for model in Model.objects.only(*shown, "conditional_min_uncached_tokens")
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
            arm=engine.arm,
            held=engine.held,
            next_role=engine.next_role,
            move_phase=engine.move_phase,
        )
        for engine in shown
    }


def newest_and_open() -> Q:
    """The newest OPERATIONS, and every one that is still open."""
    newest = Operation.objects.order_by("-pk").values("pk")[:OPERATIONS]
    return Q(pk__in=newest) | ~Q(state__in=ENDED)


def open_or_ended_lately() -> Q:
    """Those whose steps are followed."""
    return ~Q(state__in=ENDED) | Q(finished_at__gte=timezone.now() - STEPS_SHOWN_FOR)


def firing_alerts() -> tuple[AlertRow, ...]:
    """The newest ALERTS that fire, with who silenced them."""
    silences = silences_now()
    return tuple(
        _alert(alert, silence_of(alert, silences))
        for alert in Alert.objects.filter(state=AlertState.FIRING).order_by("-pk")[:ALERTS]
    )


def _alert(alert: Alert, silence: Silence | None) -> AlertRow:
    return AlertRow(
        id=f"alert:{alert.pk}",
        type="alert",
        number=alert.pk,
        rule=alert.rule,
        severity=alert.severity,
        subject=alert.subject,
        model=alert.model,
        label=alert.label,
        value=alert.value,
        peak=alert.peak,
        threshold=alert.threshold,
        last=alert.last,
        facts=alert.facts,
        began_at=alert.began_at.timestamp(),
        fired_at=_unix(alert.fired_at) or 0.0,
        silenced_until=silence.until.timestamp() if silence else None,
        silenced_by=silence.actor if silence else "",
        silenced_why=silence.reason if silence else "",
    )


def read_operations(which: Q, limit: int | None = None) -> tuple[OperationRow, ...]:
    """Operations as pages show them, the newest first."""
    subject = AuditEntry.objects.filter(operation=OuterRef("pk")).order_by("pk").values("subject")[:1]
    done = Count("steps", filter=Q(steps__state__in=("done", "skipped")))
    counted = (
        Operation.objects.filter(which)
        .select_related("model")
        .annotate(done=done, total=Count("steps"), subject=Subquery(subject))
    )
    found = counted.order_by("-pk")[:limit]  # a query that counts forgets the model's own order
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
            finished_at=_unix(operation.finished_at),
            steps_done=operation.done,
            steps_total=operation.total,
            subject=operation.subject or "",
            undoes=operation.undoes_id,
        )
        for operation in found
    )


def read_steps(which: Q, labels: Mapping[str, str]) -> dict[int, tuple[StepRow, ...]]:
    """The steps of all operations that `which` names, by their number. `labels`: of the engines that are there."""
    steps: defaultdict[int, list[StepRow]] = defaultdict(list)
    numbers = Operation.objects.filter(which).values("pk")
    for step in Step.objects.filter(operation__in=numbers).order_by("operation_id", "index"):
        steps[step.operation_id].append(
            StepRow(
                id=f"step:{step.operation_id}/{step.index}",
                type="step",
                operation=step.operation_id,
                index=step.index,
                verb=step.verb,
                role=step.role,
                engine=step.engine,
                label=labels.get(step.engine, step.engine),
                state=step.state,
                reason=step.reason,
                started_at=_unix(step.started_at),
                finished_at=_unix(step.finished_at),
            )
        )
    return {number: tuple(rows) for number, rows in steps.items()}


def _unix(moment: datetime | None) -> float | None:
    return moment.timestamp() if moment else None
