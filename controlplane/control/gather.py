"""Rows and facts as the plain values that the core decides on. Reads only."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, cast

from django.db.models import Prefetch, Q

from controlplane.control.facts import Facts
from controlplane.control.launches import launch_of
from controlplane.core.lifecycle import ENDED
from controlplane.core.protocol import Canary, Conditional, Connector, Mode, ModelRoute, OnPrefillLoss, Rank, RouterFact, Slo
from controlplane.core.world import DrainMark, EngineState, GpuState, NodeState, PairState, PoolState, Sent, Target, World
from controlplane.fleet import models


def gather(
    facts: Facts,
    *,
    now: float,
    link_since: float,
    drains: dict[str, DrainMark] | None = None,
    sent: dict[Sent, float] | None = None,
) -> World:
    """The world of this tick, rows as they are now."""
    table = models.TableState.objects.filter(id=1).first()
    running = Prefetch("canaries", models.Canary.objects.filter(ended_at=None))
    return World(
        now=now,
        link_since=link_since,
        models=tuple(model_route(model) for model in models.Model.objects.prefetch_related(running)),
        pools=read_pools(),
        nodes=read_nodes(facts),
        gpus=read_gpus(),
        engines=read_engines(),
        routers=facts.routers,
        stamp=(table.epoch, table.generation) if table else (0, 0),
        serving_in_table=_serving(table.document if table else None),
        drains=drains or {},
        sent=sent or {},
        targets=read_targets(),
        pairs=read_pairs(),
    )


def model_route(model: models.Model) -> ModelRoute:
    """A model as the routing table says it, without engines, and with its canary as it is wanted."""
    return ModelRoute(
        name=model.name,
        mode=cast(Mode, model.served_mode),
        aliases=tuple(model.aliases),
        connector=cast(Connector, model.connector),
        kv_lease_s=model.kv_lease_s,
        block_size=model.block_size,
        kv_bytes_per_token=model.kv_bytes_per_token,
        kv_fixed_bytes=model.kv_fixed_bytes,
        kv_window_bytes_per_token=model.kv_window_bytes_per_token,
        kv_window_tokens=model.kv_window_tokens,
        max_model_len=model.max_model_len,
        on_prefill_loss=cast(OnPrefillLoss, model.on_prefill_loss),
        strict=model.strict,
        conditional=Conditional(model.conditional_min_uncached_tokens, model.conditional_min_uncached_ratio),
        slo=Slo(model.slo_ttft_ms, model.slo_itl_ms),
        canary=next((_canary_route(row) for row in model.canaries.all() if row.ended_at is None), None),
    )


def _canary_route(row: models.Canary) -> Canary:
    return Canary(models.CANARY, cast(Mode, row.mode), row.share, row.shared, row.pk)


def read_pools() -> tuple[PoolState, ...]:
    pools = models.Pool.objects.select_related("model").order_by("model__created_at", "model_id", "id")
    return tuple(
        PoolState(
            model=pool.model.name,
            role=pool.role,
            desired=pool.desired_engines,
            tensor_parallel=pool.tensor_parallel,
            gpu_kinds=tuple(pool.gpu_kinds),
            node_labels=dict(pool.node_labels),
            arm=pool.arm,
            floor=pool.floor,
            launch=launch_of(pool.model, pool.tensor_parallel).digest,
        )
        for pool in pools
    )


def read_targets() -> dict[str, Target]:
    """What is desired of each model beside its pools."""
    paused = set(models.Operation.objects.filter(state="paused").values_list("model_id", flat=True))
    rows = models.Model.objects.values_list("id", "name", "mode", "retiring")
    return {name: Target(cast(Mode, mode), id in paused, retiring) for id, name, mode, retiring in rows}


def read_pairs() -> tuple[PairState, ...]:
    fields = ("prefill_id", "decode_id", "prefill_incarnation", "decode_incarnation", "state", "attempts", "reason", "at")
    return tuple(PairState(*row, at=at.timestamp()) for *row, at in models.Pair.objects.values_list(*fields))


def read_nodes(facts: Facts) -> tuple[NodeState, ...]:
    return tuple(
        NodeState(
            name=node.name,
            labels={**node.agent_labels, **node.labels},
            cordoned=node.cordoned,
            lost=node.lost,
            seen_at=_seconds(node.seen_at),
            fact=facts.agents.get(node.name),
        )
        for node in models.Node.objects.order_by("name")
    )


def read_gpus() -> tuple[GpuState, ...]:
    rows = models.Gpu.objects.values_list("uuid", "node__name", "index", "kind", "reservation__rank__engine_id")
    return tuple(GpuState(uuid, node, index, kind, engine or "") for uuid, node, index, kind, engine in rows)


def read_engines() -> tuple[EngineState, ...]:
    """Every engine that is wanted, not fully gone yet, or named by an open operation."""
    named = models.Step.objects.exclude(operation__state__in=ENDED).exclude(engine="").values("engine")
    alive = Q(wanted=True) | ~Q(state="stopped") | Q(ranks__reservations__isnull=False) | Q(id__in=named)
    reservations = models.Reservation.objects.select_related("gpu").order_by("gpu__index")
    rows = (
        models.Engine.objects.filter(alive)
        .distinct()
        .select_related("model")
        .prefetch_related(
            Prefetch("ranks", models.Rank.objects.select_related("node")),
            Prefetch("ranks__reservations", reservations),
        )
    )
    return tuple(engine_state(row) for row in rows)


def engine_state(row: models.Engine) -> EngineState:
    """One engine row with its ranks as a plain value."""
    gpus = [[reservation.gpu for reservation in rank.reservations.all()] for rank in row.ranks.all()]
    return EngineState(
        id=row.id,
        model=row.model.name,
        role=row.role,
        number=row.number,
        ranks=tuple(
            Rank(rank.node.name, tuple(gpu.uuid for gpu in held)) for rank, held in zip(row.ranks.all(), gpus, strict=True)
        ),
        kind=row.kind,
        tensor_parallel=row.tensor_parallel,
        wanted=row.wanted,
        spec_generation=row.spec_generation,
        state=row.state,
        state_since=row.state_since.timestamp(),
        reason=row.reason,
        incarnation=row.incarnation,
        url=row.url,
        compat=row.compat,
        gpu_kind=gpus[0][0].kind if gpus and gpus[0] else "",
        arm=row.arm,
        weight=row.weight,
        started_at=_seconds(row.started_at),
        ready_at=_seconds(row.ready_at),
        failures=row.failures,
        retry_at=_seconds(row.retry_at),
        next_role=row.next_role,
        next_arm=row.next_arm,
        move_phase=row.move_phase,
        move_since=_seconds(row.move_since),
        held=row.held,
        launch=row.launch.get("digest") or launch_of(row.model, row.tensor_parallel).digest,
    )


def listed_roles(document: dict[str, Any] | None) -> dict[str, str]:
    """Engine id -> role in a stored routing table."""
    return {engine["id"]: engine["role"] for engine in _listed(document)}


def _serving(document: dict[str, Any] | None) -> frozenset[str]:
    return frozenset(engine["id"] for engine in _listed(document) if engine["state"] == "ready")


def _listed(document: dict[str, Any] | None) -> Iterable[dict[str, Any]]:
    return (engine for model in (document or {}).get("models", ()) for engine in model["engines"])


def newest_stamp(routers: Iterable[RouterFact]) -> tuple[int, int]:
    """The highest table that any living router has applied."""
    return max(((fact.epoch, fact.generation) for fact in routers), default=(0, 0))


def _seconds(at: datetime | None) -> float | None:
    return at.timestamp() if at else None


def moment(seconds: float | None) -> datetime | None:
    """The other way round, for writing."""
    return datetime.fromtimestamp(seconds, UTC) if seconds is not None else None
