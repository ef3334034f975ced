"""The router as a whole: which endpoint a request is for, the endpoints that need no engine, and the twice-a-second work."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from controlplane.core.protocol import EngineLoad, KeyEntry, ModelRoute, RequestRow, RouterRow, RoutingTable, SessionSeen
from controlplane.core.routing import Path, Reason
from controlplane.core.signing import FleetSecret
from controlplane.router import answers, capacity, identity, metrics_page, readiness
from controlplane.router.admission import OwnBook, Quotas
from controlplane.router.budget import RetryBudget
from controlplane.router.client import ClientConnection
from controlplane.router.counters import Counters
from controlplane.router.courses import Course
from controlplane.router.engines import Directory, Engine
from controlplane.router.errors import ApiError
from controlplane.router.exchange import Exchange
from controlplane.router.ledger import Ledger
from controlplane.router.limits import Limits
from controlplane.router.paths import ENDPOINTS, Endpoint, normalise, query_value
from controlplane.router.peers import Peers
from controlplane.router.probes import answers_health, probe
from controlplane.router.reading import ClientRequest
from controlplane.router.sampling import Sampler
from controlplane.router.siblings import Siblings
from controlplane.router.upstream import Fault
from controlplane.router.usage import Usage
from controlplane.router.watches import Watches

if TYPE_CHECKING:
    from controlplane.router.precise import Precise

log = logging.getLogger(__name__)

SWEEP_S = 0.5
"""From the end of one sweep to the start of the next."""


class Telemetry(Protocol):
    """Where rows go. Must never block and never raise."""

    dropped: int

    def request(self, row: RequestRow) -> None: ...
    def untold(self, model: str, team: str, api_key: str, usage: Usage) -> None: ...
    def router(self, row: RouterRow) -> None: ...
    def session(self, canary: int, key: int, seen: SessionSeen) -> None: ...


class Router:
    def __init__(self, id: str, limits: Limits, fleet_secret: FleetSecret | None, telemetry: Telemetry) -> None:
        self.id = id
        self.limits = limits
        self.telemetry = telemetry
        self.directory = Directory(fleet_secret, limits)
        self.quotas = Quotas(OwnBook())
        self.ledger = Ledger()
        self.counters = Counters()
        self.retries = RetryBudget(limits)
        self.sampler = Sampler(limits.rows_per_s)
        self.gathering = self.directory.gathering
        self.watches = Watches(self.spawn, limits)
        self.proofs = readiness.Proofs(self.spawn, self.engine_failed, limits)
        self.ids_in_use: set[bytes] = set()
        self.clients: set[ClientConnection] = set()
        self.stopping = False
        self.releasing = 0
        """Prefilled KV that is being fetched for nobody, so that its owner frees it."""
        self.table_changed = asyncio.Event()
        """Set by `apply`; whoever tells others about it clears it."""
        self._swept_at = self.went_round_at = time.monotonic()
        """Of the last sweep and the one before. Between the two the loop has read all that was there to be read, so what is
        read now came after `went_round_at`, even if the process was stopped in the meantime."""
        self.siblings: Siblings | None = None
        """The other processes of this router, if it has any."""
        self.peers: Peers | None = None
        """The routers of other hosts, if this one has a way to hear of them."""
        self.precise: Precise | None = None
        """The line to an indexer, if there is one."""
        self._tasks: set[asyncio.Task[None]] = set()

    # --- the table ---

    def apply(self, table: RoutingTable) -> None:
        self.directory.apply(table)
        self.counters.keep({engine.route.id for engine in self.directory.all_engines()})
        self.quotas.apply(table)
        if self.siblings is not None:
            self.siblings.bind(self.directory.all_engines())
        if self.precise is not None:
            self.precise.apply(self.directory.engines.values())
        engines = len(self.directory.engines)
        log.info("routing table %d:%d applied: %d models, %d engines", *table.stamp, len(table.models), engines)
        self.table_changed.set()

    def join(self, siblings: Siblings) -> None:
        """This is one process of several that are one router. Called before the first table."""
        self.siblings = siblings
        self.quotas = Quotas(siblings)

    def heed_peers(self, now: float) -> None:
        """Acts on what routers of other hosts have said, or have not."""
        if self.peers is not None:
            self.peers.apply(self.directory.all_engines(), now)
            self.quotas.hosts = self.peers.hosts

    def sends(self, engine: Engine, blocks: Sequence[int]) -> None:
        """An engine is being sent a prompt of these blocks, and will hold them."""
        engine.holder.insert(blocks, time.monotonic())
        if self.siblings is not None:
            self.siblings.told(engine, blocks)

    def engine_failed(self, engine: Engine, fault: Fault) -> None:
        if engine.failed(fault, time.monotonic()):
            self.counters.set_aside += 1
            log.warning("engine %s is set aside: %s", engine.route.id, fault.kind)

    async def lives(self, engine: Engine) -> bool:
        """Asks an engine for its health. A hung one is set aside, and its legs whose answer has not begun fail now, so that
        others take them over."""
        asked_at = time.monotonic()
        if await answers_health(engine, self.limits):
            return True
        self.engine_failed(engine, Fault("hung"))
        engine.pool.fail_silent(asked_at, Fault("hung"))
        return False

    def loads(self) -> tuple[EngineLoad, ...]:
        """What is open on each engine, those that have left the table included."""
        handoffs = self.ledger.open_by_owner()
        return tuple(
            EngineLoad(
                engine=engine.route.id,
                incarnation=engine.route.incarnation,
                in_flight=engine.load.own_in_flight,
                handoffs=handoffs[(engine.route.id, engine.route.incarnation)],
                last_prefill_end=engine.load.last_prefill_end,
            )
            for engine in self.directory.all_engines()
        )

    def set_aside(self) -> tuple[str, ...]:
        return tuple(engine.route.id for engine in self.directory.engines.values() if not engine.usable)

    def row(self) -> RouterRow:
        counters = self.counters
        return RouterRow(
            router=self.id,
            in_flight=counters.in_flight,
            requests=counters.requests,
            failed=counters.failed,
            retried=counters.retried,
            handoffs_open=len(self.ledger),
            dropped=self.telemetry.dropped,
        )

    # --- requests (client.Handler) ---

    def opened(self, client: ClientConnection) -> None:
        self.clients.add(client)
        self.gathering.heed(client.fileno())

    def closed(self, client: ClientConnection) -> None:
        self.clients.discard(client)

    def admit(self, client: ClientConnection, request: ClientRequest) -> None:
        table = self.directory.table
        if table is not None:
            self.key_of(table, client, request)

    def key_of(self, table: RoutingTable, client: ClientConnection, request: ClientRequest) -> KeyEntry | None:
        """The entry of the request's API key; None if it needs none. Raises ApiError 401."""
        return identity.authenticate(table, request.headers, table.require_key or client.local)

    def serve(self, client: ClientConnection, request: ClientRequest) -> None:
        path = normalise(request.target)
        method, endpoint = ENDPOINTS[path] if path is not None else ("", None)
        if path is None or endpoint is None:
            self._refuse_request(
                client, request, ApiError(404, "There is no such path.", Reason.UNKNOWN_PATH, code="not_found")
            )
        elif request.method != method and not (request.method == "HEAD" and method == "GET"):
            error = ApiError(405, f"This path takes {method} only.", Reason.WRONG_METHOD, code="method_not_allowed")
            self._refuse_request(client, request, error, b"allow: %b\r\n" % method.encode())
        elif endpoint in ("generate", "whole"):
            if self.stopping:
                request.keep_alive = False
            exchange = Exchange(self, client, request, path, endpoint == "generate")
            client.task = course = Course(exchange.run(), self.spawn)
            course.start()
        elif endpoint == "ready":
            client.task = self.spawn(self._say_ready(client, request))
        else:
            self._own_answer(client, request, endpoint)

    def refuse(self, client: ClientConnection, error: ApiError) -> None:
        id = identity.request_id({}, self.ids_in_use)
        self.write_error(client, error, id, answers.route(Path.NONE, error.reason), close=True)

    def write_error(
        self,
        client: ClientConnection,
        error: ApiError,
        id: bytes,
        route: bytes,
        close: bool,
        extra: bytes = b"",
        head_only: bool = False,
    ) -> None:
        """An OpenAI-shaped error as a whole answer."""
        body = error.document()
        if error.retry_after_s is not None:
            extra += b"retry-after: %d\r\n" % error.retry_after_s
        if error.status == 401:
            extra += b"www-authenticate: Bearer\r\n"
        head = answers.head(error.status, id, route, answers.JSON, len(body), close or self.stopping, extra)
        client.write(head if head_only else head + body)

    def spawn(self, work: Any) -> asyncio.Task[None]:
        """A task that is kept alive until it is done."""
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("a task failed inside the router", exc_info=error)

    def _refuse_request(self, client: ClientConnection, request: ClientRequest, error: ApiError, extra: bytes = b"") -> None:
        id = identity.request_id(request.headers, self.ids_in_use)
        route = answers.route(Path.NONE, error.reason)
        self.write_error(client, error, id, route, not request.keep_alive, extra, head_only=request.method == "HEAD")
        client.finish()

    async def _say_ready(self, client: ClientConnection, request: ClientRequest) -> None:
        await self.proofs.seek(self.directory)
        self._own_answer(client, request, "ready")

    def _own_answer(self, client: ClientConnection, request: ClientRequest, endpoint: Endpoint) -> None:
        status, content_type, body = 200, answers.JSON, b""
        if endpoint == "live":
            body = b'{"status":"ok"}'
        elif endpoint == "models":
            try:
                body = self._models_page(client, request)
            except ApiError as error:
                self._refuse_request(client, request, error)
                return
        elif endpoint == "ready":
            ready, document = readiness.report(self.directory, query_value(request.target, "model"), self.stopping)
            status, body = (200 if ready else 503), orjson.dumps(document)
        else:
            content_type, body = b"text/plain; version=0.0.4; charset=utf-8", metrics_page.render(self)
            if self.siblings is not None:
                body = self.siblings.total(body)
        id = identity.request_id(request.headers, self.ids_in_use)
        route = answers.route(Path.NONE, Reason.ROUTER)
        head = answers.head(status, id, route, content_type, len(body), not request.keep_alive or self.stopping)
        client.write(head if request.method == "HEAD" else head + body)
        client.finish()

    def _models_page(self, client: ClientConnection, request: ClientRequest) -> bytes:
        table = self.directory.table
        key = self.key_of(table, client, request) if table is not None else None
        rows = []
        for route in table.models if table is not None else ():
            rows += [_model_row(name, route) for name in route.names if identity.covers(key, route, name)]
        return orjson.dumps({"object": "list", "data": rows})

    # --- now and then ---

    def sweep(self) -> None:
        """Acts on deadlines, measures rates, starts probes. Called about twice a second.

        A sweep that comes late tells that this process was starved or stopped. What came meanwhile is read after the sweep,
        so that time is no engine's and no client's silence."""
        now = time.monotonic()
        passed_s = max(now - self._swept_at, 0.001)
        lost_s = max(0.0, passed_s - SWEEP_S)
        self.went_round_at, self._swept_at = self._swept_at, now
        for client in list(self.clients):
            client.forgive(lost_s)
            client.sweep(now)
        for engine in self.directory.all_engines():
            engine.pool.forgive(lost_s, now)
            engine.pool.sweep(now)
            if now - engine.asked_at > self.limits.silent_s and engine.pool.suspicious(now):
                engine.asked_at = now
                self.spawn(self.lives(engine))
            produced, before = self._produced(engine), engine.produced_before
            engine.produced_before = produced
            if engine.load.in_flight:
                engine.rates.saw_decode(max(0, produced - before) / passed_s)
            if not (engine.gone or engine.kv_tokens) and now - engine.room_asked_at > self.limits.room_s:
                engine.room_asked_at = now
                self.spawn(capacity.learn(engine, self.limits))
            if not engine.gone and engine.breaker.probe_due(now):
                engine.breaker.probing = True
                self.spawn(probe(engine, self.limits))
        self.quotas.sweep()
        self.ledger.sweep(time.time())
        self.watches.sweep(now)
        self.sampler.sweep(passed_s)
        self.directory.index.expire(now - self.limits.index_s)
        self.directory.forget_idle()
        self.heed_peers(now)
        self._tell_siblings()

    def _produced(self, engine: Engine) -> int:
        """Output tokens of an engine, ever, as far as this router knows."""
        siblings = self.siblings.produced(engine) if self.siblings is not None else 0
        return engine.produced + engine.load.produced_on_hosts + siblings

    def _tell_siblings(self) -> None:
        if self.siblings is not None:
            self.siblings.bind(self.directory.all_engines())
            for engine in self.directory.all_engines():
                engine.load.tell_produced(engine.produced)
            self.siblings.publish(metrics_page.render(self))


def _model_row(name: str, route: ModelRoute) -> dict[str, Any]:
    row: dict[str, Any] = {"id": name, "object": "model", "created": 0, "owned_by": "twinpool", "root": route.name}
    if name in route.adapters:
        row |= {"root": name, "parent": route.name}
    return {**row, "max_model_len": route.max_model_len} if route.max_model_len else row
