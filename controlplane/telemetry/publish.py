"""Live rows out to the pages: written whole with the next sequence number, then announced. Nothing is kept here."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import orjson
from channels.layers import get_channel_layer
from redis.asyncio import Redis

from controlplane.core import names
from controlplane.telemetry.topics import group, is_topic

log = logging.getLogger(__name__)

WRITE = """
local seq = redis.pcall('HINCRBY', KEYS[1], 'seq', 1)
local foreign = type(seq) == 'table'
if foreign then
  redis.call('DEL', KEYS[1])
  seq = redis.call('HINCRBY', KEYS[1], 'seq', 1)
end
local epoch = redis.call('HGET', KEYS[1], 'epoch') or ARGV[1]
redis.call('HSET', KEYS[1], 'epoch', epoch, 'at', ARGV[2], 'rows', ARGV[3])
if ARGV[4] == '0' then redis.call('PERSIST', KEYS[1]) else redis.call('EXPIRE', KEYS[1], ARGV[4]) end
return {seq, foreign and 1 or 0}
"""
"""One step for all readers: they see the old state with its number, or the new one. A hash that is new gets a new epoch, so
that nobody takes its low numbers for old ones. What cannot be our hash is replaced."""
GONE_FOR_S = 60
"""A topic that is no more says so with no rows, then disappears."""


class Publisher:
    def __init__(self, valkey: Redis, layer: Any = None) -> None:
        self._valkey = valkey
        self._write = valkey.register_script(WRITE)
        self._layer = layer or get_channel_layer()
        self._known: set[str] | None = None

    async def publish(self, topics: Mapping[str, list[Any]], now: float) -> None:
        """Write and announce every topic. Raises redis.RedisError or OSError; what was written stays right."""
        if self._known is None:
            prefix = names.live_key("")
            keys = [key.decode(errors="replace") async for key in self._valkey.scan_iter(match=f"{prefix}*")]
            self._known = {topic for key in keys if is_topic(topic := key.removeprefix(prefix))}
        for topic in self._known - topics.keys():
            await self._publish_one(topic, [], now, GONE_FOR_S)
        for topic, rows in topics.items():
            await self._publish_one(topic, rows, now, 0)
        self._known = set(topics)

    async def _publish_one(self, topic: str, rows: list[Any], now: float, expire_s: int) -> None:
        seq, foreign = await self._write(
            keys=[names.live_key(topic)], args=[int(now * 1000), f"{now:.3f}", orjson.dumps(rows), expire_s]
        )
        if foreign:
            log.warning("something else was stored under the key of live topic %s: it is replaced", topic)
        await self._layer.group_send(group(topic), {"type": "live.changed", "topic": topic, "seq": int(seq)})
