"""The routing table: first the row in PostgreSQL, then the signed copy in Valkey, and again whenever Valkey has lost it."""

from __future__ import annotations

import logging
from typing import Any

import redis
from django.utils import timezone

from controlplane.config import config
from controlplane.control.gather import newest_stamp
from controlplane.control.keys import valid_keys
from controlplane.core import names
from controlplane.core.codec import WrongShape, decode, encode
from controlplane.core.lifecycle import SERVING
from controlplane.core.pairs import peers_listed
from controlplane.core.protocol import ModelRoute, RoutingTable
from controlplane.core.ramp import weights
from controlplane.core.signing import BadSignature, seal, table_key, unseal
from controlplane.core.table import DEFAULT_MAX_NUM_SEQS, build_table, next_stamp
from controlplane.core.world import World
from controlplane.fleet import models

log = logging.getLogger(__name__)

Stamp = tuple[int, int]


class TablePublisher:
    """Remembers which models it said to be left out, so that it says so once."""

    def __init__(self, valkey: redis.Redis, fleet_secret: bytes) -> None:
        self._valkey = valkey
        self._key = table_key(fleet_secret)
        self._left_out: dict[str, str] = {}

    def publish(self, world: World) -> dict[str, Any]:
        """Bring the table up to `world` in both places; returns the newest document. Raises redis and database errors."""
        row, _ = models.TableState.objects.get_or_create(id=1)
        current = (row.epoch, row.generation)
        in_valkey = _stamp_in_valkey(self._valkey, self._key)
        seen = max(newest_stamp(world.routers), in_valkey)
        keys, require_key = valid_keys(timezone.now()), config().require_key
        table, left_out = build_table(
            _offered(world),
            world.engines,
            _max_num_seqs(),
            current,
            keys,
            require_key,
            peers_listed(world, world.models),
            weights(world),
        )
        self._say(left_out)
        document: dict[str, Any] = encode(table)
        if table != _as_table(row.document) or seen > current:
            stamp = next_stamp(current, [seen])
            document |= {"epoch": stamp[0], "generation": stamp[1]}
            mine = models.TableState.objects.filter(id=1, epoch=current[0], generation=current[1])
            if not mine.update(epoch=stamp[0], generation=stamp[1], document=document, published_at=timezone.now()):
                return row.document or document  # another worker was faster; the next tick sees its table
            log.info("routing table %d:%d: %s", *stamp, _summary(document))
            current = stamp
        if in_valkey != current:
            self._valkey.set(names.TABLE_KEY, seal(self._key, document))
            self._valkey.publish(names.TABLE_CHANNEL, f"{current[0]}:{current[1]}")
        return document

    def _say(self, left_out: dict[str, str]) -> None:
        for name, why in left_out.items():
            if self._left_out.get(name) != why:
                log.error("model %s is left out of the routing table: %s", name, why)
        self._left_out = left_out


def _offered(world: World) -> list[ModelRoute]:
    """A model that retires stays until its engines have finished what they have."""
    holding = {engine.model for engine in world.engines if engine.state in SERVING}
    return [model for model in world.models if model.name in holding or not world.target(model).retiring]


def _as_table(document: dict[str, Any] | None) -> RoutingTable | None:
    """A stored table as the value it was made from: PostgreSQL gives back large floats as integers, which would make every
    tick's table look new. None if it is none."""
    try:
        return decode(RoutingTable, document)
    except WrongShape:
        return None


def _stamp_in_valkey(valkey: redis.Redis, key: bytes) -> Stamp:
    """(0, 0) if there is no table, or none that we signed."""
    try:
        envelope = valkey.get(names.TABLE_KEY)
    except redis.ResponseError as error:
        if not str(error).startswith("WRONGTYPE"):
            raise
        log.warning("something else was stored under the routing table's key: it is replaced")
        return (0, 0)
    if not isinstance(envelope, bytes):
        return (0, 0)
    try:
        document = unseal(key, envelope)
        return (int(document["epoch"]), int(document["generation"]))
    except (BadSignature, KeyError, TypeError, ValueError):
        return (0, 0)


def _max_num_seqs() -> dict[str, int]:
    rows = models.Model.objects.values_list("name", "engine_args")
    return {name: args.get("max_num_seqs", DEFAULT_MAX_NUM_SEQS) for name, args in rows}


def _summary(document: dict[str, Any]) -> str:
    parts = (f"{model['name']} {len(model['engines'])} engines ({model['mode']})" for model in document["models"])
    return ", ".join(parts) or "no models"
