"""Asks this host's indexer which engine holds how much of a prompt, as the engines themselves tell (controlplane.indexer).

A request never waits longer than `Limits.indexer_s`; without an answer the router decides by its own index, as it does
without an indexer. One that was late several times in a row is still asked, but not waited for until it answers again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from controlplane.core.kvindex import Holder
from controlplane.indexer import wire
from controlplane.router.engines import Engine
from controlplane.router.eras import salted
from controlplane.router.limits import Limits

if TYPE_CHECKING:
    from controlplane.router.exchange import Exchange

log = logging.getLogger(__name__)

LATE_IN_A_ROW = 3
RECONNECT_S = (0.2, 5.0)
"""First and longest pause between attempts to connect."""
MAX_WAITING_BYTES = 1 << 20
"""Questions that the indexer has not read. With more, none is sent."""
MAX_BODY_BYTES = 4 << 20
"""A larger body is not asked about."""
SETTLE_S = 1.0
"""Between an engine's storing a block and its being known here, at most."""
SLACK = 512
"""Tokens that an engine may find beyond what was foretold, computed for others meanwhile, before that counts as wrong."""
LEAST_RIGHT = 0.5
"""Of a model's answers lately. With fewer its tokens are not what is thought here, and its engines' word is not used."""


class Held(NamedTuple):
    """Of one engine's cache, for one prompt."""

    tokens: int
    whole: bool
    """It holds no more than that; else it may."""


class Found(NamedTuple):
    prompt_tokens: int
    held: Mapping[str, Held]
    """By engine; those that nothing is known of are left out."""


class Precise(asyncio.Protocol):
    """This process's line to the indexer."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self._path = path
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._closed = asyncio.Event()
        self._reader = wire.Reader()
        self._number = 0
        self._open: dict[int, asyncio.Future[Found | None]] = {}
        self._late = 0
        self._engines: list[list[Any]] = []
        self.counts: Counter[str] = Counter(dict.fromkeys(("answered", "unknown", "late", "away", "right", "wrong"), 0))
        """How questions ended, and whether engines found what was foretold."""
        self._right: dict[str, float] = {}
        """By model: the share of what was foretold that came true, the newest with a weight of 1/20."""

    @property
    def connected(self) -> bool:
        return self._transport is not None

    async def run(self) -> None:
        """Connects, again and again. Never ends."""
        wait_s = RECONNECT_S[0]
        while True:
            self._closed.clear()
            try:
                await self._loop.create_unix_connection(lambda: self, str(self._path))
            except OSError as error:
                log.debug("no indexer at %s: %s", self._path, error)
                wait_s = min(wait_s * 2, RECONNECT_S[1])
            else:
                wait_s = RECONNECT_S[0]
                await self._closed.wait()
            await asyncio.sleep(wait_s)

    def apply(self, engines: Iterable[Engine]) -> None:
        """The engines of a new table."""
        self._engines = [[e.route.id, e.route.incarnation, e.route.url, e.model] for e in engines]
        self._tell_engines()

    # --- a request ---

    async def inform(self, x: Exchange) -> None:
        """Sets `x.exact` before an engine is chosen, if it is worth a question."""
        if not (x.generates and x.prefix.keys and len(x.model.engines) > 1 and len(x.body.raw) <= MAX_BODY_BYTES):
            return
        own = x.body.data.get("cache_salt")
        if own is not None and not isinstance(own, str):
            return  # engines will refuse it
        salts = {e.route.id: salted(e.era.salt, own) for e in x.model.engines if e.era.salt}
        adapter = x.body.model if x.body.model != x.model_name else ""
        question = [x.endpoint, x.model_name, adapter, own or "", salts, x.body.raw]
        x.exact = await self.ask(question)
        if x.exact is not None:
            x.need.prompt_tokens = x.exact.prompt_tokens
            x.look_up()

    def correct(self, x: Exchange, found: Mapping[Holder, int], cached: dict[str, int]) -> None:
        """Puts what engines told in the place of what was guessed (`found` blocks, `cached` tokens). Prompts that were sent
        lately may be on their way, and count as guessed."""
        exact = x.exact
        if exact is None or self._right.get(x.model_name, 1.0) < LEAST_RIGHT:
            return
        held = exact.held
        for holder, blocks in found.items():
            told = held.get(holder.name)
            if told is not None and told.whole:
                fresh = holder.recent(x.prefix.keys, blocks, time.monotonic() - self._on_its_way_s(x, holder))
                cached[holder.name] = x.prefix.tokens(fresh, x.need.prompt_tokens)
        for id, told in held.items():
            if told.tokens > cached.get(id, 0):
                cached[id] = told.tokens

    def _on_its_way_s(self, x: Exchange, holder: Holder) -> float:
        """What was sent longer ago has been computed, and told: twice the time that the prompts ahead need."""
        queue_s = next((e.load.prefill_tokens / e.rates.prefill for e in x.model.engines if e.holder is holder), 0.0)
        return SETTLE_S + 2.0 * queue_s

    def check(self, x: Exchange, engine: Engine, tokens: int) -> bool:
        """The engine had `tokens` of the prompt in its cache. False if that was foretold by the router's own index alone."""
        told = x.exact.held.get(engine.route.id) if x.exact is not None else None
        if told is None or not told.whole:
            return False
        wrong = told.tokens > tokens + x.model.route.block_size or tokens > max(told.tokens, x.expected_cached) + SLACK
        self.counts["wrong" if wrong else "right"] += 1
        before = self._right.get(x.model_name, 1.0)
        self._right[x.model_name] = before + (float(not wrong) - before) / 20
        return True

    async def ask(self, question: list[Any]) -> Found | None:
        """[path, model, adapter, cache_salt, {engine: another cache_salt}, body] -> what is known of its prompt, within
        `Limits.indexer_s`."""
        transport = self._transport
        if transport is None or transport.get_write_buffer_size() > MAX_WAITING_BYTES:
            self.counts["away"] += 1
            return None
        self._number = number = self._number + 1
        transport.write(wire.pack([wire.ASK, number, *question]))
        if self._late >= LATE_IN_A_ROW:
            self.counts["away"] += 1
            return None
        future: asyncio.Future[Found | None] = self._loop.create_future()
        self._open[number] = future
        deadline = self._loop.call_later(self._limits.indexer_s, self._is_late, number)
        try:
            return await future
        finally:
            deadline.cancel()
            self._open.pop(number, None)

    def _is_late(self, number: int) -> None:
        future = self._open.pop(number)
        if not future.done():
            self._late += 1
            if self._late == LATE_IN_A_ROW:
                log.warning("the indexer does not answer in time and is not waited for")
            self.counts["late"] += 1
            future.set_result(None)

    def _tell_engines(self) -> None:
        if self._transport is not None:
            self._transport.write(wire.pack([wire.ENGINES, self._engines]))

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._reader = wire.Reader()
        self._late = 0
        self._tell_engines()
        log.info("asks the indexer at %s", self._path)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._closed.set()
        for future in self._open.values():
            if not future.done():
                self.counts["away"] += 1
                future.set_result(None)
        self._open.clear()
        log.warning("the indexer at %s has gone", self._path)

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._reader.feed(data):
                self._answered(message)
        except wire.BadFrame as problem:
            log.warning("the indexer at %s is cut off: %s", self._path, problem)
            assert self._transport is not None
            self._transport.abort()

    def _answered(self, message: list[Any]) -> None:
        match message:
            case [int(number), int(prompt), dict(held)]:
                self._late = 0
                future = self._open.pop(number, None)
                if future is None or future.done():
                    return  # it was late
                found = _found(prompt, held) if prompt else None
                self.counts["unknown" if found is None else "answered"] += 1
                future.set_result(found)
            case _:
                raise wire.BadFrame("an answer of no known kind")


def _found(prompt: int, held: dict[Any, Any]) -> Found:
    try:
        return Found(prompt, {str(id): Held(int(tokens), bool(whole)) for id, (tokens, whole) in held.items()})
    except (TypeError, ValueError) as error:
        raise wire.BadFrame("an answer of no known kind") from error
