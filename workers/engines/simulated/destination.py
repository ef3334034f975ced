"""The taking end of KV handoff: pulls prompts' KV from peers over the shared incoming link, and keeps leases alive for
requests that wait for their turn."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from controlplane.core.links import SharedLink
from workers.engines.simulated import content
from workers.engines.simulated.accounts import Pulled
from workers.engines.simulated.engine import Engine
from workers.engines.simulated.generation import Generation, RemoteKv
from workers.engines.simulated.wire import BadMessage, Side, text, whole, wholes

ANSWER_S = 5.0
"""How long a peer may take to connect and greet, or to answer a read: NIXL's handshake timeout."""
RENEWALS_PER_LEASE = 3

Address = tuple[str, int]


@dataclass(eq=False)
class _Pull:
    generation: Generation
    remote: RemoteKv
    blocks: list[int]
    size_bytes: int
    started: float
    post_s: float
    fault: Mapping[str, Any]
    """What was asked to happen to this pull (faults.KINDS["transfer"]); empty: nothing."""
    deadline: asyncio.TimerHandle | None = None


@dataclass(eq=False)
class _Peer:
    """A connection to one engine's side port. `greeting` is done once its engine id is known."""

    address: Address
    side: Side
    greeting: asyncio.Future[str]
    pulls: dict[int, _Pull] = field(default_factory=dict)


class KvDestination:
    """Implements engine.Loader."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop, bytes_per_s: float) -> None:
        self._engine, self._loop = engine, loop
        self._link: SharedLink[int] = SharedLink(bytes_per_s)
        self._peers: dict[Address, _Peer] = {}
        self._connecting: dict[Address, asyncio.Task[_Peer]] = {}
        self._tasks: dict[Generation, asyncio.Task[None]] = {}
        self._waiting: dict[Generation, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._renewal: asyncio.TimerHandle | None = None
        self._telling: set[asyncio.Task[None]] = set()
        self._number = 0

    # --- Loader -----------------------------------------------------------------------------------------------------------

    def expect(self, generation: Generation) -> None:
        self._waiting[generation] = None
        if self._renewal is None:
            self._renewal = self._loop.call_later(self._engine.settings.kv_lease_s / RENEWALS_PER_LEASE, self._renew)

    def load(self, generation: Generation) -> None:
        task = self._loop.create_task(self._open(generation))
        self._tasks[generation] = task
        task.add_done_callback(lambda _: self._tasks.pop(generation, None))

    def forget(self, generation: Generation) -> None:
        """As vLLM: a pull that has begun goes through and tells the peer so; without one the peer is told now, so that it
        does not keep for a whole lease what nobody will fetch."""
        if self._wants(generation) and not self._is_pulled(generation):
            self._tell(generation, "done")

    def _wants(self, generation: Generation) -> bool:
        """Whether it was still waiting for its KV. It is not any more."""
        if generation not in self._waiting:
            return False
        del self._waiting[generation]
        return True

    def _is_pulled(self, generation: Generation) -> bool:
        pulls = (pull for peer in self._peers.values() for pull in peer.pulls.values())
        return generation in self._tasks or any(pull.generation is generation for pull in pulls)

    # --- peers ------------------------------------------------------------------------------------------------------------

    async def _peer(self, address: Address) -> _Peer:
        """A greeted connection, shared by all that ask for it. Raises OSError or TimeoutError."""
        connecting = self._connecting.get(address)
        if connecting is None:
            if address in self._peers:
                return self._peers[address]
            connecting = self._loop.create_task(self._connect(address))
            self._connecting[address] = connecting
            connecting.add_done_callback(lambda task: self._connected(address, task))
        return await asyncio.shield(connecting)

    def _connected(self, address: Address, task: asyncio.Task[_Peer]) -> None:
        del self._connecting[address]
        if not task.cancelled():
            task.exception()  # whoever still waits gets it; nobody else needs to hear of it

    async def _connect(self, address: Address) -> _Peer:
        async with asyncio.timeout(ANSWER_S):
            _, side = await self._loop.create_connection(lambda: Side(self._message, self._closed), *address)
            peer = _Peer(address, side, self._loop.create_future())
            self._peers[address] = peer
            side.send("hello")
            try:
                await peer.greeting
            except BaseException:
                self._peers.pop(address, None)
                side.close()
                raise
        return peer

    def _closed(self, side: Side) -> None:
        peer = next((peer for peer in self._peers.values() if peer.side is side), None)
        if peer is None:
            return
        del self._peers[peer.address]
        if not peer.greeting.done():
            peer.greeting.set_exception(ConnectionError("the peer closed before it greeted"))
        for number in list(peer.pulls):
            self._fail(peer, number)

    def _message(self, side: Side, message: Mapping[str, Any]) -> None:
        peer = next((peer for peer in self._peers.values() if peer.side is side), None)
        if peer is None:
            return
        match text(message, "op"):
            case "hello":
                if not peer.greeting.done():
                    peer.greeting.set_result(text(message, "engine"))
            case "rate":
                self._rate(peer, whole(message, "transfer"), message.get("rate"))
            case "kv":
                self._arrived(peer, whole(message, "transfer"), wholes(message, "contents"))
            case other:
                raise BadMessage(f"unknown message {other:.20}")

    def _rate(self, peer: _Peer, number: int, rate: object) -> None:
        """The peer's link gives a transfer another rate."""
        if not isinstance(rate, (int, float)) or not rate > 0:
            raise BadMessage("a rate must be positive")
        if number in peer.pulls:
            self._link.limit(self._loop.time(), number, rate)
            self._watch()

    # --- one pull ---------------------------------------------------------------------------------------------------------

    async def _open(self, generation: Generation) -> None:
        """Find the peer, check that it is the start that computed the KV, and begin."""
        remote = generation.remote
        assert remote is not None
        started = self._loop.time()
        try:
            peer = await self._peer((remote.host, remote.port))
            if peer.greeting.result() != remote.engine:
                raise ConnectionError("the peer is another start of the engine")
            fault = self._engine.faults.strike("transfer", self._loop.time()) or {}
            if fault.get("mode") == "fail":
                raise ConnectionError("a fault that was asked for")
            if self._peers.get(peer.address) is not peer:
                raise ConnectionError("the peer closed as soon as it had greeted")  # `_closed` came before this
        except OSError:  # a timeout is one, too
            if self._wants(generation):
                self._engine.load_failed(generation)
            return
        settings = self._engine.settings
        hits = generation.request.local_hit_tokens // settings.limits.block_size
        blocks = list(remote.blocks[hits : len(generation.contents)])
        self._number += 1
        size = settings.pull_bytes(len(blocks))
        now = self._loop.time()
        peer.pulls[self._number] = _Pull(generation, remote, blocks, size, started, now - started, fault)
        peer.side.send("start", transfer=self._number, request=remote.request, blocks=blocks)
        self._link.start(now, self._number, size)
        self._watch()

    def _watch(self) -> None:
        """One timer, for the transfer that ends first."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        upcoming = self._link.next_end()
        if upcoming:
            self._timer = self._loop.call_at(upcoming[0], self._through, upcoming[1])

    def _through(self, number: int) -> None:
        """The bytes of a transfer would be here now: read what they were."""
        self._timer = None
        self._link.stop(self._loop.time(), number)
        for peer in list(self._peers.values()):
            pull = peer.pulls.get(number)
            if pull:
                self._loop.call_later(pull.fault.get("delay_s", 0.0), self._read, peer, number)
        self._watch()

    def _read(self, peer: _Peer, number: int) -> None:
        pull = peer.pulls.get(number)
        if pull:
            peer.side.send("read", transfer=number)
            pull.deadline = self._loop.call_later(ANSWER_S, self._fail, peer, number)

    def _arrived(self, peer: _Peer, number: int, contents: list[int]) -> None:
        pull = self._close(peer, number)
        if pull is None:
            return
        settings = self._engine.settings
        hits = pull.generation.request.local_hit_tokens // settings.limits.block_size
        wanted = len(pull.generation.contents) - hits
        contents = contents[:wanted] + content.garbage("never sent", range(max(0, wanted - len(contents))))
        if pull.fault.get("mode") == "corrupt":
            contents = content.garbage(f"corrupted:{number}", range(len(contents)))
        peer.side.send("done", request=pull.remote.request)
        if self._wants(pull.generation):
            took = self._loop.time() - pull.started
            self._engine.loaded(pull.generation, contents, Pulled(pull.blocks, pull.size_bytes, took, pull.post_s))

    def _fail(self, peer: _Peer, number: int) -> None:
        pull = self._close(peer, number)
        if pull:
            peer.side.send("stop", transfer=number)
            if self._wants(pull.generation):
                self._engine.load_failed(pull.generation)

    def _close(self, peer: _Peer, number: int) -> _Pull | None:
        pull = peer.pulls.pop(number, None)
        if pull and pull.deadline:
            pull.deadline.cancel()
        self._link.stop(self._loop.time(), number)
        self._watch()
        return pull

    # --- leases -----------------------------------------------------------------------------------------------------------

    def _renew(self) -> None:
        """Ask the peers to keep what still waits here; whoever cannot be reached fails later, at the pull."""
        self._renewal = None
        for generation in list(self._waiting):
            self.expect(generation)
            self._tell(generation, "renew")

    def _tell(self, generation: Generation, op: Literal["renew", "done"]) -> None:
        if generation.remote:
            task = self._loop.create_task(self._tell_peer(generation.remote, op))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def _tell_peer(self, remote: RemoteKv, op: str) -> None:
        try:
            peer = await self._peer((remote.host, remote.port))
        except OSError:
            return
        if peer.greeting.result() == remote.engine:
            peer.side.send(op, request=remote.request)
