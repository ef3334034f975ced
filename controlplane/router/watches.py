"""Decode legs that ended before anybody knew whether they pulled their KV in time: the client left, or the engine failed.

A hung engine may still pull it when it goes on, after the lease. So each such leg is watched until its lease has surely
ended. It was harmless if the engine has answered a leg that was sent after its end (then the engine had noticed that end
before) or if the prefill engine let no lease expire meanwhile. Otherwise the engine's cache gets a new era.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from controlplane.core.eras import Era
from controlplane.router.engines import Engine
from controlplane.router.handoff import Handoff
from controlplane.router.limits import Limits

MARGIN_S = 1.0
"""Added to the lease: engines look for expired leases once a step."""


@dataclass(eq=False, slots=True)
class _Watch:
    """All such legs of one era between the same two engines. Times are monotonic."""

    engine: Engine
    era: Era
    first: Handoff
    ended_at: float
    """When the last of them ended."""
    until: float
    """When the last of their leases has surely ended."""
    reading: asyncio.Task[None] | None = None


class Watches:
    def __init__(self, spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]], limits: Limits) -> None:
        self._spawn = spawn
        self._limits = limits
        self._open: dict[tuple[Engine, Engine, Era], _Watch] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, engine: Engine, era: Era, handoff: Handoff) -> None:
        """A decode leg on `engine` is over without a proof. From the start of the lease's end on, the leg is late already:
        then the era is lost at once."""
        now = time.monotonic()
        if now > handoff.late_after:
            engine.lose(era)
            return
        if era.lost:
            return
        handoff.keep_baseline()
        until = now + handoff.lease_s + MARGIN_S
        known = self._open.get((handoff.engine, engine, era))
        if known is None:
            self._open[(handoff.engine, engine, era)] = _Watch(engine, era, handoff, now, until)
        else:
            # The first one's reading came before all of their leases could end, if it came before the first one's.
            known.ended_at, known.until = now, until
            handoff.drop_baseline()

    def sweep(self, now: float) -> None:
        """Called about twice a second."""
        for key, watch in list(self._open.items()):
            if watch.era.lost:
                self._close(key, watch)
            elif now <= watch.first.late_after:
                if watch.engine.lively_since > watch.ended_at:
                    self._close(key, watch)
            elif watch.reading is None or watch.reading.done():
                watch.reading = self._spawn(self._look(key, watch, now))

    def stop(self) -> None:
        """This router ends. Nobody will watch the rest: it counts as lost, but for engines that have surely noticed."""
        for key, watch in list(self._open.items()):
            if watch.engine.lively_since <= watch.ended_at:
                watch.engine.lose(watch.era)
            self._close(key, watch)

    async def _look(self, key: tuple[Engine, Engine, Era], watch: _Watch, now: float) -> None:
        kept = await watch.first.kv_kept()
        if self._open.get(key) is not watch:
            return
        if not kept:
            watch.engine.lose(watch.era)
            self._close(key, watch)
        elif now > watch.until:
            self._close(key, watch)

    def _close(self, key: tuple[Engine, Engine, Era], watch: _Watch) -> None:
        self._open.pop(key, None)
        watch.first.drop_baseline()
