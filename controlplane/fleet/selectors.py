"""Reads of the fleet that more than one part needs."""

from __future__ import annotations

from django.db.models import Q, QuerySet

from controlplane.core.lifecycle import ENDED
from controlplane.fleet.models import Engine, Gpu, Model, Node, Operation, Pool, TableState


def live_engines() -> QuerySet[Engine]:
    """Engines that exist: wanted ones and those still on their way out. With model, ranks, nodes and GPUs at hand."""
    alive = Q(wanted=True) | ~Q(state="stopped")
    return Engine.objects.filter(alive).select_related("model").prefetch_related("ranks__node", "ranks__reservations__gpu")


def gpus_of(engine: Engine) -> list[Gpu]:
    """The GPUs an engine holds, in order of rank, node and index. No query if the engine came from `live_engines`."""
    held = [reservation.gpu for rank in engine.ranks.all() for reservation in rank.reservations.all()]
    return sorted(held, key=lambda gpu: (gpu.node_id, gpu.index))


def spare_gpus() -> QuerySet[Gpu]:
    """GPUs that no engine holds."""
    return Gpu.objects.filter(reservation=None).select_related("node")


def nodes() -> QuerySet[Node]:
    return Node.objects.order_by("name").prefetch_related("gpus")


def models_with_pools() -> QuerySet[Model]:
    return Model.objects.prefetch_related("pools")


def pools_of(model_name: str) -> QuerySet[Pool]:
    return Pool.objects.filter(model__name=model_name).select_related("model")


def newest_operations(count: int = 20) -> QuerySet[Operation]:
    return Operation.objects.select_related("model").prefetch_related("steps").order_by("-id")[:count]


def open_operations() -> QuerySet[Operation]:
    return Operation.objects.exclude(state__in=ENDED)


def table_stamp() -> tuple[int, int]:
    """(epoch, generation) of the newest routing table; (0, 0) before the first."""
    row = TableState.objects.filter(id=1).values_list("epoch", "generation").first()
    return row or (0, 0)
