"""`manage.py status`: what runs on a state folder, for people and (`--json`) for programs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

import psutil

from controlplane.stack import joined, record
from controlplane.stack.folder import StateFolder
from controlplane.stack.leftovers import engine_pids
from controlplane.stack.supervisor import family


def run(state: StateFolder, *, as_json: bool) -> int:
    """Show it. Returns 0 if the stack is ready, 3 if it is not, or not running (as `systemctl status` does)."""
    shown = collect(state)
    print(json.dumps(shown, indent=1) if as_json else _text(shown))
    return 0 if shown["phase"] == "ready" else 3


def collect(state: StateFolder) -> dict[str, Any]:
    """Everything `--json` prints. Memory is PSS in bytes (null where it cannot be read), uptime in seconds."""
    known = record.look(state)
    if known is None and (node := joined.node_name(state)):
        return joined.describe(state, node)
    if known is None:
        return {"state": str(state.path), "phase": "stopped", "processes": []}
    supervisor = {
        "name": "up",
        "pid": known.pid,
        "state": "ready" if known.is_supervised() else "gone",
        "restarts": 0,
        "port": 0,
        "metrics_url": "",
    }
    supervisor |= {"uptime_s": _uptime_s(known.pid), "pss_bytes": _pss_of(known.pid) if known.is_supervised() else None}
    processes = [supervisor, *(_process(each) for each in known.processes)]
    engines = [_pss_of(pid) for pid in engine_pids(state)]
    return {
        "state": str(state.path),
        "phase": known.phase if known.is_supervised() else "unsupervised",
        "fleet": known.fleet,
        "console_url": known.console_url,
        "router_url": known.router_url,
        "uptime_s": round(time.time() - known.started_at, 1),
        "processes": processes,
        "pss_bytes": _sum(process["pss_bytes"] for process in processes),
        "engine_processes": len(engines),
        "engines_pss_bytes": _sum(engines),
    }


def _process(each: record.Running) -> dict[str, Any]:
    alive = each.is_alive()
    return {
        "name": each.name,
        "pid": each.pid,
        "state": each.state if alive or each.state == "waiting" else "gone",
        "restarts": each.restarts,
        "port": each.port,
        "metrics_url": each.metrics,
        "uptime_s": _uptime_s(each.pid) if alive else None,
        "pss_bytes": _pss(each.pid) if alive else None,
    }


def _uptime_s(pid: int) -> float | None:
    try:
        return round(time.time() - psutil.Process(pid).create_time(), 1)
    except psutil.Error:
        return None


def _pss(pid: int) -> int | None:
    """Of a process and its descendants, engines apart."""
    return _sum(_pss_of(process.pid) for process in family(pid))


def _pss_of(pid: int) -> int | None:
    try:
        return int(psutil.Process(pid).memory_full_info().pss)
    except psutil.Error:
        return None


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _text(shown: dict[str, Any]) -> str:
    if "node" in shown:
        agent = (
            f"agent pid {shown['agent_pid']}" if shown["agent_pid"] else "no agent runs (start it with `manage.py agent`)"
        )
        return f"node {shown['node']}: {agent}, {shown['engine_processes']} engine processes, state {shown['state']}"
    if shown["phase"] == "stopped":
        return f"nothing is running on {shown['state']}"
    lines = [f"{shown['phase']} for {_duration(shown['uptime_s'])}, fleet {shown['fleet']}, state {shown['state']}"]
    if shown["phase"] == "unsupervised":
        lines.append("its supervisor is gone: `manage.py up` takes it over, `manage.py down` stops it")
    lines += [f"console {shown['console_url']}", f"router  {shown['router_url']}", ""] if shown["console_url"] else [""]
    lines.append(f"{'process':<12} {'state':<9} {'pid':>8} {'port':>6} {'up':>9} {'restarts':>9} {'memory':>9}  /metrics")
    for each in shown["processes"]:
        port, memory = each["port"] or "", _megabytes(each["pss_bytes"])
        uptime = _duration(each["uptime_s"])
        numbers = f"{each['pid'] or '':>8} {port:>6} {uptime:>9} {each['restarts']:>9} {memory:>9}"
        lines.append(f"{each['name']:<12} {each['state']:<9} {numbers}  {each['metrics_url']}".rstrip())
    lines.append("")
    lines.append(f"memory (PSS): {_megabytes(shown['pss_bytes'])} and {_megabytes(shown['engines_pss_bytes'])} in "
                 f"{shown['engine_processes']} engine processes")  # fmt: skip
    return "\n".join(lines)


def _megabytes(value: int | None) -> str:
    return "-" if value is None else f"{value / 1e6:.0f} MB"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    whole = int(seconds)
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 7200 else f"{whole // 3600} h"
