"""Very many streams, and clients that vanish at any moment: everybody else is served, and nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from controlplane.router.client import ClientConnection
from controlplane.router.exchange import Exchange
from controlplane.router.handoff import Handoff
from controlplane.router.legs import Collector
from controlplane.router.reading import ClientRequest, RequestParser
from controlplane.router.relay import Relay
from controlplane.router.upstream import EngineConnection
from tests.integration.router_kit import Kit, model, running, until
from tests.integration.router_swarm import SwarmEngine, connect, many_files, streaming_request

STREAMS = 400
VANISHING = 300
TOKENS = 6
LEASE_S = 300.0


@asynccontextmanager
async def swarm(folder: Path) -> AsyncIterator[tuple[Kit, list[SwarmEngine]]]:
    """A router that splits requests over one prefill and two decode engines."""
    engines = [SwarmEngine(id) for id in ("p1", "d1", "d2")]
    with many_files():
        servers = [await engine.start() for engine in engines]
        route = model(
            {"prefill": engines[:1], "decode": engines[1:]},  # type: ignore[dict-item]  # they have an id and a url, too
            mode="disaggregated",
            connector="nixl",
            kv_lease_s=LEASE_S,
        )
        async with running(folder, route) as kit:
            yield kit, engines
        for server in servers:
            server.close()


async def stream(port: int, chance: random.Random) -> bytes:
    """A whole answer, on a connection that is closed afterwards."""
    client = await connect(port)
    client.transport.write(streaming_request(TOKENS, f"prompt {chance.randrange(50)}"))
    await client.ended.wait()
    client.transport.abort()
    return client.got


async def vanish(port: int, chance: random.Random) -> None:
    """A client that is gone before, in the middle of, or right at the end of its request or of the answer."""
    client = await connect(port)
    request = streaming_request(TOKENS)
    moment = chance.choice(["request", "at once", "wait", "answer"])
    client.transport.write(request[: chance.randrange(len(request))] if moment == "request" else request)
    if moment == "wait":
        await asyncio.sleep(chance.uniform(0, 0.03))
    elif moment == "answer":
        wanted = chance.randrange(1, 900)
        while len(client.got) < wanted and not client.ended.is_set():
            client.heard.clear()
            await client.heard.wait()
    if chance.random() < 0.5:
        client.transport.abort()
    else:
        client.transport.close()


def alive() -> Counter[str]:
    """Objects of the request path that still exist. By type: a lazy object of some library would be made by isinstance."""
    gc.collect()
    kinds = (ClientConnection, ClientRequest, RequestParser, Exchange, Relay, Collector, Handoff)
    return Counter(type(each).__name__ for each in gc.get_objects() if issubclass(type(each), kinds))


def engine_connections() -> int:
    return sum(issubclass(type(each), EngineConnection) for each in gc.get_objects())


async def nothing_is_left(kit: Kit, engines: list[SwarmEngine]) -> None:
    router = kit.router
    await until(kit.idle, "idle")
    await until(lambda: not router.clients, "without clients")
    await until(lambda: not any(engine.working for engine in engines), "at rest")
    await until(lambda: not router.releasing, "without KV to be freed")
    router.ledger.sweep(time.time() + 2 * LEASE_S)
    assert len(router.ledger) == 0
    pools = [engine.pool for engine in router.directory.all_engines()]
    await until(lambda: sum(pool.open_connections for pool in pools) == sum(len(e.open) for e in engines), "agreed")
    await until(lambda: not alive(), "free of what served requests")
    assert engine_connections() == sum(pool.open_connections for pool in pools)


async def test_many_streams_at_once_are_all_served(tmp_path: Path) -> None:
    chance = random.Random(4)
    async with swarm(tmp_path) as (kit, engines):
        answers = await asyncio.gather(*(stream(kit.port, chance) for _ in range(STREAMS)))
        assert {answer[:15] for answer in answers} == {b"HTTP/1.1 200 OK"}
        assert {answer.count(b" tok") for answer in answers} == {TOKENS}
        assert all(answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") for answer in answers)
        assert [engines[0].served, engines[1].served + engines[2].served] == [STREAMS, STREAMS]
        assert kit.router.counters.failed == 0
        assert kit.router.counters.retried == 0
        await nothing_is_left(kit, engines)


async def test_clients_that_vanish_leave_nothing_behind(tmp_path: Path) -> None:
    chance = random.Random(5)
    async with swarm(tmp_path) as (kit, engines):
        leaving = [vanish(kit.port, chance) for _ in range(VANISHING)]
        staying = [stream(kit.port, chance) for _ in range(VANISHING // 5)]
        everybody = leaving + staying
        chance.shuffle(everybody)
        answers = [answer for answer in await asyncio.gather(*everybody) if answer is not None]
        assert len(answers) == len(staying)
        assert all(answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") for answer in answers)
        await nothing_is_left(kit, engines)
        assert kit.router.counters.failed == 0
        assert not kit.router.set_aside()
