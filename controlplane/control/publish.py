"""The routing table: first the row in PostgreSQL, then the signed copy in Valkey, and again whenever Valkey has lost it."""

from __future__ import annotations

import logging
from typing import Any

import redis
from django.utils import timezone

from controlplane.config import config
from controlplane.control.gather import newest_stamp
from controlplane.control.keys import valid_keys
from controlplane.control.stored_table import Stamp, StoredTable, read_table, write_table
from controlplane.core import names
from controlplane.core.codec import encode
from controlplane.core.lifecycle import SERVING
from controlplane.core.pairs import peers_listed
from controlplane.core.protocol import ModelRoute
from controlplane.core.ramp import weights
from controlplane.core.signing import BadSignature, Secret, opened, present, seal, table_key
from controlplane.core.table import DEFAULT_MAX_NUM_SEQS, build_table, next_stamp
from controlplane.core.world import World
from controlplane.fleet import models

log = logging.getLogger(__name__)


class TablePublisher:
    """Remembers which models it said to be left out, so that it says so once, and what it published last, so that a table
    that has not changed is neither read nor written again."""

    def __init__(self, valkey: redis.Redis, fleet_secret: Secret) -> None:
        self._valkey = valkey
        self._key = table_key(fleet_secret)
        self._left_out: dict[str, str] = {}
        self._told: tuple[bytes, Stamp] = (b"", (0, 0))
        self._signed = b""

    def publish(self, world: World) -> StoredTable:
        """Bring the table up to `world` in both places; returns the newest. Raises redis and database errors."""
        stored = read_table()
        in_valkey = self._stamp_in_valkey()
        seen = max(newest_stamp(world.routers), in_valkey)
        keys, require_key = valid_keys(timezone.now()), config().require_key
        table, left_out = build_table(
            _offered(world),
            world.engines,
            _max_num_seqs(),
            stored.stamp,
            keys,
            require_key,
            peers_listed(world, world.models),
            weights(world),
        )
        self._say(left_out)
        if table != stored.table or seen > stored.stamp:
            stamp = next_stamp(stored.stamp, [seen])
            document = {**encode(table), "epoch": stamp[0], "generation": stamp[1]}
            if not write_table(stored.stamp, stamp, document):
                return read_table()  # another worker was faster
            log.info("routing table %d:%d: %s", *stamp, _summary(document))
            stored = read_table()
        if in_valkey != stored.stamp:
            envelope, self._signed = seal(self._key, stored.document), present(self._key)
            self._valkey.set(names.TABLE_KEY, envelope)
            self._valkey.publish(names.TABLE_CHANNEL, f"{stored.stamp[0]}:{stored.stamp[1]}")
            self._told = (envelope.encode(), stored.stamp)
        return stored

    def _say(self, left_out: dict[str, str]) -> None:
        for name, why in left_out.items():
            if self._left_out.get(name) != why:
                log.error("model %s is left out of the routing table: %s", name, why)
        self._left_out = left_out

    def _stamp_in_valkey(self) -> Stamp:
        """(0, 0) if there is no table, or none that we signed."""
        try:
            envelope = self._valkey.get(names.TABLE_KEY)
        except redis.ResponseError as error:
            if not str(error).startswith("WRONGTYPE"):
                raise
            log.warning("something else was stored under the routing table's key: it is replaced")
            return (0, 0)
        if not isinstance(envelope, bytes):
            return (0, 0)
        if envelope != self._told[0] or self._signed != present(self._key):
            try:
                document, self._signed = opened(self._key, envelope)
                if self._signed != present(self._key):
                    return (0, 0)  # it is sealed anew: the key that it has will not be believed for long
                self._told = (envelope, (int(document["epoch"]), int(document["generation"])))
            except (BadSignature, KeyError, TypeError, ValueError):
                return (0, 0)
        return self._told[1]


def _offered(world: World) -> list[ModelRoute]:
    """A model that retires stays until its engines have finished what they have."""
    holding = {engine.model for engine in world.engines if engine.state in SERVING}
    return [model for model in world.models if model.name in holding or not world.target(model).retiring]


def _max_num_seqs() -> dict[str, int]:
    rows = models.Model.objects.values_list("name", "engine_args")
    return {name: args.get("max_num_seqs", DEFAULT_MAX_NUM_SEQS) for name, args in rows}


def _summary(document: dict[str, Any]) -> str:
    parts = (f"{model['name']} {len(model['engines'])} engines ({model['mode']})" for model in document["models"])
    return ", ".join(parts) or "no models"
