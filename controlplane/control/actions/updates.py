"""What a registered model is: its settings, what its engines are started with, and that it is offered no more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from django.db import transaction
from django.db.models import F

from controlplane.control.actions.change import begin, forbid
from controlplane.control.actions.registration import lock_names, names_taken, unknown_kinds
from controlplane.control.actions.sizes import main_pools, replace_steps, size_steps, too_small
from controlplane.control.actor import Actor
from controlplane.control.desire import split_key
from controlplane.control.newmodel import MAX_CONTEXT, MAX_ENGINES, MAX_SLO_MS, NAME, Checked, NewModel, NewPool, check
from controlplane.control.refused import Refused, refuse_all
from controlplane.core.protocol import OnPrefillLoss
from controlplane.core.storable import storable_text
from controlplane.fleet import models


@dataclass(frozen=True)
class Selector:
    """Which GPUs a pool takes: empty accepts any."""

    gpu_kinds: tuple[str, ...] = ()
    node_labels: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Update:
    """What shall be otherwise; None: left as it is. `floors` and `selectors` are by pool ("decode", "canary/mixed").

    Nothing here restarts an engine: a selector holds for engines that are placed from now on. What engines are started
    with is changed by `roll_out`.
    """

    aliases: Sequence[str] | None = None
    team: str | None = None
    slo_ttft_ms: float | None = None
    slo_itl_ms: float | None = None
    conditional_min_uncached_tokens: int | None = None
    conditional_min_uncached_ratio: float | None = None
    on_prefill_loss: str | None = None
    strict: bool | None = None
    floors: Mapping[str, int] | None = None
    selectors: Mapping[str, Selector] | None = None


PLAIN = (
    *("slo_ttft_ms", "slo_itl_ms", "conditional_min_uncached_tokens", "conditional_min_uncached_ratio"),
    *("on_prefill_loss", "strict", "team"),
)


def update_model(
    actor: Actor, name: str, update: Update, *, reason: str = "", expected_version: int | None = None
) -> models.Operation:
    """Change settings of a model that no engine has to be restarted for."""
    with transaction.atomic():
        if update.aliases is not None:
            lock_names()
        change = begin(actor, "update_model", name, reason=reason, expected_version=expected_version)
        write_update(actor, change.model, update)
        return change.record(done=True)


def write_update(actor: Actor, model: models.Model, update: Update) -> None:
    """Check an update and write it, in a transaction that has locked the model, and the names if there are aliases. Raises
    Refused."""
    if update.team is not None:
        forbid(actor, "set_owner")
    pools = {(pool.role, pool.arm): pool for pool in model.pools.all()}
    refuse_all("invalid", _problems(model, update, pools))
    fields = {field: value for field in PLAIN if (value := getattr(update, field)) is not None}
    if update.aliases is not None:
        fields["aliases"] = list(update.aliases)
    models.Model.objects.filter(pk=model.pk).update(version=F("version"), **fields)
    if update.strict and not model.strict:
        refuse_all("unsafe", _empty(model.name))
    for key, floor in (update.floors or {}).items():
        models.Pool.objects.filter(pk=pools[split_key(key)].pk).update(floor=floor)
    for key, selector in (update.selectors or {}).items():
        models.Pool.objects.filter(pk=pools[split_key(key)].pk).update(
            gpu_kinds=list(selector.gpu_kinds), node_labels=dict(selector.node_labels or {})
        )


def _problems(model: models.Model, update: Update, pools: Mapping[tuple[str, str], models.Pool]) -> Iterator[str]:
    aliases = update.aliases if update.aliases is not None else ()
    for alias in aliases:
        if not NAME.fullmatch(alias):
            yield f"alias {alias!r:.140}: letters, digits, '.', '_' and '-', in parts divided by single '/'"
    yield from names_taken([model.name, *aliases], besides=model)
    yield from _bad_numbers(update)
    if update.team and not models.Team.objects.filter(name=storable_text(update.team)).exists():
        known = ", ".join(models.Team.objects.values_list("name", flat=True)[:20])
        yield f"there is no team {update.team!r:.80}; teams: {known or 'none'}"
    if update.on_prefill_loss is not None and update.on_prefill_loss not in get_args(OnPrefillLoss):
        yield f"on_prefill_loss {update.on_prefill_loss!r:.40}: one of {', '.join(get_args(OnPrefillLoss))}"
    known_pools = ", ".join(role if arm == models.MAIN else f"{arm}/{role}" for role, arm in pools)
    for key in (*(update.floors or ()), *(update.selectors or ())):
        if split_key(key) not in pools:
            yield f"there is no pool {key!r:.40}; pools: {known_pools or 'none'}"
    for key, floor in (update.floors or {}).items():
        if isinstance(floor, bool) or not isinstance(floor, int) or not 0 <= floor <= MAX_ENGINES:
            yield f"floor of pool {key!r:.40}: 0 to {MAX_ENGINES}, not {floor!r:.20}"
    yield from unknown_kinds(kind for selector in (update.selectors or {}).values() for kind in selector.gpu_kinds)


def _empty(name: str) -> Iterator[str]:
    """Pools that a strict model could not do without; a model that has no engines at all may become strict."""
    model = models.Model.objects.get(name=name)
    sizes = {role: pool.desired_engines for role, pool in main_pools(model).items()}
    if any(sizes.values()):
        yield from too_small(model, model.mode, sizes, dict.fromkeys(sizes, 0))


def _bad_numbers(update: Update) -> Iterator[str]:
    """Bounds as they are for a new model."""
    for field, low, high in (
        ("slo_ttft_ms", 1, MAX_SLO_MS),
        ("slo_itl_ms", 1, MAX_SLO_MS),
        ("conditional_min_uncached_tokens", 0, MAX_CONTEXT),
        ("conditional_min_uncached_ratio", 0, 1),
    ):
        value = getattr(update, field)
        if value is not None and not (isinstance(value, int | float) and low <= value <= high):
            yield f"{field}: {low} to {high}, not {value!r:.20}"


@dataclass(frozen=True)
class RollOut:
    """What engines are started with from now on; None: as before. `engine_args` replace all there were; `config` is the
    model's config.json. All None: the same again, for what changed on the nodes (another version of the engine)."""

    source: str | None = None
    config: str | Mapping[str, Any] | None = None
    engine_args: Mapping[str, Any] | None = None
    kv_lease_s: float | None = None


def roll_out(
    actor: Actor, name: str, to: RollOut, *, reason: str = "", expected_version: int | None = None
) -> models.Operation:
    """Replace every engine of a model by one of the newest launch, pool by pool above their floors; until the end only
    engines that are alike hand KV to each other."""
    with transaction.atomic():
        change = begin(actor, "roll_out", name, reason=reason, expected_version=expected_version)
        write_launch(change.model, to)
        steps = replace_steps(change.model)
        return change.record(steps, done=not steps)


def write_launch(model: models.Model, to: RollOut) -> None:
    """Check what engines shall be started with and write it, in a transaction that has locked the model. Raises Refused."""
    checked = check_launch(model, to)
    fields = {"source": to.source, "kv_lease_s": to.kv_lease_s}
    models.Model.objects.filter(pk=model.pk).update(
        **{field: value for field, value in fields.items() if value is not None},
        config=checked.config,
        engine_args=checked.engine_args,
        **checked.columns(),
        launch_number=F("launch_number") + 1,
    )


def check_launch(model: models.Model, to: RollOut) -> Checked:
    """The model as it would be registered with what is new. Raises Refused with every problem."""
    rows = model.pools.filter(arm=models.MAIN)
    pools = tuple(
        NewPool(pool.role, pool.desired_engines, pool.tensor_parallel, pipeline_parallel=pool.pipeline_parallel)
        for pool in rows
    )
    now = NewModel(
        name=model.name,
        source=model.source,
        config=model.config,
        engine_kind=model.engine_kind,
        engine_args=model.engine_args,
        mode=model.mode,
        connector=model.connector,
        pools=pools,
        kv_lease_s=model.kv_lease_s,
        slo_ttft_ms=model.slo_ttft_ms,
        slo_itl_ms=model.slo_itl_ms,
    )
    changed: dict[str, Any] = {
        field: value
        for field in ("source", "config", "engine_args", "kv_lease_s")
        if (value := getattr(to, field)) is not None
    }
    checked, reasons = check(replace(now, **changed))
    if checked is None:
        raise Refused("invalid", *reasons)
    return checked


def retire_model(actor: Actor, name: str, *, reason: str = "", expected_version: int | None = None) -> models.Operation:
    """Offer a model no more: its engines finish what they have and stop, then its row goes. Its history goes with it; audit
    and operations stay."""
    with transaction.atomic():
        change = begin(actor, "retire_model", name, reason=reason, expected_version=expected_version)
        model = change.model
        if canary := model.canaries.filter(ended_at=None).first():
            raise Refused("busy", f"canary {canary.pk} of {name} runs: end it first")
        models.Model.objects.filter(pk=model.pk).update(retiring=True)
        models.Pool.objects.filter(model=model).update(desired_engines=0)
        return change.record(size_steps(change))
