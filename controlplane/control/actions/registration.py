"""Which models are offered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from django.db import connection, transaction
from django.db.models import Q

from controlplane.control.actions.change import NewStep, begin, forbid, record_change
from controlplane.control.actor import Actor
from controlplane.control.capacity import why_not
from controlplane.control.newmodel import NewModel, check
from controlplane.control.refused import Refused, refuse_all
from controlplane.core.accelerators import MEMORY_BYTES
from controlplane.fleet import models

NAMES_LOCK = 0x6E616D65
"""PostgreSQL's advisory lock on the names of models."""


def register_model(actor: Actor, new: NewModel, *, reason: str = "") -> models.Operation:
    """Offer a new model. Its pools are made with the sizes asked for; the loop starts the engines."""
    forbid(actor, "register_model")
    checked, reasons = check(new)
    reasons += tuple(unknown_kinds(kind for pool in new.pools for kind in pool.gpu_kinds))
    if checked is None or reasons:
        raise Refused("invalid", *reasons)
    with transaction.atomic():
        lock_names()
        refuse_all("invalid", names_taken((new.name, *new.aliases)))
        model = models.Model.objects.create(
            name=new.name,
            aliases=list(new.aliases),
            source=new.source,
            config=checked.config,
            engine_kind=new.engine_kind,
            engine_args=checked.engine_args,
            mode=new.mode,
            served_mode=new.mode,
            connector=new.connector,
            kv_lease_s=new.kv_lease_s,
            **checked.columns(),
            slo_ttft_ms=new.slo_ttft_ms,
            slo_itl_ms=new.slo_itl_ms,
        )
        pools = [
            models.Pool(
                model=model,
                role=pool.role,
                desired_engines=pool.engines,
                tensor_parallel=pool.tensor_parallel,
                pipeline_parallel=pool.pipeline_parallel,
                gpu_kinds=list(pool.gpu_kinds),
                node_labels=dict(pool.node_labels),
            )
            for pool in new.all_pools()
        ]
        models.Pool.objects.bulk_create(pools)
        refuse_all("no_capacity", why_not([(pool, pool.desired_engines) for pool in pools]))
        after = {"mode": model.mode, "pools": {pool.role: pool.desired_engines for pool in pools}}
        steps = [NewStep("start", pool.role) for pool in pools for _ in range(pool.desired_engines)]
        return record_change(
            "register_model",
            actor,
            reason,
            f"model:{model.name}",
            model=model,
            after=after,
            steps=steps,
            done=not steps,
        )


def remove_model(actor: Actor, name: str, *, reason: str = "") -> models.Operation:
    """Offer a model no more. Only one whose pools are empty and whose engines have stopped: its history goes with it, the
    audit and the operations stay."""
    with transaction.atomic():
        model = begin(actor, "remove_model", name).model
        refuse_all(
            "busy",
            (
                f"pool {pool.role} wants {pool.desired_engines} engines: first scale_pool {name} {pool.role} 0"
                for pool in model.pools.filter(desired_engines__gt=0)
            ),
        )
        alive = Q(wanted=True) | ~Q(state="stopped") | Q(ranks__reservations__isnull=False)
        refuse_all(
            "busy",
            (
                f"engine {engine.id} is {engine.state}: wait until it has stopped and its GPUs are free"
                for engine in model.engines.filter(alive).distinct()
            ),
        )
        before = {"source": model.source, "mode": model.mode, "aliases": model.aliases, "config": model.config}
        model.delete()
        return record_change("remove_model", actor, reason, f"model:{name}", before=before, done=True)


def lock_names() -> None:
    """Until the transaction ends nobody else names a model: no constraint sees that the aliases of two rows are the same."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [NAMES_LOCK])


def names_taken(wanted: Sequence[str], besides: models.Model | None = None) -> Iterator[str]:
    """Names that another model has, or that come twice. To be asked under `lock_names`."""
    others = [model for model in models.Model.objects.all() if model != besides]
    taken = {name: model.name for model in others for name in (model.name, *model.aliases)}
    for name in wanted:
        if name in taken:
            yield f"the name {name} is taken by model {taken[name]}; to correct that one, retire_model it"
    if len(set(wanted)) != len(wanted):
        yield "an alias repeats another name of the model"


def unknown_kinds(kinds: Iterable[str]) -> Iterator[str]:
    """A pool for a kind that nobody has heard of would wait for ever."""
    asked = set(kinds) - MEMORY_BYTES.keys()
    if asked:
        present = set(models.Gpu.objects.values_list("kind", flat=True))
        known = ", ".join(sorted(present | MEMORY_BYTES.keys()))
        yield from (f"GPU kind {kind!r:.40} is not known; known: {known}" for kind in sorted(asked - present))
