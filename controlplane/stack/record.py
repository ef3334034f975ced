"""What is written down about a running stack (`run/stack.json`), so that `status`, `down` and the next `up` find it.

A process is named by its pid and the identity of its start (common.processes): a pid that was used again is another.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from controlplane.common.files import write_private
from controlplane.common.locks import Held, held
from controlplane.common.processes import identity
from controlplane.core.codec import WrongShape, decode
from controlplane.stack.errors import StackError
from controlplane.stack.folder import StateFolder, read_json

_NOTE_S = 2.0
"""Between taking the state and noting so a start does nothing else."""
_LOOK_S = 0.3
"""Whether the state is held can only be found out by holding it for a moment."""


@dataclass(frozen=True)
class Running:
    """One supervised process. `state`: waiting, starting, ready, silent (alive without an answer), failed, stopped."""

    name: str
    state: str
    since: float
    pid: int = 0
    identity: str = ""
    restarts: int = 0
    port: int = 0
    stage: int = 0
    """Stops in this order, lowest first."""
    signal: int = 15
    metrics: str = ""
    """URL of its page for Prometheus."""

    def is_alive(self) -> bool:
        return self.pid > 0 and bool(self.identity) and identity(self.pid) == self.identity


@dataclass(frozen=True)
class Record:
    """The stack as its supervisor last saw it. `phase`: starting, ready, stopping. Times are Unix seconds."""

    pid: int
    identity: str
    started_at: float
    phase: str
    fleet: str
    console_url: str
    router_url: str
    processes: tuple[Running, ...] = field(default=())

    def is_supervised(self) -> bool:
        """Whether the supervisor that wrote it is alive."""
        return identity(self.pid) == self.identity != ""

    def with_processes(self, processes: tuple[Running, ...]) -> Record:
        return replace(self, processes=processes)


def read(state: StateFolder) -> Record | None:
    """The last record, if there is a readable one."""
    try:
        return decode(Record, read_json(_file(state)))
    except WrongShape:
        return None


def write(state: StateFolder, record: Record) -> None:
    write_private(_file(state), json.dumps(asdict(record), indent=1).encode())


def remove(state: StateFolder) -> None:
    _file(state).unlink(missing_ok=True)


def look(state: StateFolder) -> Record | None:
    """The record of what runs or was left. One that a start is about to write is waited for."""
    deadline = time.monotonic() + _NOTE_S
    while not ((known := read(state)) and known.is_supervised()) and _is_held(state) and time.monotonic() < deadline:
        time.sleep(0.05)
    return read(state)


@contextmanager
def only_supervisor(state: StateFolder) -> Iterator[None]:
    """Hold the state for one supervisor. The kernel frees it however the process ends. Raises StackError if it is held."""
    with ExitStack() as stack:
        try:
            stack.enter_context(held(_lock(state), wait_s=_LOOK_S))
        except Held:
            raise StackError(_running_already(state)) from None
        yield


@contextmanager
def starting(state: StateFolder, fleet: str) -> Iterator[None]:
    """Note that this process starts a stack, beside what the last one left, until that is ended or noted by another."""
    left, me = read(state), os.getpid()
    write(state, Record(me, identity(me), time.time(), "starting", fleet, "", "", left.processes if left else ()))
    try:
        yield
    finally:
        if (now := read(state)) and now.pid == me:
            if any(each.is_alive() for each in now.processes):
                write(state, replace(now, pid=0, identity=""))
            else:
                remove(state)


def _is_held(state: StateFolder) -> bool:
    try:
        with held(_lock(state), create=False):
            return False
    except Held:
        return True
    except OSError:
        return False


def _lock(state: StateFolder) -> Path:
    return state.run / "up.lock"


def _running_already(state: StateFolder) -> str:
    record = read(state)
    where = f" (pid {record.pid}, {record.phase}, console {record.console_url or 'not yet known'})" if record else ""
    return f"a stack is running on {state.path}{where}: stop it with `manage.py down`, or choose another --state"


def _file(state: StateFolder) -> Path:
    return state.run / "stack.json"
