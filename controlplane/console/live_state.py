"""The newest state of a live topic, for a page's first paint; afterwards the page follows the socket."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import orjson
import redis
from django.conf import settings

from controlplane.core import names

TIMEOUT_S = 0.5
"""A page never waits longer for its first numbers; without them it starts with its skeleton."""


@cache
def _valkey() -> redis.Redis:
    return redis.Redis.from_url(settings.VALKEY_URL, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S)


def snapshot(topic: str) -> dict[str, Any] | None:
    """The topic as a socket's snapshot frame: topic, kind, epoch, seq, at (Unix s), rows. None when nothing was written yet,
    when it cannot be read, or when Valkey does not answer in TIMEOUT_S."""
    try:
        raw = cast(dict[bytes, bytes], _valkey().hgetall(names.live_key(topic)))
        if not raw:
            return None
        return {
            "topic": topic,
            "kind": "snapshot",
            "epoch": raw[b"epoch"].decode(),
            "seq": int(raw[b"seq"]),
            "at": float(raw[b"at"]),
            "rows": orjson.loads(raw[b"rows"]),
        }
    except (redis.RedisError, KeyError, ValueError):
        return None
