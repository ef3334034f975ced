"""The processes of one engine on several nodes, held together over rank 0's side port.

Each rank beyond 0 joins: both ends prove that they have the engine's gang key by answering the other's nonce (HMAC-SHA256),
so that nobody else can pose as a part of it. From then on rank 0 beats twice a second and says with each beat how busy a
stage is; the others answer. A connection that ends, or silence for SILENT_BEATS beats, is the death of the whole engine.
Beats are counted, not timed: a process that was stopped for a while does not take its own sleep for the others' silence.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from workers.engines.simulated.activity import Busy
from workers.engines.simulated.wire import BadMessage, Side, text, whole

ENV_GANG_KEY = "TWINPOOL_GANG_KEY"
BEAT_S = 0.5
SILENT_BEATS = 60
RETRY_S = 0.2
IDLE = Busy(0.0, 0.0, 0.0)


def proof(key: bytes, who: str, nonce: str) -> str:
    """What only a holder of the key can answer to a nonce. `who`: "leader" or "rank <number>"."""
    return hmac.new(key, f"{who}:{nonce}".encode(), hashlib.sha256).hexdigest()


@dataclass
class _Seat:
    """A connection that wants to be, or is, a rank. `unheard`: beats since it last said anything."""

    rank: int
    nonce: str
    joined: bool = False
    unheard: int = 0


class Leader:
    """Rank 0's end. `busy` tells what a stage does; `lost` is called with the reason when a rank that had joined is gone."""

    def __init__(
        self,
        ranks: int,
        key: bytes,
        loop: asyncio.AbstractEventLoop,
        busy: Callable[[], Busy],
        lost: Callable[[str], None],
    ) -> None:
        self._ranks, self._key, self._loop, self._busy, self._lost = ranks, key, loop, busy, lost
        self._seats: dict[Side, _Seat] = {}
        self._ending = False
        loop.call_later(BEAT_S, self._beat)

    def missing(self) -> str:
        """Empty when all ranks have joined, else which have not."""
        there = {seat.rank for seat in self._seats.values() if seat.joined}
        gone = [str(rank) for rank in range(1, self._ranks) if rank not in there]
        return f"waiting for rank {', '.join(gone)} of this engine to join" if gone else ""

    def message(self, side: Side, message: Mapping[str, Any]) -> None:
        """A join, proof or beat. Raises BadMessage, which closes the connection."""
        match text(message, "op"):
            case "join":
                self._greet(side, whole(message, "rank"), text(message, "nonce"))
            case "proof":
                self._admit(side, text(message, "proof"))
            case "beat" if side in self._seats:
                self._seats[side].unheard = 0

    def _greet(self, side: Side, rank: int, nonce: str) -> None:
        if side in self._seats or not 1 <= rank < self._ranks:
            raise BadMessage(f"there is no rank {rank} to be")
        self._seats[side] = _Seat(rank, os.urandom(16).hex())
        side.send("prove", nonce=self._seats[side].nonce, proof=proof(self._key, "leader", nonce))

    def _admit(self, side: Side, answer: str) -> None:
        seat = self._seats.get(side)
        if seat is None or not hmac.compare_digest(answer, proof(self._key, f"rank {seat.rank}", seat.nonce)):
            raise BadMessage("it has not the key of this engine")
        if any(each.joined and each.rank == seat.rank for each in self._seats.values()):
            raise BadMessage(f"rank {seat.rank} is here already")
        seat.joined, seat.unheard = True, 0
        if not self.missing():
            for each in self._joined():
                each.send("together")

    def _joined(self) -> list[Side]:
        return [side for side, seat in self._seats.items() if seat.joined]

    def closed(self, side: Side) -> None:
        """A side connection, of a rank or not, has ended."""
        seat = self._seats.pop(side, None)
        if seat and seat.joined and not self._ending:
            self._lost(f"rank {seat.rank} is gone, and an engine ends with any of its ranks")

    def _beat(self) -> None:
        busy = self._busy()._asdict()
        for side in self._joined():
            seat = self._seats[side]
            seat.unheard += 1
            if seat.unheard > SILENT_BEATS:
                self._lost(f"rank {seat.rank} has been silent for {SILENT_BEATS * BEAT_S:g} s")
            side.send("beat", **busy)
        if not self._ending:
            self._loop.call_later(BEAT_S, self._beat)

    def end(self) -> None:
        """Rank 0 ends in good order: so may the others."""
        self._ending = True
        for side in self._joined():
            side.send("bye")


class Member:
    """The end of a rank beyond 0. `run` joins and stays until it is over."""

    def __init__(self, rank: int, key: bytes, leader: tuple[str, int], loop: asyncio.AbstractEventLoop) -> None:
        self._rank, self._key, self._leader, self._loop = rank, key, leader, loop
        self.busy = IDLE
        self.together = False
        """All ranks of the engine have joined."""
        self._nonce = ""
        self._joined = False
        self._unheard = 0
        self._over: asyncio.Future[str] = loop.create_future()
        self._settled = asyncio.Event()
        """The connection has joined or is gone."""

    @property
    def joined(self) -> bool:
        return self._joined

    async def run(self) -> str:
        """Why the engine is dead; empty when rank 0 has ended in good order."""
        while not self._joined and not self._over.done():
            await self._try()
        self._loop.call_later(BEAT_S, self._watch)
        return await self._over

    async def _try(self) -> None:
        """One connection, until it has joined or is gone. Rank 0 may not listen yet, or still hold a seat for a connection
        that has just ended."""
        self._settled.clear()
        self._nonce = os.urandom(16).hex()
        try:
            _, side = await self._loop.create_connection(lambda: Side(self._message, self._closed), *self._leader)
        except OSError:
            await asyncio.sleep(RETRY_S)
            return
        side.send("join", rank=self._rank, nonce=self._nonce)
        await self._settled.wait()
        if not self._joined:
            await asyncio.sleep(RETRY_S)

    def _message(self, side: Side, message: Mapping[str, Any]) -> None:
        self._unheard = 0
        match text(message, "op"):
            case "prove":
                if not hmac.compare_digest(text(message, "proof"), proof(self._key, "leader", self._nonce)):
                    self._end("what answers as rank 0 has not the key of this engine")
                    raise BadMessage("no key")
                side.send("proof", proof=proof(self._key, f"rank {self._rank}", text(message, "nonce")))
            case "together":
                self._joined = self.together = True
                self._settled.set()
            case "beat":
                self._joined = True
                self._settled.set()
                self.busy = Busy(*(_share(message, name) for name in Busy._fields))
                side.send("beat")
            case "bye":
                self._end("")

    def _closed(self, side: Side) -> None:
        self._settled.set()
        if self._joined:
            self._end("rank 0 is gone, and an engine ends with any of its ranks")

    def _watch(self) -> None:
        self._unheard += 1
        if self._unheard > SILENT_BEATS:
            self._end(f"rank 0 has been silent for {SILENT_BEATS * BEAT_S:g} s")
        else:
            self._loop.call_later(BEAT_S, self._watch)

    def _end(self, why: str) -> None:
        self._settled.set()
        if not self._over.done():
            self._over.set_result(why)


def _share(message: Mapping[str, Any], name: str) -> float:
    value = message.get(name)
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise BadMessage(f"{name} must be a share")
    return float(value)
