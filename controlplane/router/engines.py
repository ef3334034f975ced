"""The router's own state of each engine and model, kept from one routing table to the next."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import xxhash

from controlplane.core import routing, signing
from controlplane.core.eras import Era, Eras
from controlplane.core.kvindex import Holder, KvIndex
from controlplane.core.protocol import CacheEra, EngineRoute, ModelRoute, RoutingTable
from controlplane.router.bodies import DEFAULT_OUTPUT_TOKENS
from controlplane.router.breaker import Breaker
from controlplane.router.eras import EraBook
from controlplane.router.gathering import Gathering
from controlplane.router.limits import Limits
from controlplane.router.loads import SharedLoad
from controlplane.router.pool import Pool
from controlplane.router.upstream import Fault

log = logging.getLogger(__name__)

EngineId = tuple[str, int, str]


@dataclass(frozen=True, slots=True)
class ExpiryReading:
    """What an engine's counter of expired leases was; None: it could not be read."""

    value: float | None
    came_at: float
    """Monotonic time when the answer was here."""


class Engine:
    """One incarnation of an engine at one address. A restart behind the same port is another one."""

    def __init__(
        self,
        route: EngineRoute,
        model: str,
        rates: routing.Rates,
        holder: Holder,
        key: str,
        limits: Limits,
        era: CacheEra | None = None,
        on_era: Callable[[CacheEra], None] = lambda era: None,
    ) -> None:
        """`era`: what is known of its cache. `on_era` is called with what is found out about it."""
        self.route = route
        self.model = model
        self.holder = holder
        """What its KV cache holds, as far as this router knows."""
        self.rates = rates
        self.load = SharedLoad()
        self.links = routing.Links()
        self.kv_tokens = 0
        """Room of its KV cache; 0: not known."""
        self.room_asked_at = math.inf
        """Monotonic time of its first answer, or when it was last asked for its room; infinite before."""
        self.salt = xxhash.xxh3_64_intdigest(route.id.encode())
        self._eras = Eras(_new_salt, era.number, era.salt) if era is not None else Eras(_new_salt)
        self._on_era = on_era
        self._settled = asyncio.Event()
        """Replaced whenever it is set: a doubt about an era has ended."""
        self.lively_since = -math.inf
        """Monotonic start of the latest leg that it has answered."""
        self.proven = False
        """It has answered a request of this router."""
        self.breaker = Breaker(limits)
        self.pool = Pool(route.url, limits)
        self.produced = 0
        """Events that came from it, ever: its output in tokens, roughly."""
        self.produced_before = 0
        self.expiry_reading: tuple[float, asyncio.Task[ExpiryReading]] | None = None
        """The newest reading of its counter of expired leases: (monotonic start, task)."""
        self.asked_at = -math.inf
        """Monotonic time when it was last asked for its health."""
        self.gone = False
        """No longer in the table; its open legs go on."""
        host = urlsplit(route.url).netloc.encode()
        auth = b"authorization: Bearer %b\r\n" % key.encode() if key else b""
        self._common = b"host: %b\r\n%b" % (host, auth)

    @property
    def key(self) -> EngineId:
        return self.route.id, self.route.incarnation, self.route.url

    @property
    def usable(self) -> bool:
        return not (self.breaker.open or self.gone)

    # --- the eras of its cache (core.eras) ---

    @property
    def era(self) -> Era:
        """What the next leg is sent under."""
        return self._eras.current

    def doubt(self, era: Era) -> None:
        """A leg of this era is being looked into; `settle` must follow. Until then its answers are held."""
        self._eras.doubt(era)

    def settle(self, era: Era, kept: bool) -> None:
        if self._eras.settle(era, kept):
            self._era_lost()
        self._wake()

    def lose(self, era: Era) -> None:
        """Wrong KV may be in its cache under this era."""
        if self._eras.lose(era):
            self._era_lost()
        self._wake()

    def adopt(self, era: CacheEra) -> None:
        """What another router has found out about its cache."""
        if self._eras.adopt(era.number, era.salt):
            self.holder.forget()
            self._wake()

    async def believes(self, era: Era) -> bool:
        """Whether answers given under this era are right, as soon as that is known."""
        while era.checks:
            await self._settled.wait()
        return not era.lost

    def _era_lost(self) -> None:
        self.holder.forget()
        base = self._eras.base
        log.warning("engine %s may hold wrong KV: its prefix cache is used no more", self.route.id)
        self._on_era(CacheEra(self.route.id, self.route.incarnation, base.number, base.salt))

    def _wake(self) -> None:
        self._settled.set()
        self._settled = asyncio.Event()

    # --- legs ---

    def request(self, path: bytes, body: bytes, forwarded: bytes) -> bytes:
        """A POST with our own headers and `forwarded`, ready-made header lines."""
        return b"POST %b HTTP/1.1\r\n%bcontent-type: application/json\r\ncontent-length: %d\r\n%b\r\n%b" % (
            path, self._common, len(body), forwarded, body,
        )  # fmt: skip

    def get(self, path: bytes) -> bytes:
        return b"GET %b HTTP/1.1\r\n%b\r\n" % (path, self._common)

    def proved_alive(self, leg_start: float) -> None:
        """It has answered a leg that was sent then (monotonic)."""
        self.lively_since = max(self.lively_since, leg_start)
        self.proven = True

    def answered(self) -> None:
        """It did a leg as it should."""
        self.breaker.success()
        if self.room_asked_at == math.inf:
            self.room_asked_at = time.monotonic()

    def failed(self, fault: Fault, now: float) -> bool:
        """True if the engine is set aside because of it. One that broke may come back, but with an empty cache."""
        if not self.breaker.fault(fault.hard, now):
            return False
        if fault.hard:
            self.holder.forget()
        return True


class Model:
    """A model of the table with its engines."""

    def __init__(self, route: ModelRoute, engines: list[Engine], usual_output: float) -> None:
        self.route = route
        self.engines = engines
        self.usual_output = usual_output
        """Output tokens of its requests, averaged with a weight of 1/50 for the newest."""

    def saw_output(self, tokens: int) -> None:
        self.usual_output += (tokens - self.usual_output) / 50


class Directory:
    """What the applied table says, joined with what the router has seen."""

    def __init__(self, fleet_secret: signing.FleetSecret | None, limits: Limits) -> None:
        self._secret = fleet_secret
        self._limits = limits
        self._rates: dict[tuple[str, str, int], routing.Rates] = {}
        self.index = KvIndex(limits.index_blocks)
        self.gathering = Gathering(limits)
        self.eras = EraBook()
        self.table: RoutingTable | None = None
        self.models: dict[str, Model] = {}
        """By name and by alias."""
        self.engines: dict[EngineId, Engine] = {}
        self.leaving: list[Engine] = []
        """Engines of earlier tables that still have legs open."""

    def apply(self, table: RoutingTable) -> None:
        """Replaces the table. Engines that stay keep their connections, loads and breakers, whatever their role now is; so
        do those that come back while legs of theirs are open.
        Nothing changes before all of it has been made: a table that cannot be applied leaves no trace."""
        engines: dict[EngineId, Engine] = {}
        models: dict[str, Model] = {}
        routes: list[tuple[Engine, EngineRoute]] = []
        for route in table.models:
            members = []
            for engine_route in route.engines:
                engine = self._engine(route, engine_route)
                engines[engine.key] = engine
                members.append(engine)
                routes.append((engine, engine_route))
            known = self.models.get(route.name)
            model = Model(route, members, known.usual_output if known else DEFAULT_OUTPUT_TOKENS)
            for name in route.names:
                models[name] = model
        for engine, engine_route in routes:
            engine.route = engine_route
            if engine.gone:
                engine.gone = False
                engine.pool.reopen()
                self.leaving.remove(engine)
        for key, engine in self.engines.items():
            if engines.get(key) is not engine:
                engine.gone = True
                engine.holder.close()
                engine.pool.close()
                self.leaving.append(engine)
        for engine in engines.values():
            self.index.enter(engine.holder)
        self.table, self.models, self.engines = table, models, engines
        self.eras.prune(table)
        self.forget_idle()

    def forget_idle(self) -> None:
        """Lets go of engines that left the table and have no leg open any more."""
        self.leaving = [engine for engine in self.leaving if engine.load.own_in_flight or engine.pool.open_connections]

    def all_engines(self) -> list[Engine]:
        """Those of the table last: where two share a name, they are the ones that matter."""
        return [*self.leaving, *self.engines.values()]

    def _engine(self, model: ModelRoute, route: EngineRoute) -> Engine:
        key = (route.id, route.incarnation, route.url)
        known = [engine for engine in (self.engines.get(key), *self.leaving) if engine is not None and engine.key == key]
        for engine in known:
            if engine.model == model.name and engine.route.engine_key == route.engine_key:
                return engine  # perhaps one that had left: what is open on it still counts
        shape = (model.name, route.gpu, route.tp)
        rates = self._rates.setdefault(shape, routing.Rates())
        era = self.eras.get(route.id, route.incarnation)
        holder = Holder(self.index, route.id)
        engine = Engine(route, model.name, rates, holder, self._key(route), self._limits, era, self._era_found)
        engine.pool.gathering = self.gathering
        return engine

    def eras_of_table(self) -> tuple[CacheEra, ...]:
        """Those of the table's engines."""
        known = (self.eras.get(id, incarnation) for id, incarnation, _ in self.engines)
        return tuple(era for era in known if era is not None)

    def learn_era(self, news: CacheEra) -> None:
        """What another router has found out about an engine's cache; also of engines that are in no table yet."""
        if self.eras.learn(news):
            self._adopt(news)

    def _era_found(self, era: CacheEra) -> None:
        self.eras.found(era)
        self._adopt(era)  # an engine that left the table and came back is there twice

    def _adopt(self, era: CacheEra) -> None:
        for engine in self.all_engines():
            if (engine.route.id, engine.route.incarnation) == (era.engine, era.incarnation):
                engine.adopt(era)

    def _key(self, route: EngineRoute) -> str:
        if route.engine_key or self._secret is None:
            return route.engine_key
        secret = self._secret if isinstance(self._secret, bytes) else self._secret.of_incarnation(route.incarnation)
        return signing.engine_key(signing.node_key(secret, route.node), route.id, route.incarnation)


def _new_salt() -> str:
    return secrets.token_hex(8)
