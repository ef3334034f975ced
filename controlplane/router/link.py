"""The router's link to Valkey: tables in, its fact and telemetry out. When Valkey is away everything here waits and tries
again; nothing of it is on the path of a request."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from controlplane.common.stream_end import StreamEnd
from controlplane.common.valkey import UNREACHABLE, connect
from controlplane.core import names, signing
from controlplane.core.codec import decode, encode
from controlplane.core.protocol import CacheEra, Reservations, RouterFact
from controlplane.router.app import Router
from controlplane.router.peers import TELL_S, Peers
from controlplane.router.tables import Tables
from controlplane.router.telemetry import Outbox
from controlplane.router.trials import send

log = logging.getLogger(__name__)

POLL_S = 2.0
TICK_S = 1.0
LEAVING_TICK_S = 0.05
"""While an engine is being drained with legs open here: its last one's end is news."""
WAIT_FIRST_S = 0.2
WAIT_MAX_S = 5.0
ANSWER_S = 5.0


class Link:
    def __init__(
        self, router: Router, host: str, tables: Tables, outbox: Outbox, secret: signing.Secret, url: str, telemetry_url: str
    ) -> None:
        """`host`: the router's id without a process's number."""
        self._router = router
        self._tables = tables
        self._outbox = outbox
        self._key = signing.router_key(secret)
        self._broker = connect(url, ANSWER_S, max_connections=None)
        self._stream = connect(telemetry_url, ANSWER_S, max_connections=None) if telemetry_url != url else self._broker
        self._end = StreamEnd()
        self._seq = 0
        self._booted_at = time.time()
        self._unsaid_eras: dict[str, CacheEra] = {}
        self._era_news = asyncio.Event()
        self._bad_eras: set[object] = set()
        router.directory.eras.on_new.append(self._era_found)
        self._told: RouterFact | None = None
        self._told_at = 0.0
        self._announced: tuple[Any, ...] = ()
        self._peers = router.peers = Peers(router.id, host, outbox.boot)
        self._bad_loads = False

    async def run(self) -> None:
        """Until cancelled."""
        await asyncio.gather(
            self._forever("table", self._follow_table),
            self._forever("facts", self._tell_facts),
            self._forever("cache eras", self._follow_eras),
            self._forever("cache eras", self._tell_eras),
            self._forever("telemetry", self._send_telemetry),
            self._forever("canaries", self._tell_trials),
            self._forever("loads out", self._tell_loads),
            self._forever("loads in", self._hear_loads),
        )

    async def close(self) -> None:
        """Sends what is left and takes the fact back, so that nobody waits for a router that is gone. Gives up soon."""
        try:
            async with asyncio.timeout(2.0):
                await self._say_eras()
                await self._flush(last=True)
                await send(self._broker, self._key, self._outbox.trials)
                await self._say_loads(self._peers.farewell())
                await self._broker.delete(names.fact_key("router", self._router.id))
                await self._broker.publish(names.FACT_CHANNEL, f"router:{self._router.id}")
        except UNREACHABLE:
            log.info("Valkey is away: the last records were not sent")
        for each in {self._broker, self._stream}:
            await each.aclose()

    async def _forever(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Runs `work`, which only ends by failing, again and again, and says once that Valkey is away."""
        wait_s, away = WAIT_FIRST_S, False
        while True:
            started = time.monotonic()
            try:
                await work()
            except UNREACHABLE as error:
                if time.monotonic() - started > 2 * POLL_S:
                    wait_s, away = WAIT_FIRST_S, False  # it had worked
                if not away:
                    log.warning("Valkey is away (%s: %s); going on without it", what, type(error).__name__)
                away = True
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, WAIT_MAX_S)

    # --- tables ---

    async def _follow_table(self) -> None:
        """The announcement makes it quick, the poll makes it sure."""
        async with self._broker.pubsub() as announcements:
            await announcements.subscribe(names.TABLE_CHANNEL)
            while True:
                envelope = await self._broker.get(names.TABLE_KEY)
                if envelope is not None:
                    await self._read_eras()  # no engine of it may be asked under a salt that is spoilt
                    self._tables.offer_sealed(envelope if isinstance(envelope, bytes) else envelope.encode(), "Valkey")
                await announcements.get_message(ignore_subscribe_messages=True, timeout=POLL_S)

    # --- cache eras ---

    async def _follow_eras(self) -> None:
        """What other routers have found out; the announcement makes it quick, the poll makes it sure."""
        async with self._broker.pubsub() as announcements:
            await announcements.subscribe(names.ERAS_CHANNEL)
            while True:
                await self._read_eras()
                await announcements.get_message(ignore_subscribe_messages=True, timeout=POLL_S)

    async def _read_eras(self) -> None:
        directory, found = self._router.directory, []
        told = await self._broker.hgetall(names.ERAS_KEY)
        for field, envelope in told.items():
            try:
                era = decode(CacheEra, signing.unseal(self._key, envelope))
            except ValueError as error:  # BadSignature, WrongShape
                if field not in self._bad_eras:
                    self._bad_eras.add(field)
                    log.warning("cache era %r refused: %s", field, error)
                continue
            directory.learn_era(era)
            found.append((field, era))
        outdone = [field for field, era in found if directory.eras.outdone(era)]
        if outdone:
            await self._broker.hdel(names.ERAS_KEY, *outdone)
        held = {field for field, _ in found}  # not those that are sealed with a key that is believed no more
        for era in directory.eras_of_table():
            if _field(era).encode() not in held:  # Valkey has lost it, and a router that starts now must hear of it
                self._say_soon(era)

    def _era_found(self, era: CacheEra) -> None:
        self._say_soon(era)
        self._router.table_changed.set()  # the fact tells it too

    def _say_soon(self, era: CacheEra) -> None:
        self._unsaid_eras[_field(era)] = era
        self._era_news.set()

    async def _tell_eras(self) -> None:
        while True:
            await self._era_news.wait()
            await self._say_eras()

    async def _say_eras(self) -> None:
        """Each stays unsaid until Valkey has it."""
        for field, era in list(self._unsaid_eras.items()):
            await self._broker.hset(names.ERAS_KEY, field, signing.seal(self._key, encode(era)))
            await self._broker.publish(names.ERAS_CHANNEL, field)
            del self._unsaid_eras[field]
        if not self._unsaid_eras:
            self._era_news.clear()

    # --- facts ---

    def fact(self) -> RouterFact:
        table = self._router.directory.table
        epoch, generation = table.stamp if table is not None else (0, 0)
        return RouterFact(
            router=self._router.id,
            boot=self._outbox.boot,
            booted_at=self._booted_at,
            seq=self._seq,
            at=time.time(),
            epoch=epoch,
            generation=generation,
            loads=self._router.loads(),
            set_aside=self._router.set_aside(),
            eras=self._router.directory.eras_of_table(),
        )

    async def _tell_facts(self) -> None:
        """What something may be decided on at once, and announced; the rest every second while it changes; all at least
        every FACT_EVERY_S."""
        while True:
            fact, silent_s = self.fact(), time.monotonic() - self._told_at
            previous, news = self._told, self._news(fact)
            changed = previous is None or replace(fact, at=previous.at, seq=previous.seq) != previous
            if news != self._announced or silent_s >= (TICK_S if changed else names.FACT_EVERY_S) - TICK_S / 2:
                self._router.table_changed.clear()
                await self._tell(fact, news)
            try:
                async with asyncio.timeout(LEAVING_TICK_S if any(news[-1]) else TICK_S):
                    await self._router.table_changed.wait()
            except TimeoutError:
                pass

    async def _tell(self, fact: RouterFact, news: tuple[Any, ...]) -> None:
        self._seq += 1
        fact = replace(fact, seq=self._seq)
        pipeline = self._broker.pipeline(transaction=False)
        sealed = signing.seal(signing.newest(self._key), encode(fact))  # so control knows which secret is here
        pipeline.set(names.fact_key("router", self._router.id), sealed, ex=names.FACT_TTL_S)
        if news != self._announced:
            pipeline.publish(names.FACT_CHANNEL, f"router:{self._router.id}")
        await pipeline.execute()
        self._told, self._told_at, self._announced = fact, time.monotonic(), news

    def _news(self, fact: RouterFact) -> tuple[Any, ...]:
        """What of a fact is worth a tick of the control loop: not how much is open on engines, which changes all the time,
        but, last, on which of those that are being drained anything still is."""
        serving = {engine.route.id for engine in self._router.directory.engines.values() if engine.route.state == "ready"}
        busy = {load.engine for load in fact.loads if load.engine not in serving and (load.in_flight or load.handoffs)}
        return fact.epoch, fact.generation, fact.set_aside, fact.eras, busy

    # --- reservations ---

    async def _tell_loads(self) -> None:
        router = self._router
        while True:
            now = time.monotonic()
            router.heed_peers(now)
            message = self._peers.message(router.directory.all_engines(), now)
            if message is not None:
                await self._say_loads(message)
            await asyncio.sleep(TELL_S)

    async def _say_loads(self, message: Reservations) -> None:
        await self._broker.publish(names.LOADS_CHANNEL, signing.seal(self._key, encode(message)))

    async def _hear_loads(self) -> None:
        async with self._broker.pubsub() as channel:
            await channel.subscribe(names.LOADS_CHANNEL)
            while True:
                message = await channel.get_message(ignore_subscribe_messages=True, timeout=POLL_S)
                if message is None:
                    continue
                try:
                    said = decode(Reservations, signing.unseal(self._key, message["data"]))
                except ValueError as error:  # BadSignature, WrongShape
                    if not self._bad_loads:
                        log.warning("what a router said of its loads was refused: %s", error)
                    self._bad_loads = True
                    continue
                self._peers.hear(said, time.monotonic())

    # --- telemetry ---

    async def _send_telemetry(self) -> None:
        while True:
            self._outbox.router(self._router.row())
            await self._flush()
            await asyncio.sleep(TICK_S)

    async def _tell_trials(self) -> None:
        while True:
            await send(self._broker, self._key, self._outbox.trials)
            await asyncio.sleep(TICK_S)

    async def _flush(self, last: bool = False) -> None:
        while (message := self._outbox.next_message(last)) is not None:
            pipeline = self._stream.pipeline(transaction=False)
            pipeline.xadd(names.TELEMETRY_STREAM, {"r": message}, **self._end.options())
            pipeline.xlen(names.TELEMETRY_STREAM)
            self._end.note(await pipeline.execute())
            self._outbox.confirmed()


def _field(era: CacheEra) -> str:
    return f"{era.engine}/{era.incarnation}/{era.number}/{era.salt}"
