"""The fleet secret is changed for another in four steps, with traffic going on: `prepare` makes the next one, which is
believed from then on; `distribute` gives nodes their keys of it; `switch` signs with it and starts engines with keys of it;
`finish` believes the former one no more, once no engine has a key of it. Each may be repeated; what is where is read from
facts, not remembered.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import redis
from celery.exceptions import TimeoutError as NoAnswer
from django.db import transaction

from controlplane.common.files import KEY_BYTES
from controlplane.common.keyring import Ring, read_ring, write_ring
from controlplane.config import config
from controlplane.control import commands
from controlplane.control.actions import forbid, record_change
from controlplane.control.actor import Actor
from controlplane.control.refused import Refused, refuse_all
from controlplane.core import names
from controlplane.core.signing import BadSignature, generation_of, node_key, router_key, unseal
from controlplane.fleet import models

GONE = ("planned", "stopped", "failed")


@dataclass(frozen=True)
class Status:
    """`nodes`, `routers`: the generation whose key each signs with, None if it is not heard. `engines`: how many have a
    key of each generation."""

    present: int
    believed: tuple[int, ...]
    nodes: Mapping[str, int | None]
    routers: Mapping[str, int | None]
    engines: Mapping[int, int]

    @property
    def newest(self) -> int:
        return max(self.believed)

    def behind(self) -> Iterator[str]:
        """Who does not have the newest key."""
        for kind, found in (("node", self.nodes), ("router", self.routers)):
            for name, generation in found.items():
                if generation is None:
                    yield f"{kind} {name} is not heard: start it, or remove it"
                elif generation < self.newest:
                    remedy = (
                        "distribute it again" if kind == "node" else "copy both files of the fleet secret to its machine"
                    )
                    yield f"{kind} {name} has not the new key yet: {remedy}"


def status(valkey: redis.Redis) -> Status:
    """Raises BadKey, redis.RedisError."""
    ring = read_ring(_path())
    nodes = {name: _signed_with(valkey, ring, "agent", name) for name in _nodes()}
    heard = sorted(raw.decode(errors="replace") for raw in valkey.scan_iter(names.fact_key("router", "*")))
    routers = {name: _signed_with(valkey, ring, "router", name) for name in (key.rpartition(":")[2] for key in heard)}
    running = models.Engine.objects.exclude(state__in=GONE).filter(incarnation__gt=0)
    engines = Counter(generation_of(each) for each in running.values_list("incarnation", flat=True))
    return Status(ring.generation, tuple(ring.keys), nodes, routers, dict(engines))


def prepare(actor: Actor, *, reason: str = "") -> None:
    """Make the next secret, unless there is one. Every control worker must have it before anybody signs with it."""
    forbid(actor, "rotate_secret")
    ring = read_ring(_path())
    if any(number < ring.generation for number in ring.keys):
        raise Refused("busy", "the former secret is believed still: finish that rotation first")
    with transaction.atomic():
        if ring.next is None:
            ring = Ring(ring.generation, {**ring.keys, ring.generation + 1: secrets.token_bytes(KEY_BYTES)})
            write_ring(_path(), ring)
        _record(actor, "prepare", reason, ring)


def distribute(actor: Actor, *, reason: str = "") -> list[str]:
    """Give every node its key of the next secret, with which it signs at once. Returns which nodes did not take it."""
    forbid(actor, "rotate_secret")
    ring = read_ring(_path())
    if ring.next is None:
        raise Refused("invalid", "there is no next secret: prepare it first")
    with transaction.atomic():
        _record(actor, "distribute", reason, ring)
    return list(_give(ring.next, alone=False))


def switch(actor: Actor, valkey: redis.Redis, *, force: bool = False, reason: str = "") -> None:
    """Sign with the next secret from now on. Refused while a node or router has it not, unless `force`: those are not
    believed and hear nothing any more."""
    forbid(actor, "rotate_secret")
    ring = read_ring(_path())
    if ring.next is None:
        raise Refused("invalid", "there is no next secret: prepare it first")
    if not force:
        refuse_all("unsafe", status(valkey).behind())
    ring = Ring(ring.generation + 1, ring.keys)
    with transaction.atomic():
        _record(actor, "switch", reason, ring)
        write_ring(_path(), ring)


def finish(actor: Actor, valkey: redis.Redis, *, force: bool = False, reason: str = "") -> list[str]:
    """Believe the former secret no more. Refused while engines have keys of it, unless `force`: those are cut off. Returns
    which nodes still believe it."""
    forbid(actor, "rotate_secret")
    ring = read_ring(_path())
    if all(number >= ring.generation for number in ring.keys):
        raise Refused("invalid", "no former secret is believed: there is nothing to finish")
    if not force:
        refuse_all("unsafe", (*_old_engines(ring), *status(valkey).behind()))
    problems = list(_give(ring.keys[ring.generation], alone=True))
    ring = Ring(ring.generation, {ring.generation: ring.keys[ring.generation]})
    with transaction.atomic():
        _record(actor, "finish", reason, ring)
        write_ring(_path(), ring)
    return problems


def _old_engines(ring: Ring) -> Iterator[str]:
    rows = models.Engine.objects.exclude(state__in=GONE).filter(incarnation__gt=0)
    old = Counter(name for name, n in rows.values_list("model__name", "incarnation") if generation_of(n) < ring.generation)
    for name, count in sorted(old.items()):
        yield f"{count} engines of {name} have keys of the former secret: manage.py roll_out {name} first"


def _give(secret: bytes, *, alone: bool) -> Iterator[str]:
    for name in _nodes():
        try:
            problem = commands.rekey(name, secret, alone=alone)
        except NoAnswer:
            problem = "it does not answer"
        if problem:
            yield f"node {name}: {problem}"


def _nodes() -> list[str]:
    return list(models.Node.objects.order_by("name").values_list("name", flat=True))


def _signed_with(valkey: redis.Redis, ring: Ring, kind: str, name: str) -> int | None:
    envelope = valkey.get(names.fact_key(kind, name))
    for generation, secret in ring.keys.items():
        key = node_key(secret, name) if kind == "agent" else router_key(secret)
        try:
            unseal(key, envelope if isinstance(envelope, bytes) else b"")
        except BadSignature:
            continue
        return generation
    return None


def _record(actor: Actor, step: str, reason: str, ring: Ring) -> None:
    after = {"step": step, "generation": ring.generation, "believed": sorted(ring.keys)}
    record_change("rotate_secret", actor, reason, "fleet:secret", after=after, done=True)


def _path() -> Path:
    settings = config()
    return settings.fleet_secret_file or settings.state / "secrets" / "fleet.key"
