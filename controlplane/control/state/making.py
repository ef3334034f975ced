"""From an edit of the document to the one action that makes it so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from controlplane.control import actions
from controlplane.control.actions import PlannerChange, RuleChange
from controlplane.control.actions.change import lock_model
from controlplane.control.actions.updates import write_update
from controlplane.control.actions.whole import of_pools, update_of
from controlplane.control.actor import Actor
from controlplane.control.newmodel import NewModel, NewPool
from controlplane.control.refused import Refused
from controlplane.control.state.document import deep, present
from controlplane.control.state.plainly import price_since
from controlplane.core.threeway import Edit
from controlplane.fleet import models

Make = Callable[[Actor, Edit, Mapping[str, Any], str], models.Operation]
NEW = ("source", "config", "engine_kind", "engine_args", "mode", "connector", "kv_lease_s")
SHAPE = ("engines", "tensor_parallel", "pipeline_parallel", "node_labels")


def make(actor: Actor, edit: Edit, reason: str) -> models.Operation:
    """Carry one edit out, in the caller's transaction. Raises Refused."""
    wanted = {path: value for path, (_, value) in edit.fields.items()}
    return MAKES[edit.section](actor, edit, wanted, reason)


def _team(actor: Actor, edit: Edit, wanted: Mapping[str, Any], reason: str) -> models.Operation:
    if edit.verb == "remove":
        return actions.remove_team(actor, edit.name, reason=reason)
    return actions.set_team(actor, edit.name, wanted.get("gpu_quota"), reason=reason)


def _rule(actor: Actor, edit: Edit, wanted: Mapping[str, Any], reason: str) -> models.Operation:
    rule, _, model = edit.name.partition("/")
    if edit.verb == "remove":
        return actions.set_alert_rule(actor, rule, RuleChange(), model=model, reason=reason)
    if not wanted:
        raise Refused("invalid", "say at least one thing of it, or null to take the setting back")
    now = present()["alert_rules"].get(edit.name) or {}
    return actions.set_alert_rule(actor, rule, RuleChange(**{**now, **wanted}), model=model, reason=reason)


def _model(actor: Actor, edit: Edit, wanted: Mapping[str, Any], reason: str) -> models.Operation:
    if edit.verb == "remove":
        return actions.retire_model(actor, edit.name, reason=reason)
    if edit.verb == "change":
        return actions.apply_model(actor, edit.name, wanted, reason=reason)
    return _new_model(actor, edit.name, wanted, reason)


def _new_model(actor: Actor, name: str, wanted: Mapping[str, Any], reason: str) -> models.Operation:
    """Registered, with the settings that a registration does not take written in the same transaction: the model is seen by
    nobody without them, and its operation is one."""
    missing = [field for field in ("source", "config") if not wanted.get(field)]
    if missing:
        raise Refused("invalid", f"a model that is not there yet needs {' and '.join(missing)}")
    fields = {field: wanted[field] for field in NEW if field in wanted}
    slo = {f"slo_{field}": wanted[f"slo.{field}"] for field in ("ttft_ms", "itl_ms") if f"slo.{field}" in wanted}
    pools = tuple(_new_pool(role, part) for role, part in of_pools(wanted).items())
    new = NewModel(name, **fields, **slo, pools=pools, aliases=tuple(wanted.get("aliases", ())))
    operation = actions.register_model(actor, new, reason=reason)
    row = lock_model(name)
    later = {path: value for path, value in wanted.items() if path != "aliases" and (path, value) != ("team", "")}
    write_update(actor, row, update_of(later, {pool.role: pool for pool in row.pools.all()}))
    return operation


def _new_pool(role: str, part: Mapping[str, Any]) -> NewPool:
    shape = {field: part[field] for field in SHAPE if field in part}
    return NewPool(role, gpu_kinds=tuple(part.get("gpu_kinds", ())), **shape)


def _planner(actor: Actor, edit: Edit, wanted: Mapping[str, Any], reason: str) -> models.Operation:
    if edit.verb == "remove":
        raise Refused("invalid", "a model always has planner settings: give level: off, or leave it out")
    parts = deep(wanted)
    wrong = [part for part in parts.get("guards", {}) if "." in part]
    if wrong:
        raise Refused("invalid", f"guards: there is no guard {wrong[0]!r:.40}")
    return actions.set_planner(actor, edit.name, PlannerChange(**parts), reason=reason)


def _price(actor: Actor, edit: Edit, wanted: Mapping[str, Any], reason: str) -> models.Operation:
    kind, since = price_since(edit.name)
    if since is None:
        raise Refused("invalid", "a price is named by its kind and when it begins, such as h100-sxm/2026-12-01T00:00Z")
    if edit.verb == "remove":
        return actions.remove_price(actor, models.GpuPrice.objects.get(kind=kind, valid_from=since).pk, reason=reason)
    now = present()["prices"].get(edit.name) or {}
    price = {**now, **wanted}
    if "per_hour" not in price:
        raise Refused("invalid", "a price needs per_hour, US dollars of one GPU for one hour")
    terms = price.get("terms", models.Terms.HOURLY)
    return actions.set_price(actor, kind, price["per_hour"], terms=terms, valid_from=since, reason=reason)


MAKES: Mapping[str, Make] = {
    "teams": _team,
    "models": _model,
    "planners": _planner,
    "alert_rules": _rule,
    "prices": _price,
}
