"""What routers of other hosts have reserved, as they tell it every 100 ms; and whether what we know of them is too old."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from controlplane.core.names import FACT_TTL_S
from controlplane.core.protocol import Reservations
from controlplane.router.engines import Engine
from controlplane.router.loads import NOTHING, Reserved

TELL_S = 0.1
SAME_S = 0.25
"""Unchanged loads are told again after so long."""
STALE_S = 0.75
"""What a router said longer ago is not used, and choices are made between two random candidates meanwhile."""


@dataclass(slots=True)
class _Peer:
    host: str
    boot: str
    seq: int
    heard_at: float
    loads: dict[str, tuple[int, ...]]


class Peers:
    """`host` is the router's id without a process's number: those of one host share memory and do not listen to each
    other here. Times are monotonic."""

    def __init__(self, router: str, host: str, boot: str) -> None:
        self._router = router
        self._host = host
        self._boot = boot
        self._seq = 0
        self._peers: dict[str, _Peer] = {}
        self._echo_at = 0.0
        self._told: dict[str, tuple[int, ...]] | None = None
        self._told_at = 0.0
        self.stale = False
        """There are other hosts, and some were not heard of lately."""
        self.hosts = 1
        """With a live router, this one included."""

    def message(self, engines: Iterable[Engine], now: float) -> Reservations | None:
        """What to tell now; None if that is what was told a moment ago."""
        loads: dict[str, tuple[int, ...]] = {}
        for engine in engines:
            own = engine.load.own
            if own.in_flight or engine.produced:
                loads[key_of(engine)] = (*own, engine.produced)
        if loads == self._told and now - self._told_at < SAME_S:
            return None
        self._told, self._told_at = loads, now
        self._seq += 1
        return Reservations(self._router, self._host, self._boot, self._seq, loads)

    def farewell(self) -> Reservations:
        """The last message of a router that stops."""
        self._seq += 1
        return Reservations(self._router, self._host, self._boot, self._seq, leaving=True)

    def hear(self, said: Reservations, now: float) -> None:
        """Ours comes back too: then nothing is wrong with the way that it takes."""
        if said.router == self._router:
            self._echo_at = now
        elif said.host != self._host:
            known = self._peers.get(said.router)
            if known is not None and known.boot == said.boot and said.seq <= known.seq:
                return
            if said.leaving:
                self._peers.pop(said.router, None)
            else:
                self._peers[said.router] = _Peer(said.host, said.boot, said.seq, now, dict(said.loads))

    def apply(self, engines: Iterable[Engine], now: float) -> None:
        """Lets loads show what is known. A router that is silent is taken for gone only while we hear ourselves."""
        if now - self._echo_at < STALE_S:
            self._peers = {id: peer for id, peer in self._peers.items() if now - peer.heard_at < FACT_TTL_S}
        fresh = [peer for peer in self._peers.values() if now - peer.heard_at < STALE_S]
        self.stale = len(fresh) < len(self._peers)
        self.hosts = 1 + len({peer.host for peer in self._peers.values()})
        for engine in engines:
            key = key_of(engine)
            said = [peer.loads[key] for peer in fresh if key in peer.loads]
            engine.load.see_hosts(Reserved(*map(sum, zip(*(each[:4] for each in said), strict=True))) if said else NOTHING)
            engine.load.produced_on_hosts = sum(each[4] for each in said)


def key_of(engine: Engine) -> str:
    return f"{engine.route.id}#{engine.route.incarnation}"
