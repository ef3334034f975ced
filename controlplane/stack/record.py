"""What is written down about a running stack (`run/stack.json`), so that `status`, `down` and the next `up` find it.

A process is named by its pid and the identity of its start (common.processes): a pid that was used again is another.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from controlplane.common.files import write_private
from controlplane.common.locks import Held, held
from controlplane.common.processes import identity
from controlplane.core.codec import WrongShape, decode
from controlplane.stack.errors import StackError
from controlplane.stack.folder import StateFolder, read_json


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


@contextmanager
def only_supervisor(state: StateFolder) -> Iterator[None]:
    """Hold the state for one supervisor. The kernel frees it however the process ends. Raises StackError if it is held."""
    try:
        with held(state.run / "up.lock"):
            yield
    except Held:
        raise StackError(_running_already(state)) from None


def _running_already(state: StateFolder) -> str:
    record = read(state)
    where = f" (pid {record.pid}, console {record.console_url})" if record else ""
    return f"a stack is running on {state.path}{where}: stop it with `manage.py down`, or choose another --state"


def _file(state: StateFolder) -> Path:
    return state.run / "stack.json"
