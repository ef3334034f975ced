"""Routers of several hosts: they tell each other over Valkey what they have reserved, and divide teams' limits."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from pathlib import Path

import httpx
import redis

from controlplane.core import names, signing
from controlplane.core.codec import encode
from controlplane.core.protocol import VERSION, KeyEntry, RoutingTable
from tests.integration.router_engine import FakeEngine
from tests.integration.router_kit import TEXT, fakes, until, whole_model
from tests.integration.router_process import SECRET, RouterProcess, publish, router_process, table

AUTH = {"authorization": "Bearer k"}


def legs(engines: list[FakeEngine]) -> list[int]:
    return [len(engine.generations()) for engine in engines]


async def test_a_router_avoids_what_a_router_of_another_host_has_reserved(
    valkey: redis.Redis, valkey_url: str, tmp_path: Path
) -> None:
    body = {**TEXT, "stream": True, "max_tokens": 64}
    async with fakes("e1", "e2") as engines, httpx.AsyncClient(timeout=90, trust_env=False) as client:
        for engine in engines:
            engine.step_s = 3600
        with (
            router_process(tmp_path, valkey_url, "--valkey", "--id", "a") as a,
            router_process(tmp_path, valkey_url, "--valkey", "--id", "b") as b,
        ):
            publish(valkey, table(1, whole_model(engines[1])))
            await until(lambda: a.generation() == b.generation() == 1)
            streams = [asyncio.ensure_future(client.post(a.url + "/v1/completions", json=body)) for _ in range(2)]
            await until(lambda: legs(engines) == [0, 2])
            publish(valkey, table(2, whole_model(*engines)))
            await until(lambda: a.generation() == b.generation() == 2)
            engines[0].step_s = 0
            await told_of(valkey, "a", engines[1].id, 2)
            for _ in range(6):
                await client.post(b.url + "/v1/completions", json={**TEXT, "max_tokens": 64})
            assert legs(engines) == [6, 2]
            for stream in streams:
                stream.cancel()
            await asyncio.gather(*streams, return_exceptions=True)


async def told_of(valkey: redis.Redis, router: str, engine: str, flights: int) -> None:
    """Waits until a router has said so of an engine several times: others have heard it then."""
    key = signing.router_key(SECRET)

    def says() -> bool:
        for message in iter(lambda: channel.get_message(ignore_subscribe_messages=True), None):
            said = signing.unseal(key, message["data"])
            if said["router"] == router and said["loads"].get(f"{engine}#1", [0])[0] == flights:
                seen.append(said)
        return len(seen) > 2

    seen: list[object] = []
    with valkey.pubsub() as channel:
        channel.subscribe(names.LOADS_CHANNEL)
        await until(says)


async def test_a_teams_limit_is_divided_among_live_hosts(valkey: redis.Redis, valkey_url: str, tmp_path: Path) -> None:
    key = KeyEntry(hashlib.sha256(b"k").hexdigest(), "team", requests_per_minute=20)
    async with fakes("e1") as (engine,), httpx.AsyncClient(timeout=90, trust_env=False, headers=AUTH) as client:
        models = (whole_model(engine),)
        document = encode(RoutingTable(VERSION, 1, require_key=True, keys=(key,), models=models))
        publish(valkey, document)

        async def limit(router: RouterProcess) -> str:
            answer = await client.post(router.url + "/v1/completions", json=TEXT)
            return answer.headers["x-ratelimit-limit-requests"]

        async def told(router: RouterProcess, expected: str) -> None:
            async with asyncio.timeout(60):
                while await limit(router) != expected:  # noqa: ASYNC110  # another process's state
                    await asyncio.sleep(0.1)

        with router_process(tmp_path, valkey_url, "--valkey", "--id", "a") as a:
            await until(lambda: a.generation() == 1)
            await told(a, "20")
            with router_process(tmp_path, valkey_url, "--valkey", "--id", "b", "--processes", "2") as b:
                await until(lambda: b.generation() == 1)
                await told(a, "10")
                await told(b, "10")
                statuses = Counter(
                    [(await client.post(b.url + "/v1/completions", json=TEXT)).status_code for _ in range(12)]
                )
                assert statuses[200] < 10
                assert b.stop() == 0
            await told(a, "20")


async def test_what_is_not_signed_by_a_router_is_not_believed(valkey: redis.Redis, valkey_url: str, tmp_path: Path) -> None:
    document = {"router": "evil", "host": "evil", "boot": "x", "seq": 1, "loads": {}}
    with router_process(tmp_path, valkey_url, "--valkey") as router:
        await until(lambda: valkey.pubsub_numsub(names.LOADS_CHANNEL)[0][1] == 1)
        valkey.publish(names.LOADS_CHANNEL, signing.seal(b"x" * 32, document))
        valkey.publish(names.LOADS_CHANNEL, signing.seal(signing.router_key(SECRET), {**document, "loads": {"e": [1]}}))
        valkey.publish(names.LOADS_CHANNEL, b"nonsense")
        await until(lambda: "what a router said of its loads was refused: signature" in router.log())
        assert router.log().count("was refused") == 1
        assert router.stop() == 0
