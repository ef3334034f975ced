"""Rows and facts as the plain values that the core decides on. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, cast

from django.db.models import Prefetch, Q, QuerySet
from django.db.models.fields.json import KT

from controlplane.control.facts import Facts
from controlplane.control.launches import launch_of
from controlplane.control.stored_table import read_table
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
    table = read_table()
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
        stamp=table.stamp,
        serving_in_table=table.serving,
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
    pools = models.Pool.objects.prefetch_related("model").order_by("model__created_at", "model_id", "id")
    digests: dict[tuple[int, int, int], str] = {}
    return tuple(pool_state(pool, digests) for pool in pools)


def pool_state(pool: models.Pool, digests: dict[tuple[int, int, int], str] | None = None) -> PoolState:
    """One pool's row as a plain value. `digests`: of launches, by model and degrees, as far as they are known already."""
    digests = digests if digests is not None else {}
    key = (pool.model_id, pool.tensor_parallel, pool.pipeline_parallel)
    if key not in digests:
        digests[key] = launch_of(pool.model, pool.tensor_parallel, pool.pipeline_parallel).digest
    return PoolState(
        model=pool.model.name,
        role=pool.role,
        desired=pool.desired_engines,
        tensor_parallel=pool.tensor_parallel,
        gpu_kinds=tuple(pool.gpu_kinds),
        node_labels=dict(pool.node_labels),
        arm=pool.arm,
        floor=pool.floor,
        launch=digests[key],
        pipeline_parallel=pool.pipeline_parallel,
        one_process=pool.model.engine_kind == "vllm",
    )


def read_targets() -> dict[str, Target]:
    """What is desired of each model beside its pools."""
    still, since = _held_up()
    rows = models.Model.objects.values_list("id", "name", "mode", "retiring")
    return {name: Target(cast(Mode, mode), id in still, retiring, since.get(id, 0.0)) for id, name, mode, retiring in rows}


def _held_up() -> tuple[set[int], dict[int, float]]:
    """Models for which nothing new is to be begun: their operation is paused, or a move it asked for was given up, which it
    is about to take note of. And since when each model's oldest open operation runs."""
    still: set[int] = set()
    since: dict[int, float] = {}
    rows = models.Operation.objects.exclude(state__in=ENDED).exclude(model=None).order_by("-id")
    for model, state, at in rows.values_list("model_id", "state", "created_at"):
        since[model] = at.timestamp()
        if state == "paused":
            still.add(model)
    open_moves = models.Step.objects.filter(verb="retask", state__in=("waiting", "running")).exclude(engine="")
    given_up = models.Engine.objects.filter(move_phase="aborted", id__in=open_moves.values("engine"))
    still.update(given_up.values_list("model_id", flat=True))
    return still, since


def read_pairs() -> tuple[PairState, ...]:
    return tuple(
        PairState(
            pair.prefill_id,
            pair.decode_id,
            pair.prefill_incarnation,
            pair.decode_incarnation,
            pair.state,
            pair.attempts,
            pair.reason,
            pair.at.timestamp(),
        )
        for pair in models.Pair.objects.filter(prefill__wanted=True, decode__wanted=True)
    )


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
    holding = models.Reservation.objects.values("rank__engine")
    alive = models.Engine.objects.filter(Q(wanted=True) | ~Q(state="stopped") | Q(id__in=holding) | Q(id__in=named))
    kinds, ranks = _ranks(alive)
    launches = _Launches()
    rows = alive.annotate(digest=KT("launch__digest")).values_list("model__name", "digest", *_PLAIN, *_TIMES)
    return tuple(_engine(row, kinds, ranks, launches) for row in rows)


def _engine(
    row: tuple[Any, ...], kinds: Mapping[str, str], ranks: Mapping[str, tuple[Rank, ...]], launches: _Launches
) -> EngineState:
    model, digest, *values = row
    fields: dict[str, Any] = dict(zip(_PLAIN, values, strict=False))
    fields |= {name: _seconds(at) for name, at in zip(_TIMES, values[len(_PLAIN) :], strict=True)}
    return EngineState(
        model=model,
        gpu_kind=kinds.get(fields["id"], ""),
        ranks=ranks.get(fields["id"], ()),
        launch=digest or launches.of(model, fields["tensor_parallel"]),
        **fields,
    )


_PLAIN = (
    *("id", "role", "number", "kind", "tensor_parallel", "wanted", "spec_generation", "state", "reason", "incarnation"),
    *("url", "compat", "arm", "weight", "failures", "next_role", "next_arm", "move_phase", "held"),
)
"""Columns of an engine's row that EngineState has under the same name; and those that are times."""
_TIMES = ("state_since", "started_at", "ready_at", "retry_at", "move_since")


def _ranks(engines: QuerySet[models.Engine]) -> tuple[dict[str, str], dict[str, tuple[Rank, ...]]]:
    """Per engine: the kind of its first GPU, and its ranks in order, each with its GPUs in order."""
    held: dict[int, list[str]] = {}
    kinds: dict[str, str] = {}
    fields = ("rank_id", "rank__engine_id", "gpu_id", "gpu__kind")
    rows = models.Reservation.objects.order_by("rank__engine_id", "rank__index", "gpu__index").values_list(*fields)
    for rank, engine, gpu, kind in rows:
        held.setdefault(rank, []).append(gpu)
        kinds.setdefault(engine, kind)
    ranks: dict[str, tuple[Rank, ...]] = {}
    places = models.Rank.objects.filter(engine__in=engines.values("id")).order_by("engine_id", "index")
    for rank, engine, node in places.values_list("id", "engine_id", "node__name"):
        ranks[engine] = (*ranks.get(engine, ()), Rank(node, tuple(held.get(rank, ()))))
    return kinds, ranks


class _Launches:
    """What models launch now, for engines from before there were snapshots. Each is read once, if at all."""

    def __init__(self) -> None:
        self._models: dict[str, models.Model] = {}

    def of(self, model: str, tensor_parallel: int) -> str:
        if model not in self._models:
            self._models[model] = models.Model.objects.get(name=model)
        return launch_of(self._models[model], tensor_parallel).digest


def newest_stamp(routers: Iterable[RouterFact]) -> tuple[int, int]:
    """The highest table that any living router has applied."""
    return max(((fact.epoch, fact.generation) for fact in routers), default=(0, 0))


def _seconds(at: datetime | None) -> float | None:
    return at.timestamp() if at else None


def moment(seconds: float | None) -> datetime | None:
    """The other way round, for writing."""
    return datetime.fromtimestamp(seconds, UTC) if seconds is not None else None
