"""From sizes that are desired to steps: which engines join another pool, and which are started or stopped; and whether
there is room for that. Reads rows, writes none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from controlplane.control.actions.change import Change, NewStep
from controlplane.control.capacity import why_not
from controlplane.control.desire import pool_key
from controlplane.control.launches import launch_of
from controlplane.control.newmodel import MAX_ENGINES
from controlplane.control.refused import refuse_all
from controlplane.core.protocol import ROLES_OF_MODE
from controlplane.fleet import models


@dataclass
class Gap:
    """A pool and how many engines it lacks (more than 0) or has too many (less)."""

    pool: models.Pool
    engines: int
    members: list[str]
    """Ids, those that leave first last."""


def size_steps(change: Change, freed: Collection[str] = ()) -> list[NewStep]:
    """What brings every pool of the model from what was desired before to the size that its row says by now. Engines that
    were missing before are the loop's business. `freed`: engines of other models that give their GPUs back for it. Raises
    Refused, kind no_capacity."""
    gaps, before = _gaps(change.model), _gaps(change.model, change.old["pools"])
    steps = _moves(gaps)
    _moves(before)
    for gap, old in zip(gaps, before, strict=True):
        _leave_out(gap, old)
    own = [gap.engines for gap in gaps]
    # What one pool lacked before and another lacks now takes no more room; it is still this change's to start.
    for gap, old in product(gaps, before):
        if _same_shape(gap.pool, old.pool):
            _leave_out(gap, old)
    demands = [(gap.pool, gap.engines) for gap in gaps if gap.engines > 0]
    refuse_all("no_capacity", why_not(demands, _freed(gaps) | set(freed)))
    if demands:
        refuse_all("no_capacity", _over_quota(change.model))
    for verb, sign in (("start", 1), ("stop", -1)):
        for gap, engines in zip(gaps, own, strict=True):
            steps += [NewStep(verb, gap.pool.role, arm=gap.pool.arm)] * max(0, sign * engines)
    return steps


def _leave_out(gap: Gap, old: Gap) -> None:
    """Take from `gap` the engines that were missing before."""
    both = max(0, min(gap.engines, old.engines))
    gap.engines -= both
    old.engines -= both


def _over_quota(model: models.Model) -> Iterable[str]:
    """Whether the models of the team would hold more GPUs together than it may. Its row stays locked: two models of a team
    that grow at once must not both see the same GPUs left."""
    team = models.Team.objects.select_for_update().filter(name=model.team).exclude(gpu_quota=None).first()
    if team is None or team.gpu_quota is None:
        return
    pools = models.Pool.objects.filter(model__team=model.team).values_list(
        "desired_engines", "tensor_parallel", "pipeline_parallel"
    )
    wanted = sum(engines * degree * stages for engines, degree, stages in pools)
    if wanted > team.gpu_quota:
        held = f"models of team {team.name} would hold {wanted} GPUs and may hold {team.gpu_quota}"
        yield f"{held}: shrink one, or raise its quota"


def replace_steps(model: models.Model) -> list[NewStep]:
    """Every engine that was started otherwise than the model's row says by now is replaced."""
    now = models.Model.objects.get(pk=model.pk)
    rows = models.Engine.objects.filter(model=model, wanted=True).order_by("role", "number")
    outdated = [row for row in rows if row.launch and row.launch.get("digest") != _launched_now(now, row)]
    return [NewStep("replace", row.role, row.id, row.arm) for row in outdated]


def _launched_now(model: models.Model, engine: models.Engine) -> str:
    """The digest of what an engine of this shape would be started with."""
    return launch_of(model, engine.tensor_parallel, engine.launch.get("pipeline_parallel", 1)).digest


def leaving_engines(model: models.Model) -> frozenset[str]:
    """Ids of engines that stop when every pool is brought to its size."""
    gaps = _gaps(model)
    _moves(gaps)
    return _freed(gaps)


def _gaps(model: models.Model, sizes: Mapping[str, int] | None = None) -> list[Gap]:
    """Of every pool, for its size or the one that `sizes` has."""
    found: dict[str, list[str]] = {}
    rows = models.Engine.objects.filter(model=model, wanted=True).order_by("number")
    for id, role, arm, next_role, next_arm in rows.values_list("id", "role", "arm", "next_role", "next_arm"):
        found.setdefault(pool_key(next_role or role, next_arm or arm), []).append(id)
    pools = models.Pool.objects.filter(model=model).select_related("model")
    gaps = []
    for pool in pools:
        key = pool_key(pool.role, pool.arm)
        wanted = pool.desired_engines if sizes is None else sizes.get(key, 0)
        gaps.append(Gap(pool, wanted - len(found.get(key, ())), found.get(key, [])))
    return gaps


def _moves(gaps: list[Gap]) -> list[NewStep]:
    """Too many here and too few there: the engine goes there as it runs, if both pools want the same of it."""
    steps = []
    for lacking in gaps:
        for rich in gaps:
            while lacking.engines > 0 > rich.engines and _same_shape(lacking.pool, rich.pool):
                steps.append(NewStep("retask", lacking.pool.role, arm=lacking.pool.arm))
                lacking.engines -= 1
                rich.engines += 1
    return steps


def _same_shape(one: models.Pool, two: models.Pool) -> bool:
    return shape_of(one) == shape_of(two)


def shape_of(pool: models.Pool) -> dict[str, Any]:
    """What a pool wants of its engines' GPUs."""
    return {
        "tensor_parallel": pool.tensor_parallel,
        "pipeline_parallel": pool.pipeline_parallel,
        "gpu_kinds": list(pool.gpu_kinds),
        "node_labels": dict(pool.node_labels),
    }


def _freed(gaps: Iterable[Gap]) -> frozenset[str]:
    return frozenset(id for gap in gaps if gap.engines < 0 for id in gap.members[gap.engines :])


def size_problems(sizes: Mapping[str, Any], pools: Collection[str]) -> Iterable[str]:
    """What is wrong with sizes as somebody asks for them, by role."""
    if not sizes:
        yield "name at least one pool and its size"
    for role, engines in sizes.items():
        if role not in pools:
            yield f"there is no pool {role!r:.40}; pools: {', '.join(pools) or 'none'}"
        elif isinstance(engines, bool) or not isinstance(engines, int) or not 0 <= engines <= MAX_ENGINES:
            yield f"pool {role}: 0 to {MAX_ENGINES} engines, not {engines!r:.20}"


def too_small(model: models.Model, mode: str, sizes: Mapping[str, int], floors: Mapping[str, int]) -> Iterable[str]:
    """Pools that `mode` serves from and that `sizes` would leave below their floor, or empty where the model is strict."""
    for role in ROLES_OF_MODE[mode]:
        engines, floor = sizes.get(role, 0), floors.get(role, 1)
        if engines < floor:
            yield f"pool {role} would have {engines} engines and its floor is {floor}: give it that many, or lower its floor"
        elif not engines and model.strict:
            yield f"pool {role} would have 0 engines and {model.name} is strict, which would refuse requests: give it 1"


def main_pools(model: models.Model) -> dict[str, models.Pool]:
    """Pools that serve everybody but a canary's sessions, by role."""
    return {pool.role: pool for pool in models.Pool.objects.filter(model=model, arm=models.MAIN).select_related("model")}


def resize(model: models.Model, sizes: Mapping[str, int], arm: str = models.MAIN) -> None:
    """Write sizes by role; a pool that is missing is made like the arm's (or the model's) first one."""
    pools = {pool.role: pool for pool in models.Pool.objects.filter(model=model, arm=arm)}
    like = next(iter(pools.values()), None) or models.Pool.objects.filter(model=model).first()
    for role, engines in sizes.items():
        if role in pools:
            models.Pool.objects.filter(pk=pools[role].pk).update(desired_engines=engines)
        elif engines:
            shape = shape_of(like) if like else {}
            models.Pool.objects.create(model=model, role=role, arm=arm, desired_engines=engines, **shape)


def split_over(mode: str, engines: int, like: Mapping[str, int]) -> dict[str, int]:
    """`engines` over the pools that `mode` needs, at least one each: in proportion to `like`, else a third for prefill."""
    roles = ROLES_OF_MODE[mode]
    if len(roles) == 1:
        return {roles[0]: engines}
    weights = Counter({role: like.get(role, 0) for role in roles})
    share = weights["prefill"] / total if (total := weights.total()) and all(weights.values()) else 1 / 3
    prefill = min(max(1, round(engines * share)), max(1, engines - 1))
    return {"prefill": prefill, "decode": engines - prefill}
