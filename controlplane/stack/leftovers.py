"""Processes of a state folder whose supervisor is gone: found by what was recorded and by what engines carry, and ended."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

from controlplane.common import engines
from controlplane.common.processes import identity
from controlplane.stack.folder import StateFolder
from controlplane.stack.record import Running, read
from controlplane.stack.services import AGENTS, PATIENCE_S
from controlplane.stack.supervisor import kill_family, kill_session


def stop_leftovers(state: StateFolder, *, with_engines: bool) -> list[str]:
    """End what a dead supervisor left, in the order of a stop. Without `with_engines` agents leave their engines running,
    for the next agents to adopt. Returns the names of what was ended."""
    record = read(state)
    processes = [each for each in record.processes if each.is_alive()] if record else []
    for stage, patience_s in PATIENCE_S.items():
        _end([each for each in processes if each.stage == stage], patience_s, with_engines)
    for each in record.processes if record else ():
        if each.pid and not identity(each.pid):
            kill_session(each.pid, state.path)
    ended = [each.name for each in processes]
    if with_engines:
        ended += [f"engine process {pid}" for pid in kill_engines(state)]
    return ended


def engine_pids(state: StateFolder) -> Iterator[int]:
    """The living processes that agents below this state folder started, and their children."""
    for home in (state.path / "nodes").glob("*/"):
        yield from (each.pid for each in engines.members(home))


def kill_engines(state: StateFolder) -> list[int]:
    """SIGKILL to all engines of this state folder: the last resort after their agents had their chance."""
    pids = list(engine_pids(state))
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return pids


def _end(processes: list[Running], patience_s: float, with_engines: bool) -> None:
    for each in processes:
        number = signal.SIGTERM if each.stage == AGENTS and not with_engines else each.signal
        with contextlib.suppress(ProcessLookupError):
            os.kill(each.pid, number)
    deadline = time.monotonic() + patience_s
    while any(each.is_alive() for each in processes) and time.monotonic() < deadline:
        time.sleep(0.05)
    for each in processes:
        if each.is_alive():
            kill_family(each.pid)
    deadline = time.monotonic() + 2.0
    while any(each.is_alive() for each in processes) and time.monotonic() < deadline:
        time.sleep(0.05)
