"""Everything that changes what is desired: one function per verb, each one transaction of row, operation and audit entry.

Nothing here talks to a node or waits: the loop is woken after the commit and brings the fleet there. A refusal raises
`Refused` with its reasons and leaves no trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.db import IntegrityError, connection, transaction
from django.db.models import Q
from django.utils import timezone

from controlplane.control import commands
from controlplane.control.capacity import why_not
from controlplane.control.newmodel import MAX_ENGINES, NewModel, check
from controlplane.control.refused import Refused, refuse_all
from controlplane.core.accelerators import MEMORY_BYTES
from controlplane.core.lifecycle import ENDED, STEP, observe
from controlplane.core.names import check_node_name
from controlplane.fleet import models

NewStep = tuple[str, str, str]
"""(verb, role, engine)."""
MAX_REASON = 500
NAMES_LOCK = 0x6E616D65
"""PostgreSQL's advisory lock on the names of models."""


def add_node(actor: str, name: str, *, labels: Mapping[str, str] | None = None, reason: str = "") -> models.Operation:
    """Let an agent of this name join. Its GPUs appear once the agent reports."""
    try:
        check_node_name(name)
    except ValueError as error:
        raise Refused("invalid", str(error)) from error
    with transaction.atomic():
        try:
            with transaction.atomic():
                models.Node.objects.create(name=name, labels=dict(labels or {}))
        except IntegrityError as error:
            raise Refused("invalid", f"node {name} exists already") from error
        return record_change("add_node", actor, reason, f"node:{name}", after={"labels": dict(labels or {})})


def register_model(actor: str, new: NewModel, *, reason: str = "") -> models.Operation:
    """Offer a new model. Its pools are made with the sizes asked for; the loop starts the engines."""
    checked, reasons = check(new)
    reasons += tuple(_unknown_kinds(new))
    if checked is None or reasons:
        raise Refused("invalid", *reasons)
    with transaction.atomic():
        _lock_names()
        _refuse_taken_names(new)
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
            block_size=checked.engine_args.get("block_size", 16),
            kv_bytes_per_token=checked.kv.per_token,
            kv_fixed_bytes=checked.kv.fixed,
            kv_window_bytes_per_token=checked.kv.window_per_token,
            kv_window_tokens=checked.kv.window_tokens,
            max_model_len=checked.max_model_len,
            slo_ttft_ms=new.slo_ttft_ms,
            slo_itl_ms=new.slo_itl_ms,
        )
        pools = [
            models.Pool(
                model=model,
                role=pool.role,
                desired_engines=pool.engines,
                tensor_parallel=pool.tensor_parallel,
                gpu_kinds=list(pool.gpu_kinds),
                node_labels=dict(pool.node_labels),
            )
            for pool in new.all_pools()
        ]
        models.Pool.objects.bulk_create(pools)
        refuse_all("no_capacity", why_not([(pool, pool.desired_engines) for pool in pools]))
        after = {"mode": model.mode, "pools": {pool.role: pool.desired_engines for pool in pools}}
        steps = [("start", pool.role, "") for pool in pools for _ in range(pool.desired_engines)]
        return record_change("register_model", actor, reason, f"model:{model.name}", model=model, after=after, steps=steps)


def remove_model(actor: str, name: str, *, reason: str = "") -> models.Operation:
    """Offer a model no more. Only one whose pools are empty and whose engines have stopped: its history goes with it, the
    audit and the operations stay."""
    with transaction.atomic():
        model = _lock_model(name)
        _refuse_busy(model)
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
        return record_change("remove_model", actor, reason, f"model:{name}", before=before)


def scale_pool(actor: str, model_name: str, role: str, engines: int, *, reason: str = "") -> models.Operation:
    """Make a pool as large as asked. Supersedes what is still open of an earlier change of the same pool."""
    if not 0 <= engines <= MAX_ENGINES:
        raise Refused("invalid", f"a pool has 0 to {MAX_ENGINES} engines")
    with transaction.atomic():
        model = _lock_model(model_name)
        pool = models.Pool.objects.filter(model=model, role=role).first()
        if pool is None:
            raise Refused("not_found", f"{model_name} has no pool {role!r:.40}; pools: {', '.join(_roles(model)) or 'none'}")
        _refuse_busy(model, except_verbs=("scale_pool", "register_model"))
        members = models.Engine.objects.filter(model=model, role=role, wanted=True).count()
        if engines > members:
            refuse_all("no_capacity", why_not([(pool, engines - members)]))
        before = pool.desired_engines
        models.Pool.objects.filter(pk=pool.pk).update(desired_engines=engines)
        verb, count = ("start", engines - members) if engines > members else ("stop", members - engines)
        operation = record_change(
            "scale_pool",
            actor,
            reason,
            f"pool:{model.name}/{role}",
            model=model,
            before={"role": role, "engines": before},
            after={"role": role, "engines": engines},
            steps=[(verb, role, "")] * count,
        )
        _supersede(model, role, operation)
        return operation


def exchange_roles(actor: str, model_name: str, first: str, second: str, *, reason: str = "") -> models.Operation:
    """Swap the roles of two ready engines of one model. They keep running: a role is how routers use an engine."""
    with transaction.atomic():
        model = _lock_model(model_name)
        _refuse_busy(model)
        rows = {row.id: row for row in models.Engine.objects.select_for_update().filter(model=model, id__in=(first, second))}
        refuse_all("not_found", (f"{model_name} has no engine {id!r:.40}" for id in (first, second) if id not in rows))
        one, two = rows[first], rows[second]
        refuse_all("invalid", _exchange_problems(one, two))
        for row, role in ((one, two.role), (two, one.role)):
            models.Engine.objects.filter(pk=row.pk).update(role=role)
        return record_change(
            "exchange_roles",
            actor,
            reason,
            f"model:{model.name}",
            model=model,
            before={one.id: one.role, two.id: two.role},
            after={one.id: two.role, two.id: one.role},
            steps=[("retask", two.role, one.id), ("retask", one.role, two.id)],
        )


def retry_engine(actor: str, engine_id: str, *, reason: str = "") -> models.Operation:
    """Start an engine again that was given up after too many failures."""
    with transaction.atomic():
        row = models.Engine.objects.select_for_update().select_related("model").filter(id=engine_id).first()
        if row is None:
            raise Refused("not_found", f"there is no engine {engine_id!r:.40}")
        if not (row.wanted and row.state == "failed"):
            raise Refused("invalid", f"{row.id} is {row.state}: only a failed engine that is wanted is tried again")
        models.Engine.objects.filter(pk=row.pk).update(failures=0, retry_at=None)
        before = {"failures": row.failures, "reason": row.reason}
        steps = [("start", row.role, row.id)]
        return record_change("retry_engine", actor, reason, f"engine:{row.id}", model=row.model, before=before, steps=steps)


def _exchange_problems(one: models.Engine, two: models.Engine) -> list[str]:
    unready = [row for row in (one, two) if row.state != "ready" or not row.wanted]
    problems = [f"{row.id} is {row.state}, not ready: wait until it is" for row in unready]
    if one.role == two.role:
        problems.append(f"{one.id} and {two.id} both have the role {one.role}: name one of each")
    if (one.tensor_parallel, one.kind) != (two.tensor_parallel, two.kind):
        problems.append("their launch shapes differ: scale the pools instead, which replaces engines")
    selectors = {(tuple(pool.gpu_kinds), tuple(sorted(pool.node_labels.items()))) for pool in one.model.pools.all()}
    if len(selectors) > 1:
        problems.append("the pools select different GPUs: scale the pools instead, which replaces engines")
    return problems


def _lock_model(name: str) -> models.Model:
    """The model's row, locked: actions on one model come one after the other."""
    model = models.Model.objects.select_for_update().filter(name=name).first()
    if model is None:
        known = ", ".join(models.Model.objects.values_list("name", flat=True)[:20])
        raise Refused("not_found", f"there is no model {name!r:.140}; models: {known or 'none'}")
    return model


def _roles(model: models.Model) -> list[str]:
    return list(model.pools.values_list("role", flat=True))


def _lock_names() -> None:
    """Until the transaction ends nobody else names a model: no constraint sees that the aliases of two rows are the same."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [NAMES_LOCK])


def _refuse_taken_names(new: NewModel) -> None:
    taken = {name: model.name for model in models.Model.objects.all() for name in (model.name, *model.aliases)}
    wanted = (new.name, *new.aliases)
    refuse_all(
        "invalid",
        (
            f"the name {name} is taken by model {taken[name]}; to correct that one, scale its pools to 0 and remove_model it"
            for name in wanted
            if name in taken
        ),
    )
    if len(set(wanted)) != len(wanted):
        raise Refused("invalid", "an alias repeats another name of the model")


def _unknown_kinds(new: NewModel) -> Iterator[str]:
    """A pool for a kind that nobody has heard of would wait for ever."""
    asked = {kind for pool in new.pools for kind in pool.gpu_kinds} - MEMORY_BYTES.keys()
    if asked:
        present = set(models.Gpu.objects.values_list("kind", flat=True))
        known = ", ".join(sorted(present | MEMORY_BYTES.keys()))
        yield from (f"GPU kind {kind!r:.40} is not known; known: {known}" for kind in sorted(asked - present))


def _refuse_busy(model: models.Model, except_verbs: Sequence[str] = ()) -> None:
    open_ones = model.operations.exclude(state__in=ENDED).exclude(verb__in=except_verbs)
    refuse_all("busy", (f"operation {each.pk} ({each.verb}) still runs on {model.name}: wait for it" for each in open_ones))


def _supersede(model: models.Model, role: str, newer: models.Operation) -> None:
    """Unfinished steps of earlier operations on the same pool have lost their point; the loop ends their operations."""
    steps = models.Step.objects.filter(operation__model=model, role=role, state__in=("waiting", "running"))
    for step in steps.exclude(operation=newer).exclude(operation__state__in=ENDED):
        observe(STEP, step.state, "skipped")
        models.Step.objects.filter(pk=step.pk, state=step.state).update(
            state="skipped", reason=f"superseded by operation {newer.pk}", finished_at=timezone.now()
        )


def record_change(
    verb: str,
    actor: str,
    reason: str,
    subject: str,
    *,
    model: models.Model | None = None,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    steps: Sequence[NewStep] = (),
) -> models.Operation:
    """The operation with its steps and the audit entry, in the caller's transaction; the loop is woken on commit."""
    actor, reason = (text.encode(errors="replace").decode().replace("\x00", "") for text in (actor, reason))
    if len(reason) > MAX_REASON:
        raise Refused("invalid", f"reason: at most {MAX_REASON} characters, not {len(reason)}")
    changes = {"before": before or {}, "after": after or {}}
    operation = models.Operation.objects.create(verb=verb, model=model, actor=actor[:150], reason=reason, **changes)
    models.Step.objects.bulk_create(
        models.Step(operation=operation, index=index, verb=step_verb, role=role, engine=engine)
        for index, (step_verb, role, engine) in enumerate(steps)
    )
    models.AuditEntry.objects.create(
        actor=actor[:150], verb=verb, subject=subject[:255], reason=reason, operation=operation, **changes
    )
    transaction.on_commit(commands.wake)
    return operation
