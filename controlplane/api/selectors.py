"""Reads for the API: the rows that a document needs, in a fixed number of queries however many there are."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from django.db.models import Count, Model, Prefetch, Q, QuerySet
from django.http import Http404

from controlplane.alerts.models import Alert, AlertState
from controlplane.core.lifecycle import ENDED
from controlplane.fleet import models


def all_models() -> QuerySet[models.Model]:
    return models.Model.objects.prefetch_related("pools")


def all_pools() -> QuerySet[models.Pool]:
    return models.Pool.objects.select_related("model")


def all_engines() -> QuerySet[models.Engine]:
    ranks = models.Rank.objects.select_related("node").prefetch_related(
        Prefetch("reservations", models.Reservation.objects.order_by("gpu__index"))
    )
    return models.Engine.objects.select_related("model").prefetch_related(Prefetch("ranks", ranks))


def all_gpus() -> QuerySet[models.Gpu]:
    return models.Gpu.objects.select_related("node", "reservation__rank")


def all_nodes() -> QuerySet[models.Node]:
    return models.Node.objects.annotate(gpu_count=Count("gpus"))


def all_operations() -> QuerySet[models.Operation]:
    return models.Operation.objects.select_related("model")


def operations_with_steps() -> QuerySet[models.Operation]:
    return all_operations().prefetch_related("steps")


def all_alerts() -> QuerySet[Alert]:
    """Those that fire or did."""
    return Alert.objects.exclude(state=AlertState.PENDING)


def newest_canary(model: str) -> models.Canary | None:
    """The one that runs, else the last one."""
    return models.Canary.objects.select_related("model").filter(model__name=model).first()


def open_operations() -> Q:
    return ~Q(state__in=ENDED)


def model_of(engine: str) -> str:
    """Name of an engine's model; "" if there is no such engine, which the action says."""
    return models.Engine.objects.filter(pk=engine).values_list("model__name", flat=True).first() or ""


def one(rows: QuerySet[Any], **key: Any) -> Any:
    """The row with this key. Raises Http404."""
    row = rows.filter(**key).first()
    if row is None:
        raise Http404
    return row


def count_states(pools: Sequence[Model]) -> None:
    """Gives each pool `states`: its wanted engines by state, where an engine that moves counts for the pool it moves to."""
    names = {(pool.model_id, pool.role, pool.arm) for pool in pools}  # type: ignore[attr-defined]
    rows = models.Engine.objects.filter(model_id__in={each[0] for each in names}, wanted=True)
    found: dict[tuple[int, str, str], Counter[str]] = defaultdict(Counter)
    for model_id, role, arm, next_role, next_arm, state in rows.values_list(
        "model_id", "role", "arm", "next_role", "next_arm", "state"
    ):
        found[model_id, next_role or role, next_arm or arm][state] += 1
    for pool in pools:
        pool.states = dict(found[pool.model_id, pool.role, pool.arm])  # type: ignore[attr-defined]
