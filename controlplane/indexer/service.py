"""The indexer's sockets: events come in over ZMQ from all engines, questions over a unix socket from the host's routers."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import orjson
import zmq

from controlplane.core.blockindex import BlockIndex
from controlplane.indexer import replay, wire
from controlplane.indexer.caches import Caches
from controlplane.indexer.events import MAX_BATCH_BYTES
from controlplane.indexer.tokens import Tokens
from controlplane.indexer.wire import BadFrame
from controlplane.router.limits import Limits

log = logging.getLogger(__name__)

TOPIC = b"kv@"
MAX_TOPIC = 256
QUEUED_BATCHES = 10_000
"""Of each engine, before batches are lost."""
AT_A_TIME_S = 0.001
"""Events are read for so long, then questions are answered."""
SWEEP_S = 0.5
MAX_ASKING = 256
"""Questions of one router at a time; more are not known."""


class Question(NamedTuple):
    path: str
    model: str
    adapter: str
    """A LoRA adapter of the model; "" for none."""
    salt: str
    salts: Mapping[str, str]
    """Of engines that are asked under another one."""

    @property
    def served(self) -> str:
        """What engines call it."""
        return self.adapter or self.model


class Router(asyncio.Protocol):
    """One router process that asks."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._reader = wire.Reader()
        self._transport: asyncio.Transport | None = None
        self.engines: dict[str, tuple[int, str, str]] = {}
        """Of its table: id -> (incarnation, url, model)."""
        self.asking = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._service.routers.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._service.routers.discard(self)

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._reader.feed(data):
                self._service.told(self, message)
        except BadFrame as problem:
            log.warning("a router was cut off: %s", problem)
            if self._transport is not None:
                self._transport.abort()

    def send(self, message: list[Any]) -> None:
        if self._transport is not None:
            self._transport.write(wire.pack(message))


class Service:
    """Raises OSError if `endpoint` cannot be bound."""

    def __init__(self, endpoint: str, max_blocks: int, replays: Mapping[str, str]) -> None:
        self.caches = Caches(BlockIndex(max_blocks), self._gap)
        self.tokens = Tokens(Limits())
        self.routers: set[Router] = set()
        self._replays = replays
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._context = zmq.Context()
        self._events: zmq.Socket[bytes] = self._context.socket(zmq.SUB)
        self._events.setsockopt(zmq.LINGER, 0)
        self._events.setsockopt(zmq.IPV6, "[" in endpoint)
        self._events.setsockopt(zmq.RCVHWM, QUEUED_BATCHES)
        self._events.setsockopt(zmq.MAXMSGSIZE, MAX_BATCH_BYTES)
        self._events.subscribe(TOPIC)
        self.asked = self.known = 0
        self._reading = False
        try:
            self._events.bind(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise OSError(error.errno, error.strerror) from error
        self.endpoint = self._events.getsockopt_string(zmq.LAST_ENDPOINT)

    async def run(self, listener: socket.socket, stop: asyncio.Event) -> None:
        """Serves until `stop`."""
        server = await self._loop.create_unix_server(lambda: Router(self), sock=listener)
        self._loop.add_reader(self._events.fileno(), self._readable)
        self._readable()
        log.info("indexer listens on %s for routers and %s for KV events", listener.getsockname(), self.endpoint)
        try:
            while not stop.is_set():
                self._sweep()
                try:
                    async with asyncio.timeout(SWEEP_S):
                        await stop.wait()
                except TimeoutError:
                    pass
        finally:
            self._loop.remove_reader(self._events.fileno())
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self.close()

    def close(self) -> None:
        self._events.close()
        self._context.term()

    def _sweep(self) -> None:
        self.tokens.sweep()
        self._tell_caches()

    # --- events ---

    def _readable(self) -> None:
        """The descriptor tells only that there may be something, and only once."""
        if not self._reading:
            self._read()

    def _read(self) -> None:
        self._reading = False
        until = time.perf_counter() + AT_A_TIME_S
        while True:
            try:
                frames = self._events.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            self._heard(frames)
            if time.perf_counter() > until:
                self._reading = True
                self._loop.call_soon(self._read)
                return

    def _heard(self, frames: list[bytes]) -> None:
        if len(frames) != 3 or len(frames[0]) > MAX_TOPIC or len(frames[1]) != 8:
            self.caches.counters.refused += 1
            return
        topic, number, payload = frames
        try:
            engine = topic.removeprefix(TOPIC).decode()
        except UnicodeDecodeError:
            self.caches.counters.refused += 1
            return
        self.caches.heard(engine, int.from_bytes(number, "big"), payload, time.monotonic())

    def _gap(self, engine: str, number: int) -> bool:
        address = self._replays.get(engine)
        if address is None:
            return False
        self._spawn(self._repeat(engine, address, number))
        return True

    async def _repeat(self, engine: str, address: str, number: int) -> None:
        batches = await replay.ask(self._context, address, number)
        self.caches.repeated(engine, batches, time.monotonic())

    # --- routers ---

    def told(self, router: Router, message: list[Any]) -> None:
        """One message of a router. Raises BadFrame."""
        match message:
            case [wire.ENGINES, list(rows)]:
                router.engines = dict(map(_engine_row, rows))
                self._tell_caches()
            case [wire.ASK, int(number), str(path), str(model), str(adapter), str(salt), dict(salts), bytes(body)]:
                self.asked += 1
                if router.asking >= MAX_ASKING:
                    router.send([number, 0, {}])
                    return
                router.asking += 1
                self._spawn(self._answer(router, number, Question(path, model, adapter, salt, salts), body))
            case [wire.STATUS, int(number)]:
                router.send([number, self.status()])
            case _:
                raise BadFrame("a message of no known kind")

    async def _answer(self, router: Router, number: int, question: Question, body: bytes) -> None:
        prompt, found = 0, {}
        salts, salt = question.salts, question.salt
        engines = {id: url for id, (_, url, model) in router.engines.items() if model == question.model}
        try:
            data = orjson.loads(body)
            if isinstance(data, dict):
                known = await self.tokens.of(question.path, data, question.served, list(engines.values()))
                if known is not None:
                    self.known += known.all
                    prompt = known.prompt_tokens
                    asked = {id: salts.get(id, salt) for id in engines}
                    found = self.caches.look_up(known.tokens, question.adapter, asked, known.all)
        except orjson.JSONDecodeError:
            pass
        finally:
            router.asking -= 1
            router.send([number, prompt, found])

    def _tell_caches(self) -> None:
        incarnations: dict[str, int] = {}
        urls = set()
        for router in self.routers:
            for id, (incarnation, url, _) in router.engines.items():
                incarnations[id] = max(incarnation, incarnations.get(id, 0))
                urls.add(url)
        self.caches.known_to_routers(incarnations, time.monotonic())
        self.tokens.forget_engines(urls)

    def status(self) -> dict[str, Any]:
        """For people and tests."""
        counters = self.caches.counters
        return {
            "asked": self.asked,
            "tokens_known": self.known,
            "tokenized_by_engines": self.tokens.asked,
            "batches": counters.batches,
            "refused": counters.refused,
            "gaps": counters.gaps,
            "restarts": counters.restarts,
            "blocks": self.caches.index.total,
            "engines": {
                name: {"blocks": len(each.cache), "whole": each.cache.whole and each.waiting is None, "next": each.next}
                for name, each in self.caches.followed.items()
            },
        }

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("a task failed inside the indexer", exc_info=error)


def _engine_row(row: object) -> tuple[str, tuple[int, str, str]]:
    match row:
        case [str(id), int(incarnation), str(url), str(model)]:
            return id, (incarnation, url, model)
    raise BadFrame("an engine is not told as [id, incarnation, url, model]")
