"""The highest epoch of a routing table that this fleet's routers may have seen, as far as Valkey tells."""

from __future__ import annotations

import os
from pathlib import Path

import redis

from controlplane.common.files import BadKey, read_key
from controlplane.common.valkey import UNREACHABLE, connect_sync
from controlplane.core import names
from controlplane.core.signing import BadSignature, router_key, table_key, unseal


def known_epoch() -> int:
    """Of the published table and of routers' facts, well signed ones only; 0 if Valkey is away or nothing is known (control
    goes above what it hears later: core.table.next_stamp)."""
    url, file = os.environ.get(names.ENV_VALKEY_URL), os.environ.get(names.ENV_FLEET_SECRET_FILE)
    if not url or not file:
        return 0
    try:
        secret = read_key(Path(file), "the fleet secret")
        with connect_sync(url) as client:
            routers = list(client.scan_iter(match=names.fact_key("router", "*"), count=1000))
            epochs = [_epoch(client, key, router_key(secret)) for key in routers]
            return max([_epoch(client, names.TABLE_KEY, table_key(secret)), *epochs])
    except (*UNREACHABLE, BadKey):
        return 0


def _epoch(client: redis.Redis, name: str | bytes, key: bytes) -> int:
    try:
        envelope = client.get(name)
        return int(unseal(key, envelope)["epoch"]) if isinstance(envelope, bytes) else 0
    except (redis.ResponseError, BadSignature, KeyError, TypeError, ValueError):
        return 0
