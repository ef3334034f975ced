"""What `doctor` reads from the fleet's facts and telemetry: who speaks, whose clock is wrong, which table routers have, how
fast KV moves, how full nodes' disks are."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
import redis

from controlplane.core import checkup, names
from controlplane.core.checkup import Finding
from controlplane.core.codec import WrongShape, decode
from controlplane.core.protocol import AgentFact, RouterFact
from controlplane.core.signing import BadSignature, Secret, node_key, router_key, unseal
from controlplane.core.sketches import Sketch, merged
from controlplane.stack.doctor_servers import Rows

_MOST_ROWS = 5000
_LEAST_TRANSFERS = 20
"""Of fewer the median says little."""


@dataclass(frozen=True)
class Heard:
    """A fact, how old it is, and by how much its writer's clock is ahead of Valkey's. The age is taken from what is left of
    the key's life, so it needs no clock but Valkey's."""

    fact: AgentFact | RouterFact
    age_s: float
    ahead_s: float


def hear(client: redis.Redis, secret: Secret) -> tuple[dict[str, Heard], list[Finding]]:
    """Every well-signed fact by "<kind> <name>", and findings about the others. Raises redis errors."""
    heard, refused = {}, []
    for raw in sorted(client.scan_iter(match=names.fact_key("*", "*"), count=1000)):
        kind, _, name = raw.decode(errors="replace").removeprefix("fact:").partition(":")
        shown = f"{kind} {name!r:.80}" if not name.isprintable() else f"{kind} {name:.80}"
        pipeline = client.pipeline()
        pipeline.get(raw)
        pipeline.pttl(raw)
        pipeline.time()
        envelope, left_ms, clock = pipeline.execute()
        if not isinstance(envelope, bytes) or left_ms < 0:
            continue
        now, age_s = clock[0] + clock[1] / 1e6, names.FACT_TTL_S - left_ms / 1000
        try:
            fact = _open(kind, name, envelope, secret)
        except (BadSignature, WrongShape) as error:
            remedy = f"let it join again (`manage.py join-token {name:.63}`), or end whoever writes {raw!r:.100}"
            refused.append(Finding("facts", shown, "fail", f"its fact is not believed: {error}", remedy))
            continue
        heard[f"{kind} {name}"] = Heard(fact, age_s, fact.at - (now - age_s))
    return heard, refused


def _open(kind: str, name: str, envelope: bytes, secret: Secret) -> AgentFact | RouterFact:
    if kind == "agent":
        return decode(AgentFact, unseal(node_key(secret, name), envelope))
    return decode(RouterFact, unseal(router_key(secret), envelope))


def facts(heard: Mapping[str, Heard], rows: Rows, refused: Collection[str] = ()) -> Iterator[Finding]:
    """Every known node and every router that speaks, but those whose facts are not believed."""
    for name in sorted({*(f"agent {node}" for node in rows.nodes), *heard} - set(refused)):
        known = heard.get(name)
        yield checkup.fact(name, known.age_s if known else None, life_s=names.FACT_TTL_S)
        if known is None:
            continue
        yield checkup.clock(name, known.ahead_s)
        if not rows.read:
            continue
        if isinstance(known.fact, RouterFact):
            yield checkup.table(name, (known.fact.epoch, known.fact.generation), rows.stamp)
        elif known.fact.node not in rows.nodes:
            remedy = f"add it (`manage.py add_node {known.fact.node}`), or stop its agent"
            yield Finding("facts", name, "warn", "speaks, but the fleet does not know it", remedy)
    if not any(isinstance(each.fact, RouterFact) for each in heard.values()):
        yield Finding("facts", "routers", "fail", "no router speaks", "start one: python -m controlplane.router")


def engines(heard: Mapping[str, Heard]) -> Iterator[Finding]:
    """Those that failed, and models whose engines are of several versions."""
    versions: dict[str, set[str]] = {}
    for fact in _agents(heard):
        for engine in fact.engines:
            if engine.state == "failed":
                remedy = f"read its log (`manage.py engine_log {engine.id}`), then `manage.py retry_engine {engine.id}`"
                yield Finding("engines", f"engine {engine.id}", "fail", f"failed: {engine.reason:.200}", remedy)
            if engine.version and engine.state == "ready":
                versions.setdefault(engine.model, set()).add(engine.version)
    for model, seen in sorted(versions.items()):
        yield checkup.engine_versions(model, seen)


def urls(heard: Mapping[str, Heard]) -> list[tuple[str, str]]:
    """Engines that are ready, and where they serve."""
    return [(each.id, each.url) for fact in _agents(heard) for each in fact.engines if each.state == "ready" and each.url]


def has_real_gpus(heard: Mapping[str, Heard], address: str) -> bool:
    """Whether the agent of this address has GPUs that are not simulated."""
    return any(not gpu.simulated for fact in _agents(heard) if fact.address == address for gpu in fact.gpus)


def links(connection: psycopg.Connection[Any], heard: Mapping[str, Heard], rows: Rows) -> Iterator[Finding]:
    """How fast KV came to each node in the last ten minutes: mean bytes of a transfer by its median time. What a busy link
    gave, so a bound from below."""
    homes = {engine.id: fact.node for fact in _agents(heard) for engine in fact.engines}
    seen: dict[str, tuple[float, float, list[Sketch]]] = {}
    query = (
        "SELECT engine, transfer_bytes, transfers, transfer_ms FROM telemetry_engine_10s "
        "WHERE at > now() - interval '10 minutes' AND transfers > 0 AND transfer_ms IS NOT NULL ORDER BY at DESC LIMIT %s"
    )
    for engine, size, count, times in connection.execute(query, [_MOST_ROWS]):
        if engine in homes:
            total, number, sketches = seen.get(homes[engine], (0.0, 0.0, []))
            seen[homes[engine]] = (total + size, number + count, [*sketches, Sketch.from_bytes(bytes(times))])
    for node, (total, number, sketches) in sorted(seen.items()):
        median_ms = merged(sketches).quantile(0.5)
        if median_ms and number >= _LEAST_TRANSFERS:
            gbps = total / number * 8 / (median_ms / 1000) / 1e9
            how = f"per transfer (median of {number:.0f})"
            yield checkup.link(f"to {node}", gbps, (rows.gbps or {}).get(node, 100.0), how)


def disks(connection: psycopg.Connection[Any]) -> Iterator[Finding]:
    """Of nodes, as they told within the last minute."""
    query = (
        "SELECT DISTINCT ON (node) node, disk_free_bytes FROM telemetry_node_second "
        "WHERE at > now() - interval '1 minute' AND disk_free_bytes IS NOT NULL ORDER BY node, at DESC"
    )
    for node, free in connection.execute(query):
        yield checkup.disk(f"node {node}", free)


def _agents(heard: Mapping[str, Heard]) -> list[AgentFact]:
    return [each.fact for each in heard.values() if isinstance(each.fact, AgentFact)]
