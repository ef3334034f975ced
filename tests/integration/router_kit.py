"""A router with its fake engines in one event loop, on real sockets."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from controlplane.core.codec import encode
from controlplane.core.protocol import VERSION, EngineRoute, ModelRoute, Role, RoutingTable
from controlplane.router.app import Router
from controlplane.router.limits import Limits
from controlplane.router.server import Options, Server
from tests.integration.router_engine import FakeEngine

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 4}
TEXT = {"model": "m", "prompt": "hello there", "max_tokens": 4}
QUICK = Limits(set_aside_s=0.2, connect_s=1.0, room_s=3600.0)


async def until(check: Callable[[], Any], what: str = "true", timeout_s: float = 60.0) -> Any:
    """The first true value of `check`."""
    deadline = time.monotonic() + timeout_s
    while not (value := check()):
        assert time.monotonic() < deadline, f"still not {what} after {timeout_s:g} s"
        await asyncio.sleep(0.01)
    return value


def split_model(prefill: Iterable[FakeEngine], decode: Iterable[FakeEngine], **fields: Any) -> ModelRoute:
    return model({"prefill": prefill, "decode": decode}, **{"mode": "disaggregated", "connector": "nixl", **fields})


def whole_model(*engines: FakeEngine, **fields: Any) -> ModelRoute:
    return model({"mixed": engines}, **{"mode": "monolithic", **fields})


def model(pools: dict[Role, Iterable[FakeEngine]], **fields: Any) -> ModelRoute:
    engines = tuple(
        EngineRoute(engine.id, engine.url, role, engine_key=f"key-of-{engine.id}")
        for role, pool in pools.items()
        for engine in pool
    )
    return ModelRoute(**{"name": "m", "engines": engines, "kv_bytes_per_token": 1000, **fields})


@dataclass
class Kit:
    """`router` is the running object: for what cannot be seen from outside (loads, ledger)."""

    url: str
    port: int
    table: Path
    router: Router
    client: httpx.AsyncClient
    stop: asyncio.Event
    task: asyncio.Task[None]
    generation: int = 1
    engines: list[FakeEngine] = field(default_factory=list)

    async def post(self, body: Any, path: str = "/v1/completions", **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.client.post(self.url + path, content=content, headers=headers)

    async def events(self, body: dict[str, Any], path: str = "/v1/completions") -> list[Any]:
        """The data of a streamed answer's events, parsed; strings such as [DONE] as they are."""
        response = await self.post({**body, "stream": True}, path)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        return parse_events(response.content)

    async def apply(self, *models: ModelRoute) -> None:
        """Writes a new generation of the table and waits until it is in use."""
        self.generation += 1
        write_table(self.table, models, self.generation)
        await until(lambda: self.router.directory.table and self.router.directory.table.generation == self.generation)

    def flights(self, engine: str) -> int:
        """Requests of which a leg is at this engine, or on its way to it."""
        return sum(load.in_flight for load in self.router.loads() if load.engine == engine)

    def idle(self) -> bool:
        """Nothing is open, reserved or remembered as in use."""
        loads = [engine.load for engine in self.router.directory.all_engines()]
        return (
            not self.router.counters.in_flight
            and not self.router.ids_in_use
            and all(not (load.in_flight or load.prefill_tokens or load.decode_tokens) for load in loads)
        )


MOST_ASKED = 1000


def hello(number: int) -> dict[str, Any]:
    return {**TEXT, "prompt": f"hello {number}"}


async def ask_until(
    kit: Kit,
    met: Callable[[], Any],
    body: Callable[[int], dict[str, Any]] = hello,
    path: str = "/v1/completions",
) -> list[httpx.Response]:
    """The answers to requests, one after another, until `met`: which of equal engines takes one is chance. `body`: of the
    request with this number."""
    answers: list[httpx.Response] = []
    while not met():
        assert len(answers) < MOST_ASKED, f"not met by {MOST_ASKED} requests"
        answers.append(await kit.post(body(len(answers)), path))
    return answers


def parse_events(content: bytes) -> list[Any]:
    found = [event.removeprefix(b"data: ") for event in content.split(b"\n\n") if event]
    return [json.loads(each) if each.startswith(b"{") else each.decode() for each in found]


def text_of(events: list[Any]) -> str:
    choices = [event["choices"][0] for event in events if isinstance(event, dict) and event.get("choices")]
    return "".join(choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in choices)


def route_of(response: httpx.Response) -> dict[str, str]:
    path, *parts = response.headers["x-twinpool-route"].split("; ")
    return {"path": path, **dict(part.split("=", 1) for part in parts)}


def write_table(path: Path, models: Iterable[ModelRoute], generation: int = 1, **fields: Any) -> None:
    making = path.with_suffix(f".{secrets.token_hex(4)}")
    making.write_text(json.dumps(encode(RoutingTable(VERSION, generation, models=tuple(models), **fields))))
    making.replace(path)


@asynccontextmanager
async def running(folder: Path, *models: ModelRoute, limits: Limits = QUICK, **fields: Any) -> AsyncIterator[Kit]:
    """A router that has applied a table with `models`; the engines must have been started."""
    table = folder / f"table-{secrets.token_hex(4)}.json"
    write_table(table, models, **fields)
    stop = asyncio.Event()
    server = Server(Options("127.0.0.1", 0, table=table, limits=limits))
    task = asyncio.ensure_future(server.run(stop))
    transport = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=None, max_keepalive_connections=20))
    async with httpx.AsyncClient(transport=transport, timeout=90) as client:
        kit = Kit(f"http://127.0.0.1:{server.port}", server.port, table, server.router, client, stop, task)
        await until(lambda: kit.router.directory.table, "given a table")
        try:
            yield kit
        finally:
            stop.set()
    await asyncio.wait_for(task, 60)


@asynccontextmanager
async def fakes(*ids: str) -> AsyncIterator[list[FakeEngine]]:
    engines = [await FakeEngine(id).start() for id in ids]
    try:
        yield engines
    finally:
        for engine in engines:
            await engine.stop()


@dataclass
class Pair:
    """p1, p2 prefill; d1, d2 decode."""

    kit: Kit
    p1: FakeEngine
    p2: FakeEngine
    d1: FakeEngine
    d2: FakeEngine

    @property
    def prefills(self) -> list[FakeEngine]:
        return [self.p1, self.p2]

    @property
    def decodes(self) -> list[FakeEngine]:
        return [self.d1, self.d2]

    def legs(self) -> list[tuple[str, bool]]:
        """(engine id, prefill leg?) of every generation, engine by engine."""
        return [
            (engine.id, bool((leg.body.get("kv_transfer_params") or {}).get("do_remote_decode")))
            for engine in (self.p1, self.p2, self.d1, self.d2)
            for leg in engine.generations()
        ]


@asynccontextmanager
async def pair(
    folder: Path, limits: Limits = QUICK, decodes: int = 2, prefills: int = 2, **fields: Any
) -> AsyncIterator[Pair]:
    """A disaggregated model; only the first `prefills` and `decodes` engines are in the table."""
    async with fakes("p1", "p2", "d1", "d2") as (p1, p2, d1, d2):
        route = split_model([p1, p2][:prefills], [d1, d2][:decodes], **fields)
        async with running(folder, route, limits=limits) as kit:
            yield Pair(kit, p1, p2, d1, d2)


def with_engines(route: ModelRoute, change: Callable[[EngineRoute], EngineRoute]) -> ModelRoute:
    return replace(route, engines=tuple(change(engine) for engine in route.engines))
