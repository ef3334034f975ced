"""Fake nodes on a real broker: they take signed commands from their Celery queues and tell signed facts through Valkey."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis
from kombu import Connection, Exchange, Queue

from controlplane.config import config
from controlplane.control.actor import Actor
from controlplane.control.loop import Loop
from controlplane.core import names
from controlplane.core.codec import decode, encode
from controlplane.core.fake_node import FakeNode
from controlplane.core.protocol import Command, EngineFact, RouterFact, RoutingTable
from controlplane.core.signing import node_key, router_key, seal, table_key, unseal
from tests.integration.agent_kit import AgentKit

ANN = Actor("ann", "admin")


def until(what: str, check: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    """The first true value of `check`."""
    deadline = time.monotonic() + timeout_s
    while not (value := check()):
        assert time.monotonic() < deadline, f"still not {what} after {timeout_s:g} s"
        time.sleep(0.02)
    return value


@contextlib.contextmanager
def real_agent(url: str, folder: Path, accelerators: str = "sim:4xh100-sxm") -> Iterator[AgentKit]:
    """An agent as nodes run it, whose key is the fleet's for its node."""
    kit = AgentKit(url, folder, ("-m", "workers"), accelerators)
    kit.key = node_key(config().fleet_secret(), kit.node)
    kit.key_file.write_bytes(kit.key)
    try:
        yield kit.start()
    finally:
        kit.close()


class FakeFleet:
    """Nodes and one router that a test drives by hand; `turn` lets them act once, `run` also ticks the loop."""

    def __init__(self, url: str, names: tuple[str, ...] = ("n1", "n2", "n3"), start_s: float = 0.0) -> None:
        self.secret = config().fleet_secret()
        self.nodes = {name: FakeNode(name, start_s=start_s) for name in names}
        self.silent: set[str] = set()
        self.router_follows = True
        self.received: list[Command] = []
        self._valkey = redis.Redis.from_url(url)
        self._broker = Connection(url)
        self._stamp = (0, 0)
        self._seq = 0

    def close(self) -> None:
        self._broker.release()
        self._valkey.close()

    def turn(self) -> None:
        """Every node that speaks takes its commands, lets time pass and tells its fact; the router applies the table."""
        now = time.time()
        for name, node in self.nodes.items():
            if name not in self.silent:
                self._take_commands(node, now)
                node.step(now)
        self.tell()

    def tell(self) -> None:
        """Facts of every node that speaks and of the router, so that nobody counts them as dead."""
        now = time.time()
        for name, node in self.nodes.items():
            if name not in self.silent:
                fact = seal(node_key(self.secret, name), encode(node.fact(now)))
                self._tell("agent", name, fact)
        table = self.table()
        if self.router_follows and table:
            self._stamp = table.stamp
        self._seq += 1
        router = RouterFact("r1", "boot", self._seq, now, *self._stamp)
        self._tell("router", "r1", seal(router_key(self.secret), encode(router)))

    def _tell(self, kind: str, name: str, envelope: str) -> None:
        self._valkey.set(names.fact_key(kind, name), envelope, ex=names.FACT_TTL_S)
        self._valkey.publish(names.FACT_CHANNEL, f"{kind}:{name}")

    def _take_commands(self, node: FakeNode, now: float) -> None:
        queue = names.node_queue(node.name)
        with self._broker.SimpleQueue(Queue(queue, Exchange(queue), routing_key=queue)) as waiting:
            while True:
                try:
                    message = waiting.get(block=False)
                except waiting.Empty:
                    return
                message.ack()
                command = decode(Command, unseal(node_key(self.secret, node.name), message.decode()[0][0]))
                self.received.append(command)
                node.obey(command, now)

    def table(self) -> RoutingTable | None:
        """What is published in Valkey now, its signature checked."""
        envelope = self._valkey.get(names.TABLE_KEY)
        return decode(RoutingTable, unseal(table_key(self.secret), envelope)) if isinstance(envelope, bytes) else None

    def listed(self, model: str, role: str = "") -> list[str]:
        """Ids of the engines that the published table offers for new work."""
        models = (self.table() or RoutingTable(1, 0)).models
        engines = [engine for each in models if each.name == model for engine in each.engines]
        return [engine.id for engine in engines if engine.state == "ready" and role in ("", engine.role)]

    def fact(self, engine: str) -> EngineFact | None:
        found = [fact for node in self.nodes.values() for (id, _), fact in node.engines.items() if id == engine]
        return found[0] if found else None

    def node_of(self, engine: str) -> FakeNode:
        return next(node for node in self.nodes.values() if (engine, 0) in node.engines)

    def run(self, loop: Loop, what: str, check: Callable[[], Any], timeout_s: float = 60.0) -> Any:
        """Turn and tick until `check` is true; returns its value."""

        def once() -> Any:
            self.turn()
            loop.run()
            return check()

        return until(what, once, timeout_s)


def new_loop() -> Loop:
    """A loop whose link to Valkey counts as healthy for long, so that drains need not wait for the life of a fact."""
    loop = Loop()
    loop.link_since = time.time() - 60
    return loop


class Gate:
    """A TCP relay before a server: `shut` cuts all connections and refuses new ones, `open` lets them through again."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname and parts.port
        self._target = (parts.hostname, parts.port)
        self._listener: socket.socket | None = None
        self._live: set[socket.socket] = set()
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self._address = probe.getsockname()
        self.url = url.replace(f"{parts.hostname}:{parts.port}", f"{self._address[0]}:{self._address[1]}")
        self.open()

    def open(self) -> None:
        self._listener = socket.create_server(self._address)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def shut(self) -> None:
        assert self._listener
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._listener = None
        for each in list(self._live):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self._listener:
            self.shut()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            self._live |= {near, far}
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._relay, args=(source, target), daemon=True).start()

    def _relay(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._live.discard(source)
        source.close()


@contextlib.contextmanager
def router_alone(url: str) -> Iterator[FakeFleet]:
    """No nodes of its own: only a router that applies tables."""
    fleet = FakeFleet(url, names=())
    yield fleet
    fleet.close()
