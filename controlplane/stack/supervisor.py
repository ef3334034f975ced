"""Runs services: starts each when what it needs is there, starts it again when it dies, stops all in order.

Children lead sessions of their own and write to files, so that neither Ctrl-C in the terminal nor the death of this process
reaches them. One asyncio loop; SIGCHLD wakes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from controlplane.common.processes import how_ended, identity, variable
from controlplane.core.names import ENV_ENGINE_HOME, ENV_STATE
from controlplane.stack.record import Running
from controlplane.stack.services import PATIENCE_S, ROOT, SERVERS, STOP_S, Service

_LONGEST_PAUSE_S = 15.0
_STEADY_S = 30.0
_CHECK_EVERY_S = 5.0
_TRIES_AT_START = 4
_AFTER_FAULT_S = 2.0


class StartFailed(Exception):
    """An essential service ended again and again before it ever was ready."""

    def __init__(self, name: str, code: int | None) -> None:
        super().__init__(name)
        self.name = name
        self.code = code


def pause_s(failures: int) -> float:
    """How long to wait before the next start, after so many ends in a row without 30 s of life between them."""
    return min(0.25 * float(2 ** min(failures, 10)), _LONGEST_PAUSE_S)


@dataclass
class Child:
    """One service and its present process."""

    service: Service
    log: Path
    say: Callable[[str, str], None]
    changed: Callable[[], None]
    state: str = "waiting"
    since: float = field(default_factory=time.time)
    restarts: int = 0
    process: subprocess.Popen[bytes] | None = None
    identity: str = ""
    exited: asyncio.Event = field(default_factory=asyncio.Event)
    was_ready: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def pid(self) -> int:
        return self.process.pid if self.process else 0

    @property
    def settled(self) -> bool:
        """It has been ready once, or waits for the fleet to be served."""
        return self.was_ready.is_set() or "served" in self.service.after

    def running(self) -> Running:
        return Running(
            name=self.service.name,
            state=self.state,
            since=self.since,
            pid=self.pid,
            identity=self.identity,
            restarts=self.restarts,
            port=self.service.port,
            stage=self.service.stage,
            signal=int(self.service.stop_signal),
            metrics=self.service.metrics,
        )

    def poll(self) -> None:
        """Notice an end. Called on SIGCHLD."""
        if self.process is not None and self.process.poll() is not None:
            self.exited.set()

    async def keep(self) -> None:
        """Keep it running until cancelled; one that runs already is taken as it is. Raises StartFailed for an essential
        service that never comes up."""
        failures = 0
        while True:
            began = time.monotonic()
            code = await self._run_once()
            failures = 0 if time.monotonic() - began > _STEADY_S else failures + 1
            if self.service.essential and not self.was_ready.is_set() and failures >= _TRIES_AT_START:
                raise StartFailed(self.service.name, code)
            wait_s = pause_s(failures - 1)
            self.restarts += 1
            self._becomes("failed")
            self.say(self.service.name, f"{how_ended(code)}: starting it again in {wait_s:g} s")
            await asyncio.sleep(wait_s)

    async def _run_once(self) -> int | None:
        if self.process is None or self.process.poll() is not None:
            try:
                self._spawn()
            except OSError as error:
                self.say(self.service.name, f"cannot be started: {error.strerror}")
                return None
        watch, exited = asyncio.create_task(self._watch()), asyncio.create_task(self.exited.wait())
        try:
            await asyncio.wait({watch, exited}, return_when=asyncio.FIRST_COMPLETED)
            if not exited.done():
                await watch  # which ends only by an error
        finally:
            watch.cancel()
            exited.cancel()
        assert self.process is not None
        kill_session(self.process.pid)
        return self.process.returncode

    def _spawn(self) -> None:
        self.exited.clear()
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self.service.argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(self.service.env),
                start_new_session=True,
                **{"cwd": ROOT, **self.service.spawn},
            )
        self.identity = identity(self.process.pid)
        self._becomes("starting")
        self.poll()

    async def _watch(self) -> None:
        """Follow its health. An answer makes it ready; silence is shown, and is left to the operator."""
        started_at = time.time()
        while True:
            answers = await self.service.check(started_at)
            if answers:
                self.was_ready.set()
                self._becomes("ready")
            elif self.state == "ready":
                self._becomes("silent")
            await asyncio.sleep(_CHECK_EVERY_S if self.state == "ready" else 0.15)

    def _becomes(self, state: str) -> None:
        if state != self.state:
            self.state, self.since = state, time.time()
            self.changed()

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    async def stop(self, patience_s: float) -> bool:
        """Ask it to end, then make it. Returns whether it ended by itself."""
        self.signal(self.service.stop_signal)
        if self.process is None:
            self._becomes("stopped")
            return True
        orderly = await self._has_exited(patience_s)
        if not orderly:
            kill_family(self.process.pid)
            await self._has_exited(0.5)
        kill_session(self.process.pid)
        self._becomes("stopped")
        return orderly

    async def _has_exited(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while self.process is not None and self.process.poll() is None:
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.03)
        return True


class Supervisor:
    """A set of children with events between them."""

    def __init__(self, logs: Path, say: Callable[[str, str], None], changed: Callable[[], None]) -> None:
        self.children: list[Child] = []
        self.failure: StartFailed | None = None
        self.failed = asyncio.Event()
        self._logs, self._say, self._changed = logs, say, changed
        self._events: dict[str, asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)

    def event(self, name: str) -> asyncio.Event:
        """Something that services wait for. A service's own name is set when it was ready for the first time."""
        return self._events.setdefault(name, asyncio.Event())

    def add(self, services: Iterable[Service]) -> None:
        """Start supervising; each is started when its `after` events have happened."""
        for service in services:
            child = Child(service, self._logs / f"{service.name}.log", self._say, self._changed)
            child.was_ready = self.event(service.name)
            self.children.append(child)
            self._tasks.append(asyncio.create_task(self._keep(child)))
        self._changed()

    async def stop(self) -> list[str]:
        """Stop all, stage by stage. Returns the names of those that had to be killed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        killed: list[str] = []
        deadline = time.monotonic() + STOP_S
        for stage, patience_s in PATIENCE_S.items():
            if stage == SERVERS:
                patience_s = max(patience_s, deadline - time.monotonic())
            ending = [child for child in self.children if child.service.stage == stage]
            orderly = await asyncio.gather(*(child.stop(patience_s) for child in ending))
            killed += [child.service.name for child, by_itself in zip(ending, orderly, strict=True) if not by_itself]
        return killed

    async def _keep(self, child: Child) -> None:
        for name in child.service.after:
            await self.event(name).wait()
        while True:
            try:
                await child.keep()
            except StartFailed as failure:
                self.failure = failure
                self.failed.set()
                return
            except Exception:  # noqa: BLE001 - ours, to be seen; no process may be left unattended for it
                self._say(child.service.name, f"is kept again after an error of the supervisor: {traceback.format_exc()}")
            await asyncio.sleep(_AFTER_FAULT_S)

    def _reap(self) -> None:
        for child in self.children:
            child.poll()


def kill_family(pid: int) -> None:
    """SIGKILL to a child and to its descendants, never to engines."""
    for process in family(pid):
        with contextlib.suppress(psutil.Error):
            process.kill()


def family(pid: int) -> list[psutil.Process]:
    """A process and its descendants, without engines and what those started."""
    try:
        leader = psutil.Process(pid)
        return [leader, *(each for each in leader.children(recursive=True) if not _of_engine(each.pid))]
    except psutil.Error:
        return []


def _of_engine(pid: int) -> bool:
    """By its own environment, or, as it may have overwritten that, by the one of its session's leader."""
    return bool(variable(pid, ENV_ENGINE_HOME) or variable(_session(pid), ENV_ENGINE_HOME))


def kill_session(leader: int, state: Path | None = None) -> None:
    """SIGKILL to what a dead session leader left: children outlive a kill -9 of their parent. Engines lead sessions of their
    own. With `state`, only processes that carry this state folder in their environment."""
    for pid in psutil.pids():
        if pid != leader and _session(pid) == leader and (state is None or variable(pid, ENV_STATE) == str(state)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0
