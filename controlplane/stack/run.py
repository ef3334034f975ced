"""One run of a stack, from the first process to the last."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from controlplane.common.processes import how_ended, identity
from controlplane.config import config
from controlplane.stack import health, leftovers, record, targets
from controlplane.stack.detach import Report
from controlplane.stack.errors import StackError
from controlplane.stack.migrate import base_environment, make_roles, prepare_database
from controlplane.stack.options import Options
from controlplane.stack.output import Output, last_error
from controlplane.stack.served import unserved
from controlplane.stack.servers import Servers
from controlplane.stack.services import Plan, control_plane
from controlplane.stack.supervisor import StartFailed, Supervisor

T = TypeVar("T")

_PROCESSES_S = 120.0
"""How long a start waits for processes to answer at all; engines may take longer."""


class Stack:
    """Starts everything in parallel as far as it can, announces it, and stops it in order."""

    def __init__(self, options: Options, plan: Plan, made: Servers, report: Report) -> None:
        self._options, self._plan, self._servers, self._report = options, plan, made, report
        self._state = plan.state
        self._base = base_environment()
        self._output = Output(self._state.logs, show_logs=options.report_fd is None)
        self._record = record.Record(
            pid=os.getpid(),
            identity=identity(os.getpid()),
            started_at=time.time(),
            phase="starting",
            fleet=options.fleet,
            console_url=plan.console_url,
            router_url=f"{plan.router_url}/v1",
        )
        self._stopping = asyncio.Event()
        self._password = ""
        """Of the first administrator, from its making until it was shown."""

    async def run(self) -> int:
        """Returns 0 after an orderly stop. Raises StackError when it does not come up."""
        self._supervisor = Supervisor(self._state.logs, self._output.say, self._write)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._stopping.set)
        self._output.start()
        try:
            problem = await self._serve()
        finally:
            await self._stop()
        if problem:
            raise StackError(problem)
        return 0

    async def _serve(self) -> str:
        """Start all, announce, wait. Returns why it had to give up; empty when it was asked to stop."""
        starting = asyncio.create_task(self._start())
        ends = [asyncio.create_task(event.wait()) for event in (self._stopping, self._supervisor.failed)]
        try:
            await asyncio.wait([starting, *ends], return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                await starting
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        except StackError as error:
            return str(error)
        finally:
            for task in (starting, *ends):
                task.cancel()
            await asyncio.gather(starting, *ends, return_exceptions=True)
        failure = self._supervisor.failure
        return self._start_failure(failure) if failure and not self._stopping.is_set() else ""

    async def _start(self) -> None:
        started = time.monotonic()
        supervisor = self._supervisor
        if self._servers.postgres:
            self._say("preparing PostgreSQL")
            await self._told(asyncio.to_thread(self._servers.postgres.prepare), "initdb")
        if self._servers.valkey:
            self._servers.valkey.prepare()
        for name, embedded in (("postgres", self._servers.postgres), ("valkey", self._servers.valkey)):
            if embedded is None:
                supervisor.event(name).set()
        services = [*self._servers.services(self._base), *control_plane(self._plan, self._base)]
        with contextlib.suppress(OSError):  # who does not use it need not know
            targets.write(self._state, services)
        self._say(f"starting {', '.join(service.name for service in services)}")
        supervisor.add(services)
        if self._servers.postgres:
            await self._answering(lambda: [] if supervisor.event("postgres").is_set() else ["postgres"])
            await self._told(make_roles(self._servers.postgres), "the database's roles")
        self._say("bringing the database to the present schema")
        preparing = prepare_database(self._plan, self._base, self._options.fleet)
        self._password, to_be_served = await self._told(preparing, "the database's schema")
        supervisor.event("provisioned").set()
        await self._answering(lambda: [each.service.name for each in supervisor.children if not each.settled])
        self._say(f"all processes answer after {time.monotonic() - started:.0f} s")
        await self._models_ready(to_be_served)
        supervisor.event("served").set()
        self._record = replace(self._record, phase="ready")
        self._write()
        self._announce(time.monotonic() - started)

    async def _told(self, work: Coroutine[Any, Any, T], what: str) -> T:
        """The result of `work`, however long it takes; that it is waited for is said again and again."""
        task, waiting = asyncio.create_task(work), Waiting(self._say)
        try:
            while not (await asyncio.wait({task}, timeout=1.0))[0]:
                waiting.on([what], self._state.logs)
            return task.result()
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _answering(self, silent: Callable[[], list[str]]) -> None:
        """Wait until no process is silent. Raises StackError when that takes too long."""
        waiting = Waiting(self._say)
        while missing := silent():
            if waiting.seconds > _PROCESSES_S:
                log = self._state.logs / f"{missing[0]}.log"
                raise StackError(f"{missing[0]} does not answer after {_PROCESSES_S:.0f} s: {last_error(log)}; see {log}")
            waiting.on(missing, self._state.logs)
            await asyncio.sleep(0.1)

    async def _models_ready(self, missing: Sequence[str]) -> None:
        """Wait, however long it takes, until the router can serve these models."""
        if missing:
            self._say(f"waiting for the engines of {', '.join(missing)}")
        waiting = Waiting(self._say)
        while missing:
            missing = await unserved(self._plan, missing, self._record.started_at)
            waiting.on([f"the engines of {name}" for name in missing], self._state.logs)
            await asyncio.sleep(0.2 if missing else 0)

    def _announce(self, took_s: float) -> None:
        self._say(f"ready after {took_s:.0f} s; stop with Ctrl-C or `manage.py down`")
        self._say(f"console  {self._plan.console_url}   {self._login()}", secret=True)
        whose = "a key needed" if config().require_key else "no key needed on this machine"
        self._say(f"router   {self._plan.router_url}/v1   (OpenAI API; {whose})")
        self._say(f"metrics  `manage.py status` shows each process's page; for Prometheus: {targets.file_of(self._state)}")
        if not health.is_loopback(self._options.host):
            self._say("clients on other machines need a key: make one with `manage.py add_key NAME --team TEAM`")
            self._say("warning: keys and prompts travel unencrypted (HTTP); keep the router's port inside your network")
        self._report.ready()

    def _login(self) -> str:
        password, self._password = self._password, ""
        if password:
            return f"user admin, password {password} (shown only now)"
        return "user admin, password as set before (`manage.py changepassword admin` sets another)"

    async def _stop(self) -> None:
        self._record = replace(self._record, phase="stopping")
        self._write()
        self._say("stopping")
        killed = await self._supervisor.stop()
        left = await asyncio.to_thread(leftovers.kill_engines, self._state)
        if killed:
            self._say(f"had to kill {', '.join(killed)}")
        if left:
            self._say(f"had to kill {len(left)} engine processes")
        record.remove(self._state)
        self._output.stop()
        if self._password:  # made, but the start failed or was interrupted before it was shown
            self._say(self._login(), secret=True)
        self._say("stopped")

    def _write(self) -> None:
        processes = tuple(child.running() for child in self._supervisor.children)
        self._record = self._record.with_processes(processes)
        with contextlib.suppress(OSError):  # a full disk must not end a running stack; the next change writes it again
            record.write(self._state, self._record)

    def _say(self, text: str, *, secret: bool = False) -> None:
        """Also to the terminal that waits for a detached stack; then the output is a file, which must not hold a secret."""
        if not (secret and self._report.is_open):
            self._output.line(f"twinpool: {text}")
        self._report.line(f"twinpool: {text}")

    def _start_failure(self, failure: StartFailed) -> str:
        log = self._state.logs / f"{failure.name}.log"
        return f"{failure.name} does not start, it {how_ended(failure.code)}: {last_error(log)}; see {log}"


class Waiting:
    """Says what is waited for, after 10 s and then more and more rarely."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._began, self._next_s = say, time.monotonic(), 10.0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def on(self, missing: Sequence[str], logs: Path) -> None:
        if missing and self.seconds > self._next_s:
            self._next_s += max(10.0, self._next_s / 2)
            self._say(f"after {self.seconds:.0f} s still waiting for {', '.join(missing)}: logs are in {logs}")
