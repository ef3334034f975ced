"""Single engines."""

from __future__ import annotations

from django.db import transaction

from controlplane.control.actions.change import NewStep, begin, forbid, record_change
from controlplane.control.actor import Actor
from controlplane.control.refused import Refused, refuse_all
from controlplane.fleet import models


def exchange_roles(actor: Actor, model_name: str, first: str, second: str, *, reason: str = "") -> models.Operation:
    """Swap the roles of two ready engines of one model. They keep running: a role is how routers use an engine."""
    with transaction.atomic():
        model = begin(actor, "exchange_roles", model_name).model
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
            steps=[NewStep("retask", two.role, one.id), NewStep("retask", one.role, two.id)],
        )


def retry_engine(actor: Actor, engine_id: str, *, reason: str = "") -> models.Operation:
    """Start an engine again that was given up after too many failures."""
    with transaction.atomic():
        row = models.Engine.objects.select_for_update().select_related("model").filter(id=engine_id).first()
        if row is None:
            raise Refused("not_found", f"there is no engine {engine_id!r:.40}")
        forbid(actor, "retry_engine", row.model.team)
        if not (row.wanted and row.state == "failed"):
            raise Refused("invalid", f"{row.id} is {row.state}: only a failed engine that is wanted is tried again")
        models.Engine.objects.filter(pk=row.pk).update(failures=0, retry_at=None)
        before = {"failures": row.failures, "reason": row.reason}
        steps = [NewStep("start", row.role, row.id, row.arm)]
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
