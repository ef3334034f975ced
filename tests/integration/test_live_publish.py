"""What is written of a live topic: rows and their number at once, whoever reads and writes meanwhile."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import orjson
import redis
from redis.asyncio import Redis

from controlplane.core import names
from controlplane.telemetry.publish import WRITE, Publisher

WRITES = 300


async def test_a_reader_never_sees_rows_of_another_number(valkey_url: str, valkey: redis.Redis) -> None:
    """Two writers at once (an ingest that was taken for dead goes on) and a reader; rows name what they belong to."""
    key, seen, over = names.live_key("fleet"), set[tuple[bytes, bytes]](), asyncio.Event()

    async def write(writer: str) -> None:
        async with Redis.from_url(valkey_url) as client:
            script = client.register_script(WRITE)
            for number in range(WRITES):
                at = f"{writer}.{number}"
                await script(keys=[key], args=[1, at, orjson.dumps([{"id": at}]), 0])

    async def read() -> None:
        async with Redis.from_url(valkey_url) as client:
            while not over.is_set():
                found: list[Any] = await client.hmget(key, ["epoch", "seq", "at", "rows"])
                epoch, seq, at, rows = found
                if rows is not None:
                    assert orjson.loads(rows) == [{"id": at.decode()}]
                    assert epoch == b"1"
                    seen.add((seq, at))

    reader = asyncio.create_task(read())
    await asyncio.gather(write("1"), write("2"))
    over.set()
    await reader
    assert len({seq for seq, _ in seen}) == len(seen)
    assert valkey.hget(key, "seq") == str(2 * WRITES).encode()


async def test_a_topic_that_was_lost_begins_anew_under_another_epoch(valkey_url: str, valkey: redis.Redis) -> None:
    key = names.live_key("fleet")
    async with Redis.from_url(valkey_url) as client:
        publisher = Publisher(client)
        for number in range(3):
            await publisher.publish({"fleet": [{"id": "a", "type": "x"}]}, time.time() + number)
        first = valkey.hmget(key, ["epoch", "seq"])
        valkey.delete(key)
        await publisher.publish({"fleet": []}, time.time() + 3)
    assert first[1] == b"3"
    epoch, seq = valkey.hmget(key, ["epoch", "seq"])
    assert seq == b"1"
    assert epoch != first[0]
