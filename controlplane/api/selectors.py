"""Reads for the API: the rows that a document needs, in a fixed number of queries however many there are."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, TypeVar

from django.db.models import Count, F, Model, Q, QuerySet
from django.http import Http404

from controlplane.alerts.models import Alert, AlertState
from controlplane.core.lifecycle import ENDED
from controlplane.fleet import models

Rows = TypeVar("Rows", bound=Model)


def all_models() -> QuerySet[models.Model]:
    """Without the config.json, which no document shows and which is larger than all the rest."""
    return models.Model.objects.defer("config").prefetch_related("pools")


def with_model_name(rows: QuerySet[Rows]) -> QuerySet[Rows]:
    """Rows that belong to a model, of which the name alone is read."""
    own = (field.name for field in rows.model._meta.concrete_fields)
    return rows.select_related("model").only(*own, "model__name")


def all_pools() -> QuerySet[models.Pool]:
    return with_model_name(models.Pool.objects.all())


def all_engines() -> QuerySet[models.Engine]:
    """Their documents need `find_ranks` too."""
    return with_model_name(models.Engine.objects.all()).defer("launch")


def find_ranks(engines: Sequence[models.Engine]) -> None:
    """Gives each engine `placed`: its ranks, each with node and GPUs, as the document has them."""
    rows = models.Rank.objects.filter(engine__in=engines).order_by("engine_id", "index", "reservations__gpu__index")
    found: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for engine, index, node, gpu in rows.values_list("engine_id", "index", "node__name", "reservations__gpu_id"):
        rank = found[engine].setdefault(index, {"index": index, "node": node, "gpus": []})
        rank["gpus"] += [gpu] if gpu else []
    for each in engines:
        each.placed = list(found[each.pk].values())  # type: ignore[attr-defined]


def all_gpus() -> QuerySet[models.Gpu]:
    """Each with `engine`: the id of the one that holds it, or None."""
    own = (field.name for field in models.Gpu._meta.concrete_fields)
    return (
        models.Gpu.objects.select_related("node").only(*own, "node__name").annotate(engine=F("reservation__rank__engine_id"))
    )


def all_nodes() -> QuerySet[models.Node]:
    return models.Node.objects.annotate(gpu_count=Count("gpus"))


def all_operations() -> QuerySet[models.Operation]:
    return with_model_name(models.Operation.objects.all())


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
