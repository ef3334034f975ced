"""A machine that joined a fleet: its state folder has an agent's, and no stack's, processes."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import psutil

from controlplane.stack.folder import StateFolder, read_json
from controlplane.stack.leftovers import engine_pids, kill_engines

_PATIENCE_S = 15.0


def node_name(state: StateFolder) -> str:
    """The name under which this state folder's agent joined; empty if none did."""
    return str(read_json(state.join_file).get("node", ""))


def agent_pid(state: StateFolder, node: str) -> int:
    """The pid of the node's agent; 0 if none runs."""
    home = str(state.node(node))
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if words[1:3] == ["-m", "workers"] and home in words and process.status() != psutil.STATUS_ZOMBIE:
            return int(process.pid)
    return 0


def describe(state: StateFolder, node: str) -> dict[str, object]:
    """What `status` shows."""
    pid = agent_pid(state, node)
    return {
        "state": str(state.path),
        "phase": "ready" if pid else "stopped",
        "node": node,
        "agent_pid": pid,
        "engine_processes": len(list(engine_pids(state))),
    }


def stop(state: StateFolder, node: str) -> list[str]:
    """Stop the engines and the agent. Returns what was stopped."""
    ended = []
    if pid := agent_pid(state, node):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)  # stop all engines, then exit
        deadline = time.monotonic() + _PATIENCE_S
        while (left := agent_pid(state, node)) == pid and time.monotonic() < deadline:
            time.sleep(0.1)
        if left == pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ended.append(f"the agent of {node} and its engines")
    return ended + [f"engine process {each}" for each in kill_engines(state)]
