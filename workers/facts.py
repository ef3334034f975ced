"""Keeps `fact:agent:<node>` current: the agent's whole state, signed, written on every change and every few seconds.

Load figures (running, waiting) change all the time: they are written at most once a second and announced to nobody; only
what changes a decision is announced.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace

from controlplane.common.valkey import UNREACHABLE, away, connect
from controlplane.core import names
from controlplane.core.codec import encode
from controlplane.core.protocol import AgentFact, EngineFact
from controlplane.core.signing import Secret, seal

log = logging.getLogger(__name__)

LOAD_EVERY_S = 1.0
GATHER_S = 0.02
"""Changes that come together are told together."""
LONGEST_PAUSE_S = 3.0
LAST_WORD_S = 0.5
"""An agent that stops waits no longer than this to say how it left its engines."""


def matters(engine: EngineFact) -> EngineFact:
    """What of an engine's fact is worth waking the control loop for: everything, while it waits for a drain."""
    if engine.state == "draining":
        return engine
    return replace(engine, running=0, waiting=0, scraped_at=None, quiet_since=None)


def announces(before: AgentFact | None, now: AgentFact) -> bool:
    """Whether listeners must hear of the difference."""
    return before is None or (before.gpus, [*map(matters, before.engines)]) != (now.gpus, [*map(matters, now.engines)])


class FactPublisher:
    """`current` builds the fact for a sequence number and a time."""

    def __init__(self, url: str, node: str, key: Secret, current: Callable[[int, float], AgentFact]) -> None:
        self._client = connect(url)
        self._node, self._key, self._current = node, key, current
        self._changed = asyncio.Event()
        self._changed.set()
        self._seq = 0
        self._announced: AgentFact | None = None
        self._written: AgentFact | None = None

    def changed(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        """Publishes until cancelled, through any outage of Valkey."""
        pause = 0.0
        while True:
            await asyncio.sleep(pause)
            try:
                async with asyncio.timeout(LOAD_EVERY_S):
                    await self._changed.wait()
            except TimeoutError:
                pass
            await asyncio.sleep(GATHER_S)
            self._changed.clear()
            try:
                await self._publish()
                pause = 0.0
            except UNREACHABLE as error:
                if not pause:
                    log.warning("%s: this node's fact waits", away(error))
                pause = min(LONGEST_PAUSE_S, pause * 2 or 0.25)
                self._announced = None  # whoever listens may have missed anything
                self._changed.set()

    async def close(self) -> None:
        """Tells the last state, if Valkey listens right now, and lets go of it."""
        self._written = None
        try:
            async with asyncio.timeout(LAST_WORD_S):
                await self._publish()
        except UNREACHABLE as error:
            log.warning("%s: the last state of this node stays untold", away(error))
        await self._client.aclose()

    async def _publish(self) -> None:
        fact = self._current(self._seq + 1, time.time())
        announce = announces(self._announced, fact)
        if not announce and self._written and fact.at - self._written.at < LOAD_EVERY_S:
            return
        self._seq += 1
        pipeline = self._client.pipeline(transaction=False)
        pipeline.set(names.fact_key("agent", self._node), seal(self._key, encode(fact)), ex=names.FACT_TTL_S)
        if announce:
            pipeline.publish(names.FACT_CHANNEL, f"agent:{self._node}")
        await pipeline.execute()
        self._written = fact
        if announce:
            self._announced = fact
