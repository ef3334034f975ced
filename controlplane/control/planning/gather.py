"""The fleet as the planner takes it, from rows and telemetry. Reads only; raises django.db.Error."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from controlplane.control.actions.change import open_operations
from controlplane.control.actions.sizes import main_pools
from controlplane.control.models import Level, PlannerSetting
from controlplane.control.outlook import kinds_of
from controlplane.control.planning.history import history_of, lent_now
from controlplane.control.planning.load import load_of, with_load
from controlplane.core.codec import WrongShape, decode
from controlplane.core.forecast import ForecastRefused
from controlplane.core.modelconfig import ConfigRefused
from controlplane.core.perf import DoesNotFit
from controlplane.core.planner import FleetNow, Guards, ModelNow, Peak, PoolNow, Span
from controlplane.core.planner import Level as PlannerLevel
from controlplane.core.planner_search import Search
from controlplane.core.protocol import ROLES_OF_MODE, Mode, Role, Slo
from controlplane.core.shapes import Shape
from controlplane.core.sketches import BadSketch
from controlplane.core.table import DEFAULT_MAX_NUM_SEQS
from controlplane.core.workload import Mix
from controlplane.fleet import models
from controlplane.physics.phases import stored_shape
from controlplane.telemetry.queries.prices import books

NO_SHAPE = Shape("", 0, 0, 0, 0, 0, 0, 0, False, False, 2.0, 2)


def fleet_now(now_s: float | None = None) -> FleetNow:
    """All models that are offered, at `now_s` (Unix seconds)."""
    now = time.time() if now_s is None else now_s
    rows = models.Model.objects.filter(retiring=False).order_by("pk")
    return FleetNow(
        models=tuple(model_now(row, now) for row in rows),
        spare=_spare(),
        prices=books().at(now).per_hour(),
        lent=lent_now(),
    )


def setting_of(model: models.Model) -> PlannerSetting:
    """How the planner is set for it; the defaults, if nobody set it."""
    return PlannerSetting.objects.filter(model=model).first() or PlannerSetting(model=model)


def guards_of(setting: PlannerSetting) -> Guards:
    """Raises WrongShape for what no action of this version wrote."""
    return decode(Guards, setting.guards, "guards")


def peaks_of(setting: PlannerSetting) -> tuple[Peak, ...]:
    """Raises WrongShape."""
    return tuple(decode(Peak, each, f"peaks[{index}]") for index, each in enumerate(setting.peaks))


def model_now(row: models.Model, now_s: float) -> ModelNow:
    """One model with its traffic; of one that is not planned for the traffic is not read."""
    setting = setting_of(row)
    return (bare_model if setting.level == Level.OFF else with_traffic)(row, setting, now_s)


def with_traffic(row: models.Model, setting: PlannerSetting, now_s: float) -> ModelNow:
    """One model with its traffic, whatever its level."""
    bare = bare_model(row, setting, now_s)
    ready = row.engines.filter(ready_at__isnull=False).values_list("ready_at", flat=True)
    try:
        load = load_of(row.name, now_s, bare.guards.horizon_s, bare.guards.idle_s)
    except BadSketch as broken:
        return replace(bare, obstacle=f"a stored histogram is broken: {broken}"[:300])
    return with_load(bare, load, [at.timestamp() for at in ready if at is not None])


def bare_model(row: models.Model, setting: PlannerSetting, now_s: float) -> ModelNow:
    """One model without its traffic."""
    history = history_of(row, now_s)
    base = ModelNow(
        name=row.name,
        shape=NO_SHAPE,
        mode=cast(Mode, row.mode),
        pools=(),
        slo=Slo(row.slo_ttft_ms, row.slo_itl_ms),
        level=cast(PlannerLevel, setting.level),
        priority=setting.priority,
        modes=tuple(cast(Mode, mode) for mode in setting.modes if mode != row.mode),
        warming=_warming(row),
        operation=_running(row),
        changed_at_s=history.changed_at_s,
        moved_at_s=history.moved_at_s,
        manual=history.manual,
        kv_dtype=row.engine_args.get("kv_cache_dtype"),
        network_gbps=_network(row),
        max_num_seqs=row.engine_args.get("max_num_seqs", DEFAULT_MAX_NUM_SEQS),
    )
    try:
        guards = guards_of(setting)
        known = replace(base, shape=stored_shape(row.config, "auto"), guards=guards, peaks=peaks_of(setting))
    except (ConfigRefused, ForecastRefused, WrongShape) as refused:
        return replace(base, obstacle=str(refused).rstrip(".")[:300])
    if row.frozen_until is not None and row.frozen_until.timestamp() > now_s:
        frozen = Span(0.0, row.frozen_until.timestamp(), why=row.frozen_reason)
        known = replace(known, guards=replace(guards, freezes=(*guards.freezes, frozen)))
    return _with_pools(known, row, setting)


def _with_pools(model: ModelNow, row: models.Model, setting: PlannerSetting) -> ModelNow:
    pools = main_pools(row)
    roles = ROLES_OF_MODE[row.mode]
    idle = [role for role, pool in pools.items() if role not in roles and pool.desired_engines]
    staged = [role for role, pool in pools.items() if pool.pipeline_parallel > 1]
    kinds = kinds_of(row)
    empty = [role for role in roles if role not in pools or not pools[role].desired_engines]
    if empty:
        return replace(model, obstacle=f"pool {', '.join(empty)} has no engines")
    if idle:
        return replace(model, obstacle=f"mode {row.mode} does not use the engines of pool {', '.join(idle)}")
    if staged:
        return replace(model, obstacle=f"engines of pool {', '.join(staged)} have several pipeline stages")
    if not kinds:
        return replace(model, obstacle="none of its engines has a GPU")
    known = replace(model, pools=tuple(_pool(role, pools[role], setting, kinds) for role in map(_role, roles)))
    return replace(known, obstacle=_misfit(known))


def _misfit(model: ModelNow) -> str | None:
    """Why the planner cannot compute with one of the pools: an unknown kind of GPU, a model too large for it."""
    search = Search(model, Mix())
    try:
        for pool in model.pools:
            search.speed(pool.gpu, pool.tensor_parallel)
    except DoesNotFit as misfit:
        return f"pool {pool.role}: {str(misfit).rstrip('.')}"[:300]
    return None


def _pool(role: Role, pool: models.Pool, setting: PlannerSetting, kinds: Mapping[str, tuple[int, str]]) -> PoolNow:
    _, kind = kinds.get(role) or next(iter(kinds.values()))
    return PoolNow(
        role=role,
        engines=pool.desired_engines,
        tensor_parallel=pool.tensor_parallel,
        gpu=kind,
        kinds=tuple(setting.kinds.get(role, ())),
        degrees=tuple(setting.degrees.get(role, ())),
        floor=max(pool.floor, setting.floors.get(role, 1)),
        ceiling=setting.ceilings.get(role),
    )


def _role(role: str) -> Role:
    return cast(Role, role)


def _warming(row: models.Model) -> int:
    """Engines that are wanted and not ready, those that have no row yet too."""
    wanted = sum(row.pools.filter(arm=models.MAIN).values_list("desired_engines", flat=True))
    ready = row.engines.filter(wanted=True, state="ready", arm=models.MAIN, next_role="").count()
    return max(0, wanted - ready)


def _running(row: models.Model) -> str | None:
    found = open_operations(row)
    if found:
        return f"operation {found[0].pk} ({found[0].verb}) of {found[0].actor}"
    canary = row.canaries.filter(ended_at=None).first()
    return f"canary {canary.pk}" if canary else None


def _network(row: models.Model) -> float | None:
    nodes = models.Node.objects.filter(ranks__engine__model=row, ranks__engine__wanted=True)
    return min(nodes.values_list("network_gbps", flat=True), default=None)


def _spare() -> dict[str, int]:
    free = models.Gpu.objects.filter(reservation=None, node__lost=False, node__cordoned=False)
    return dict(Counter(free.values_list("kind", flat=True)))
