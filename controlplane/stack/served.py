"""Whether the fleet serves: by what routers were told, what agents say now, and what this router answers.

A table outlives a stop, and so does the last fact of an agent for some seconds: neither alone says that engines run now.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable

import redis

from controlplane.common.valkey import UNREACHABLE, connect_sync
from controlplane.core import names, signing
from controlplane.core.codec import WrongShape, decode
from controlplane.core.protocol import ROLES_OF_MODE, AgentFact, ModelRoute, RoutingTable
from controlplane.stack import health
from controlplane.stack.services import Plan


async def unserved(plan: Plan, models: Iterable[str], since: float) -> list[str]:
    """Those of `models` that the router cannot serve with engines seen alive since then (Unix seconds)."""
    table = await asyncio.to_thread(_living_table, plan, since)
    pages = {name: await health.get(plan.host, plan.endpoints.router_port, f"/readyz?model={name}") for name in models}
    return [
        name
        for name, (status, body) in pages.items()
        if status != 200 or table is None or not _covers(table, name) or _stamp(body) != table.stamp
    ]


def _living_table(plan: Plan, since: float) -> RoutingTable | None:
    """The published table, if each of its engines is ready by a fact told since then; None otherwise."""
    secret = plan.state.fleet_keys()
    try:
        with connect_sync(plan.endpoints.valkey_url) as client:
            table = decode(RoutingTable, signing.unseal(signing.table_key(secret), _get(client, names.TABLE_KEY)))
            nodes = {engine.node for model in table.models for engine in model.engines}
            facts = [_fact(client, secret, node) for node in nodes]
    except (*UNREACHABLE, signing.BadSignature, WrongShape):
        return None
    ready = {
        (fact.node, engine.id, engine.incarnation)
        for fact in facts
        for engine in fact.engines
        if fact.at >= since and engine.state == "ready"
    }
    listed = {(engine.node, engine.id, engine.incarnation) for model in table.models for engine in model.engines}
    return table if listed <= ready else None


def _fact(client: redis.Redis, secret: signing.Secret, node: str) -> AgentFact:
    envelope = _get(client, names.fact_key("agent", node))
    return decode(AgentFact, signing.unseal(signing.node_key(secret, node), envelope))


def _get(client: redis.Redis, key: str) -> bytes:
    value = client.get(key)
    return value if isinstance(value, bytes) else b""


def _covers(table: RoutingTable, name: str) -> bool:
    return any(model.name == name and _has_every_role(model) for model in table.models)


def _has_every_role(model: ModelRoute) -> bool:
    return set(ROLES_OF_MODE[model.mode]) <= {engine.role for engine in model.engines}


def _stamp(body: bytes) -> tuple[int, int] | None:
    """(epoch, generation) of the table that the router has applied, as its readiness page says it."""
    try:
        table = json.loads(body)["table"]
        return (table["epoch"], table["generation"])
    except (ValueError, KeyError, TypeError):
        return None
