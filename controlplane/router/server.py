"""Starts the router's parts, and stops them in order: accept no more, finish streams up to a deadline, tell the rest."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import socket
import time
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from controlplane.common.files import BadKey
from controlplane.common.keyring import Keyring
from controlplane.core import signing
from controlplane.core.protocol import CacheEra
from controlplane.router import memory
from controlplane.router.app import SWEEP_S, Router
from controlplane.router.client import ClientConnection
from controlplane.router.eras import EraFile
from controlplane.router.limits import Limits
from controlplane.router.shared import Segment
from controlplane.router.siblings import Siblings
from controlplane.router.tables import Tables, follow_file
from controlplane.router.telemetry import NoTelemetry, Outbox

if TYPE_CHECKING:
    from controlplane.router.link import Link

log = logging.getLogger(__name__)

CANCEL_AGAIN_S = 0.5
GARBAGE = 20_000
"""Objects that are there more than at the last collection of garbage: a request leaves none, so most would find nothing."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One process of several that are one router (router.processes)."""

    number: int
    processes: int
    memory: int
    """Descriptor of their Segment."""
    lifeline: int
    """Descriptor of a pipe that ends when their parent does."""


@dataclass(frozen=True, slots=True)
class Options:
    """Exactly one of `table` and `valkey_url` is set."""

    host: str
    port: int
    id: str = ""
    """Unlike that of every other router of the fleet: each keeps its fact under it. Empty: HOSTNAME-PORT."""
    table: Path | None = None
    valkey_url: str = field(default="", repr=False)
    telemetry_url: str = field(default="", repr=False)
    fleet_secret: signing.FleetSecret | None = field(default=None, repr=False)
    cache: Path | None = None
    limits: Limits = field(default_factory=Limits)
    indexer: Path | None = None
    """Socket of this host's indexer."""
    worker: Worker | None = None
    """Set in each process of a router that is several."""


class Server:
    """One router process's worth of parts. Made inside a running loop; `router` may be looked at from outside."""

    def __init__(self, options: Options) -> None:
        """Binds the address. Raises OSError if it cannot be used."""
        self._options = options
        worker = options.worker
        self._listener = listen(options.host, options.port, shared=worker is not None)
        self.port: int = self._listener.getsockname()[1]
        id = router_id(options, self.port)
        if worker is not None:
            id = f"{id}.{worker.number + 1}"
        self._outbox = Outbox(id)
        telemetry = self._outbox if options.valkey_url else NoTelemetry()
        self.router = Router(id, options.limits, options.fleet_secret, telemetry)
        if worker is not None:
            self.router.join(Siblings(Segment(worker.memory, worker.processes), worker.number))
        table_key = signing.table_key(options.fleet_secret) if options.fleet_secret is not None else None
        self._tables = Tables(self.router.apply, table_key, options.cache)
        self._eras = _era_file(options, self.router)

    async def run(self, stop: asyncio.Event) -> None:
        """Serves until `stop` is set, then stops in order."""
        router, options = self.router, self._options
        work: list[Coroutine[Any, Any, None]] = [_sweep(router, options.fleet_secret)]
        if self._eras is not None:
            _share_eras(router, self._eras)
            work.append(_follow_eras(router, self._eras))
        if options.indexer is not None:
            from controlplane.router.precise import Precise  # with a codec that others do without

            router.precise = Precise(options.indexer, options.limits)
            work.append(router.precise.run())
        link = self._link() if options.valkey_url else None
        if link is not None:
            self._tables.load_cache()
            work.append(link.run())
        elif options.table is not None:
            work.append(follow_file(options.table, self._tables))
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: cast(asyncio.Protocol, ClientConnection(router, options.limits)), sock=self._listener, backlog=2048
        )
        tasks = [loop.create_task(each) for each in work]
        if router.siblings is not None:
            router.siblings.serving()
            log.info("process %s serves port %d", router.id, self.port)
        else:
            log.info("router %s listens on %s:%d", router.id, options.host, self.port)
        try:
            await _until(stop, tasks)
        finally:
            server.close()
            await _finish(router)
            await end(tasks)
            if link is not None:
                await link.close()
        log.info("router %s has stopped", router.id)

    def _link(self) -> Link:
        # Imported here: the client library is a third of the router's memory, and a router with a table file needs none.
        from controlplane.router.link import Link

        options = self._options
        assert options.fleet_secret is not None
        telemetry_url = options.telemetry_url or options.valkey_url
        host = router_id(options, self.port)
        return Link(self.router, host, self._tables, self._outbox, options.fleet_secret, options.valkey_url, telemetry_url)


async def end(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancels tasks until they have ended: a cancellation that comes together with a time-out inside a task can be lost."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=CANCEL_AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)  # what they failed with has been told


def run(options: Options) -> None:
    """Serves until SIGTERM or SIGINT."""
    import uvloop

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection each way for every stream

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        if options.worker is not None:
            loop.add_reader(options.worker.lifeline, stop.set)  # it only ever becomes readable by its end
        server = Server(options)
        gc.collect()
        gc.freeze()  # what is here now stays: no collection needs to look at it again
        gc.set_threshold(GARBAGE)
        await server.run(stop)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def router_id(options: Options, port: int) -> str:
    return options.id or f"{socket.gethostname()}-{port}"


def listen(host: str, port: int, shared: bool) -> socket.socket:
    """A socket bound to the address. `shared`: several may be, and the kernel deals connections out among those that listen.
    Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def _era_file(options: Options, router: Router) -> EraFile | None:
    """The file beside the table, or its disk copy, in which routers on this machine tell each other about cache eras."""
    beside = options.table or options.cache
    if beside is None:
        return None
    key = signing.router_key(options.fleet_secret) if options.fleet_secret is not None else None
    file, book = EraFile(beside.with_name(f"{beside.name}.eras"), key), router.directory.eras

    def tell(_: CacheEra) -> None:
        _share_eras(router, file)

    book.on_new.append(tell)
    return file


def _share_eras(router: Router, file: EraFile) -> None:
    """Reads what others wrote, and writes what is not there: whoever wrote at the same moment has another look too."""
    for era in file.read():
        router.directory.learn_era(era)
    if not file.held.issuperset(known := router.directory.eras.all()):
        file.write(known)


async def _follow_eras(router: Router, file: EraFile) -> None:
    while True:
        await asyncio.sleep(SWEEP_S)
        _share_eras(router, file)


async def _sweep(router: Router, secret: signing.FleetSecret | None) -> None:
    bursts = memory.Bursts()
    while True:
        await asyncio.sleep(SWEEP_S)
        router.sweep()
        if isinstance(secret, Keyring):
            _refresh(secret)
        if bursts.over(len(router.clients), time.monotonic()):
            memory.give_back()


def _refresh(keys: Keyring) -> None:
    try:
        keys.refresh()
    except BadKey as error:
        log.error("the fleet secret is used as it was: %s", error)


async def _until(stop: asyncio.Event, tasks: list[asyncio.Task[None]]) -> None:
    """Waits for `stop`. A background task never ends by itself: if one does, that is a bug worth dying of."""
    stopping = asyncio.ensure_future(stop.wait())
    done, _ = await asyncio.wait({stopping, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    for task in done - {stopping}:
        await task


async def _finish(router: Router) -> None:
    """Lets open requests finish until the deadline, then ends each with an error that its client can read."""
    router.stopping = True
    for client in list(router.clients):
        client.close_if_idle()
    deadline = time.monotonic() + router.limits.stop_s
    await _eventually(lambda: not any(client.busy for client in router.clients), deadline)
    left = [client.task for client in router.clients if client.task is not None]
    for task in left:
        task.cancel()
    await _eventually(lambda: all(task.done() for task in left), time.monotonic() + 5.0)
    router.watches.stop()
    # What was written is still on its way.
    await _eventually(lambda: not router.clients, time.monotonic() + 1.0)
    for client in list(router.clients):
        client.abort()
    for engine in router.directory.all_engines():
        engine.pool.close()


async def _eventually(condition: Callable[[], bool], deadline: float) -> None:
    """Waits until `condition` or the deadline (monotonic)."""
    while not condition() and time.monotonic() < deadline:  # noqa: ASYNC110  # made up of many small states
        await asyncio.sleep(0.02)
