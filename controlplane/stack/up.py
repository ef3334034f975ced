"""`manage.py up`: everything on one machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import psycopg

from controlplane.core import names
from controlplane.core.scenes import SCENES
from controlplane.stack import endpoints, health, leftovers, record, servers
from controlplane.stack.detach import Report
from controlplane.stack.errors import StackError
from controlplane.stack.folder import StateFolder
from controlplane.stack.options import CONSOLE_PORT, ROUTER_PORT, Options, settle_port
from controlplane.stack.output import Output, last_error
from controlplane.stack.scene_needs import prepare_models
from controlplane.stack.servers import Servers
from controlplane.stack.services import ROOT, Plan, control_plane, django_environment
from controlplane.stack.supervisor import StartFailed, Supervisor, ended
from workers.processes import identity

_PROVISION_TRIES = 3
_PROCESSES_S = 120.0
"""How long a start waits for processes to answer at all; engines may take longer."""


def run(options: Options) -> int:
    """Start, supervise until told to stop, stop. Returns the exit code. Raises StackError when it cannot start."""
    report = Report(options.report_fd)
    try:
        return _run(options, report)
    except StackError as error:
        report.failed(str(error))
        raise


def _run(options: Options, report: Report) -> int:
    state = options.state.create()
    with record.only_supervisor(state):
        given = endpoints.external()
        for name in leftovers.stop_leftovers(state, with_engines=False):
            print(f"stopped a leftover of the last run: {name}", flush=True)
        servers.check_external(given)
        stored = endpoints.load(state)
        stored = replace(
            stored,
            console_port=settle_port(
                options.console_port, stored.console_port, CONSOLE_PORT, options.host, "console", "--port"
            ),
            router_port=settle_port(
                options.router_port, stored.router_port, ROUTER_PORT, options.host, "router", "--router-port"
            ),
        )
        made = servers.resolve(state, stored, given, options.join_address)
        endpoints.store(state, made.endpoints)
        scene = SCENES[options.fleet]
        plan = Plan(
            state=state,
            endpoints=made.endpoints,
            scene=scene,
            host=options.host,
            traffic=options.traffic and bool(scene.models),
            origins=_origins(options.host, made.endpoints.console_port),
            vllm_python=prepare_models(scene, state),
        )
        return asyncio.run(Stack(options, plan, made, report).run())


class Stack:
    """One run of a stack."""

    def __init__(self, options: Options, plan: Plan, made: Servers, report: Report) -> None:
        self._options, self._plan, self._servers = options, plan, made
        self._state: StateFolder = plan.state
        self._base = _base_environment()
        self._report = report
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

    async def run(self) -> int:
        self._supervisor = Supervisor(self._state.logs, self._output.say, self._write)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._asked_to_stop)
        self._output.start()
        problem = ""
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
        if self._servers.postgres:
            self._say("preparing PostgreSQL")
            await asyncio.to_thread(self._servers.postgres.prepare)
        if self._servers.valkey:
            self._servers.valkey.prepare()
        for name, embedded in (("postgres", self._servers.postgres), ("valkey", self._servers.valkey)):
            if embedded is None:
                self._supervisor.event(name).set()
        self._say("starting PostgreSQL, Valkey, console, router, control, ingest and agents")
        self._supervisor.add([*self._servers.services(self._base), *control_plane(self._plan, self._base)])
        await self._supervisor.event("postgres").wait()
        password = await self._provision()
        self._supervisor.event("provisioned").set()
        await self._processes_ready()
        self._say(f"all processes answer after {time.monotonic() - started:.0f} s")
        await self._models_ready()
        self._supervisor.event("served").set()
        self._record = replace(self._record, phase="ready")
        self._write()
        self._announce(password, time.monotonic() - started)

    async def _provision(self) -> str:
        """Roles, schema, fleet. Returns the first administrator's password if it was made now."""
        if self._servers.postgres:
            for attempt in range(_PROVISION_TRIES):
                try:
                    await asyncio.to_thread(self._servers.postgres.provision)
                    break
                except psycopg.Error as error:
                    if attempt == _PROVISION_TRIES - 1:
                        raise StackError(f"PostgreSQL refused to make the roles: {str(error).splitlines()[0]}") from error
                    await asyncio.sleep(0.5)
        self._say("bringing the database to the present schema")
        password = secrets.token_urlsafe(12)
        env = django_environment(self._plan, self._base) | {
            names.ENV_DATABASE_OWNER_URL: self._plan.endpoints.owner_url,
            names.ENV_ADMIN_PASSWORD: password,
        }
        log = self._state.logs / "provision.log"
        for attempt in range(_PROVISION_TRIES):
            code, printed = await self._run_provision(env, log)
            if code == 0:
                return password if _admin_created(printed) else ""
            await asyncio.sleep(1.0 if attempt < _PROVISION_TRIES - 1 else 0.0)
        raise StackError(f"the database cannot be prepared ({ended(code)}): {last_error(log)}; see {log}")

    async def _run_provision(self, env: Mapping[str, str], log: Path) -> tuple[int, bytes]:
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "controlplane.stack.provision", self._options.fleet),
                cwd=ROOT,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
            try:
                printed, _ = await process.communicate()
            except asyncio.CancelledError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                raise
        return process.returncode or 0, printed

    async def _processes_ready(self) -> None:
        waiting = _Waiting(self._say)
        while missing := [each.service.name for each in self._supervisor.children if not each.settled]:
            if waiting.seconds > _PROCESSES_S:
                log = self._state.logs / f"{missing[0]}.log"
                raise StackError(f"{missing[0]} does not answer after {_PROCESSES_S:.0f} s: {last_error(log)}; see {log}")
            waiting.on(missing, self._state.logs)
            await asyncio.sleep(0.1)

    async def _models_ready(self) -> None:
        """Wait, however long it takes, until the router can serve every model of the fleet."""
        if not self._plan.scene.models:
            return
        self._say("waiting for the engines")
        waiting = _Waiting(self._say)
        while True:
            port = self._plan.endpoints.router_port
            pages = [
                await health.get(self._plan.host, port, f"/readyz?model={model.name}") for model in self._plan.scene.models
            ]
            missing = [model.name for model, page in zip(self._plan.scene.models, pages, strict=True) if page[0] != 200]
            if not missing:
                return
            waiting.on([f"the engines of {name}" for name in missing], self._state.logs)
            await asyncio.sleep(0.2)

    def _announce(self, password: str, took_s: float) -> None:
        login = f"user admin, password {password} (shown only now)" if password else "user admin, password as set before"
        self._say(f"ready after {took_s:.0f} s; stop with Ctrl-C or `manage.py down`")
        self._say(f"console  {self._plan.console_url}   {login}")
        self._say(f"router   {self._plan.router_url}/v1   (OpenAI API; no key needed on this machine)")
        self._report.ready()

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
        self._say("stopped")

    def _asked_to_stop(self) -> None:
        self._stopping.set()

    def _write(self) -> None:
        processes = tuple(child.running() for child in self._supervisor.children)
        self._record = self._record.with_processes(processes)
        with contextlib.suppress(OSError):  # a full disk must not end a running stack; the next change writes it again
            record.write(self._state, self._record)

    def _say(self, text: str) -> None:
        self._output.line(f"twinpool: {text}")
        self._report.line(f"twinpool: {text}")

    def _start_failure(self, failure: StartFailed) -> str:
        log = self._state.logs / f"{failure.name}.log"
        return f"{failure.name} does not start, it {ended(failure.code)}: {last_error(log)}; see {log}"


class _Waiting:
    """Says what is waited for, after 10 s and then more and more rarely."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._began, self._next_s = say, time.monotonic(), 10.0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def on(self, missing: Sequence[str], logs: Path) -> None:
        if self.seconds > self._next_s:
            self._next_s += max(10.0, self._next_s / 2)
            self._say(f"after {self.seconds:.0f} s still waiting for {', '.join(missing)}: logs are in {logs}")


def _base_environment() -> dict[str, str]:
    """What every process starts from: this one's environment without addresses and secrets of servers."""
    hidden = {
        *(names.ENV_DATABASE_URL, names.ENV_DATABASE_OWNER_URL, names.ENV_VALKEY_URL, names.ENV_TELEMETRY_URL),
        *(names.ENV_ADMIN_PASSWORD, "TWINPOOL_JOIN_TOKEN"),
    }
    return {name: value for name, value in os.environ.items() if name not in hidden}


def _admin_created(printed: bytes) -> bool:
    for line in reversed(printed.decode(errors="replace").splitlines()):
        try:
            return bool(json.loads(line)["admin_created"])
        except (ValueError, KeyError, TypeError):
            continue
    return False


def _origins(host: str, port: int) -> str:
    """The origins browsers may come from, in addition to those the operator named."""
    hosts = ["127.0.0.1", "localhost"]
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        hosts.append(socket.gethostname())
    elif health.reachable(host) not in hosts:
        hosts.append(health.reachable(host))
    given = os.environ.get(names.ENV_CONSOLE_ORIGINS, "")
    return ",".join([*(f"http://{each}:{port}" for each in hosts), *([given] if given else [])])
