"""A model brought to what a document says, whatever of it differs: one operation, so that it can be taken back as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from django.db import transaction

from controlplane.control.actions.canaries import running_canary
from controlplane.control.actions.change import NewStep, begin
from controlplane.control.actions.modes import cannot_hand_off
from controlplane.control.actions.registration import lock_names, unknown_kinds
from controlplane.control.actions.sizes import (
    main_pools,
    replace_steps,
    resize,
    shape_of,
    size_problems,
    size_steps,
    too_small,
)
from controlplane.control.actions.updates import RollOut, Selector, Update, check_launch, write_launch, write_update
from controlplane.control.actor import Actor
from controlplane.control.refused import Refused, refuse_all
from controlplane.core.protocol import Mode, Role
from controlplane.fleet import models

FIXED = ("engine_kind", "connector")
FIXED_OF_POOL = ("tensor_parallel", "pipeline_parallel")
LAUNCH = ("source", "config", "engine_args", "kv_lease_s")
SETTINGS: Mapping[str, str] = {
    **{name: name for name in ("aliases", "team", "on_prefill_loss", "strict")},
    "slo.ttft_ms": "slo_ttft_ms",
    "slo.itl_ms": "slo_itl_ms",
    "conditional.min_uncached_tokens": "conditional_min_uncached_tokens",
    "conditional.min_uncached_ratio": "conditional_min_uncached_ratio",
}
"""Field of `Update` by path."""


def apply_model(
    actor: Actor, name: str, wanted: Mapping[str, Any], *, reason: str = "", expected_version: int | None = None
) -> models.Operation:
    """Make these fields of a model so (by path, as control.state.document has them: "slo.ttft_ms", "pools.decode.engines").
    Engines change pools as they run, are started and stopped, and are replaced if they would be launched otherwise."""
    with transaction.atomic():
        if "aliases" in wanted:
            lock_names()
        change = begin(actor, "apply_model", name, reason=reason, expected_version=expected_version)
        model = change.model
        pools = main_pools(model)
        refuse_all("invalid", _fixed(model, pools, wanted))
        missing = sorted(of_pools(wanted).keys() - pools.keys())
        for role in missing:
            _make_pool(model, role, of_pools(wanted)[role])
        _write_sizes(model, wanted)
        write_update(actor, model, update_of(wanted, main_pools(model)))
        launch = {field: wanted[field] for field in LAUNCH if field in wanted}
        if launch:
            write_launch(models.Model.objects.get(pk=model.pk), RollOut(**launch))
        fresh = models.Model.objects.get(pk=model.pk)
        if missing:
            check_launch(fresh, RollOut())
        refuse_all("unsafe", _too_small(fresh, wanted))
        if "mode" in wanted:
            refuse_all("invalid", cannot_hand_off(fresh, fresh.mode))
        steps = [*size_steps(change), *(replace_steps(fresh) if launch else [])]
        if "mode" in wanted and fresh.served_mode != fresh.mode:
            steps.append(NewStep("switch"))
        return change.record(steps, done=not steps)


def of_pools(wanted: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What is wanted of each pool, by role."""
    found: dict[str, dict[str, Any]] = {}
    for path, value in wanted.items():
        if path.startswith("pools."):
            _, role, field = path.split(".")
            found.setdefault(role, {})[field] = value
    return found


def update_of(wanted: Mapping[str, Any], pools: Mapping[str, models.Pool]) -> Update:
    """The part that `update_model` changes; half of a selector is completed by what the pool (if it is there) has."""
    fields = {SETTINGS[path]: value for path, value in wanted.items() if path in SETTINGS}
    floors: dict[str, int] = {}
    selectors: dict[str, Selector] = {}
    for role, part in of_pools(wanted).items():
        if "floor" in part:
            floors[role] = part["floor"]
        if "gpu_kinds" in part or "node_labels" in part:
            pool = pools[role]
            selectors[role] = Selector(
                tuple(part.get("gpu_kinds", pool.gpu_kinds)), part.get("node_labels", pool.node_labels)
            )
    return Update(**fields, floors=floors, selectors=selectors)


def _fixed(model: models.Model, pools: Mapping[str, models.Pool], wanted: Mapping[str, Any]) -> Iterator[str]:
    for field in FIXED:
        if field in wanted:
            yield f"{field} of {model.name} is {getattr(model, field)} for good: retire the model and register it anew"
    if "mode" in wanted and wanted["mode"] not in get_args(Mode):
        yield f"mode {wanted['mode']!r:.40}: one of {', '.join(get_args(Mode))}"
    for role, part in of_pools(wanted).items():
        if role not in get_args(Role):
            yield f"there is no role {role!r:.40}: {', '.join(get_args(Role))}"
        for field in FIXED_OF_POOL:
            if field in part and role in pools:
                kept = getattr(pools[role], field)
                yield f"{field} of pool {role} is {kept} for good: retire the model and register it anew"
        yield from unknown_kinds(part.get("gpu_kinds", ()))


def _make_pool(model: models.Model, role: str, part: Mapping[str, Any]) -> None:
    """As the document says, and as the model's first pool where it says nothing."""
    like = models.Pool.objects.filter(model=model, arm=models.MAIN).first()
    shape = shape_of(like) if like else {}
    given = {field: part[field] for field in shape_of(models.Pool()) if field in part}
    models.Pool.objects.create(model=model, role=role, arm=models.MAIN, **{**shape, **given})


def _write_sizes(model: models.Model, wanted: Mapping[str, Any]) -> None:
    sizes = {role: part["engines"] for role, part in of_pools(wanted).items() if "engines" in part}
    if sizes:
        refuse_all("invalid", size_problems(sizes, main_pools(model)))
        resize(model, sizes)
    if "mode" in wanted:
        if canary := running_canary(model):
            raise Refused("busy", f"canary {canary.pk} of {model.name} runs: promote or end it first")
        models.Model.objects.filter(pk=model.pk).update(mode=wanted["mode"])


def _too_small(model: models.Model, wanted: Mapping[str, Any]) -> Iterator[str]:
    """Floors hold, but for pools that the document itself makes empty."""
    parts, pools = of_pools(wanted), main_pools(model)
    if "mode" not in wanted and "strict" not in wanted and not any("engines" in part for part in parts.values()):
        return
    sizes = {role: pool.desired_engines for role, pool in pools.items()}
    floors = {role: 0 if not sizes[role] else pool.floor for role, pool in pools.items()}
    if any(sizes.values()) or not model.strict:
        yield from too_small(model, model.mode, sizes, floors)
