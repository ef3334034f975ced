"""Engines on one clock that hand KV to each other without sockets: what a test or a comparison drives on a ManualClock.

Links are shared as over the side ports (an equal part of the source's outgoing and of the destination's incoming link);
only greetings and messages, which take no simulated time, are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from controlplane.core.links import SharedLink
from workers.engines.simulated import content
from workers.engines.simulated.accounts import Pulled
from workers.engines.simulated.clock import Clock, Timer
from workers.engines.simulated.engine import Engine
from workers.engines.simulated.generation import Generation, RemoteKv

RENEWALS_PER_LEASE = 3


@dataclass(eq=False)
class _Pull:
    generation: Generation
    remote: RemoteKv
    source: _Port
    blocks: list[int]
    size_bytes: int
    started: float


class Fabric:
    """All engines that can reach each other. They are found by their engine ids."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.ports: dict[str, _Port] = {}

    def join(self, engine: Engine) -> None:
        """Makes `engine` pull from, and be pulled from by, all that have joined, at its settings' network speed."""
        port = _Port(self, engine)
        self.ports[engine.engine_id] = port
        engine.loader = port


@dataclass(eq=False)
class _Port:
    """One engine's ends of the links; implements engine.Loader."""

    fabric: Fabric
    engine: Engine
    bytes_per_s: float = field(init=False)
    incoming: SharedLink[_Pull] = field(init=False)
    outgoing: dict[_Pull, _Port] = field(default_factory=dict)
    waiting: dict[Generation, Timer] = field(default_factory=dict)
    timer: Timer | None = None

    def __post_init__(self) -> None:
        settings = self.engine.settings
        self.bytes_per_s = settings.network_gbps * 1e9 / 8 * settings.speed
        self.incoming = SharedLink(self.bytes_per_s)

    # --- Loader -----------------------------------------------------------------------------------------------------------

    def expect(self, generation: Generation) -> None:
        lease_s = self.engine.settings.kv_lease_s
        self.waiting[generation] = self.fabric.clock.call_later(lease_s / RENEWALS_PER_LEASE, self._renew, generation)

    def load(self, generation: Generation) -> None:
        self.fabric.clock.call_soon(self._open, generation)

    def forget(self, generation: Generation) -> None:
        timer = self.waiting.pop(generation, None)
        if timer:
            timer.cancel()

    # --- one pull ---------------------------------------------------------------------------------------------------------

    def _open(self, generation: Generation) -> None:
        remote = generation.remote
        assert remote is not None
        source = self.fabric.ports.get(remote.engine)
        if source is None:
            self.engine.load_failed(generation)
            return
        settings = self.engine.settings
        hits = generation.request.local_hit_tokens // settings.limits.block_size
        blocks = list(remote.blocks[hits : len(generation.contents)])
        now, size = self.fabric.clock.time(), settings.pull_bytes(len(blocks))
        pull = _Pull(generation, remote, source, blocks, size, now)
        self.incoming.start(now, pull, size)
        source.outgoing[pull] = self
        source.share_out()
        self.watch()

    def share_out(self) -> None:
        """Tell every pull from here the rate that it may have now."""
        for pull, destination in self.outgoing.items():
            destination.incoming.limit(self.fabric.clock.time(), pull, self.bytes_per_s / len(self.outgoing))
            destination.watch()

    def watch(self) -> None:
        """One timer, for the pull that ends first."""
        if self.timer:
            self.timer.cancel()
        upcoming = self.incoming.next_end()
        self.timer = self.fabric.clock.call_at(upcoming[0], self._through, upcoming[1]) if upcoming else None

    def _through(self, pull: _Pull) -> None:
        now = self.fabric.clock.time()
        self.timer = None
        self.incoming.stop(now, pull)
        del pull.source.outgoing[pull]
        pull.source.share_out()
        self.watch()
        found = pull.source.engine.offers.read(pull.remote.request, pull.blocks)
        pull.source.engine.offers.pulled(pull.remote.request)
        generation = pull.generation
        if generation in self.waiting:
            block_size = self.engine.settings.limits.block_size
            wanted = len(generation.contents) - generation.request.local_hit_tokens // block_size
            found += content.garbage("never sent", range(wanted - len(found)))
            self.forget(generation)
            self.engine.loaded(generation, found, Pulled(pull.blocks, pull.size_bytes, now - pull.started, 0.0))

    def _renew(self, generation: Generation) -> None:
        remote = generation.remote
        source = self.fabric.ports.get(remote.engine) if remote else None
        if remote and source:
            source.engine.offers.renew(remote.request)
        self.expect(generation)
