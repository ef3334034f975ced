"""What benchmarks of the router share: the C engine and load of router_race/, routers pinned to one core, their cost."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
SOURCES = Path(__file__).resolve().parent / "router_race"
KEY = "sk-bench"
MODEL = "mock"


def compiled(folder: Path) -> None:
    """Builds `engine` and `load` into a folder. Exits if there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        sys.exit("a C compiler is needed for the engine and the load: install gcc.")
    for name in ("engine", "load"):
        subprocess.run([compiler, "-O2", "-o", str(folder / name), str(SOURCES / f"{name}.c")], check=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(command: list[str], core: int, log: Path, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process on one core, which it sees as all there is; stopped at the end."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, cwd=ROOT, preexec_fn=lambda: os.sched_setaffinity(0, {core}), **options
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def cores() -> tuple[int, int]:
    """The router's, and that of the engines and the load; one and the same on a machine with one core."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[0], usable[-1]


def start_engines(stack: ExitStack, folder: Path, core: int, tick_us: int) -> tuple[int, int]:
    """The ports of one process that is two engines."""
    ports = free_port(), free_port()
    command = [str(folder / "engine"), f"{ports[0]},{ports[1]}", str(tick_us)]
    stack.enter_context(running(command, core, folder / "engine.log"))
    return ports


def table(file: Path, ports: tuple[int, int], split: bool, lease_s: float = 30.0) -> Path:
    """A routing table with one model on two engines, and a key that is needed."""
    roles = ("prefill", "decode") if split else ("mixed", "mixed")
    engines = [
        {"id": f"e-{port}", "url": f"http://127.0.0.1:{port}", "role": role, "state": "ready", "node": "bench"}
        for port, role in zip(ports, roles, strict=True)
    ]
    model = {
        "name": MODEL, "mode": "disaggregated" if split else "monolithic", "connector": "nixl", "kv_lease_s": lease_s,
        "kv_bytes_per_token": 327680, "engines": engines,
    }  # fmt: skip
    key = {"sha256": hashlib.sha256(KEY.encode()).hexdigest(), "team": "bench", "models": ["*"]}
    file.write_text(json.dumps({"version": 1, "generation": 1, "require_key": True, "keys": [key], "models": [model]}))
    return file


def wait_ready(port: int, name: str, timeout_s: float = 60.0) -> None:
    """Until the router at `port` answers a request. Exits if it does not."""
    body = json.dumps({"model": MODEL, "prompt": "x", "max_tokens": 1}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            asked = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body, headers)
            with opener.open(asked, timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            pass
        time.sleep(0.2)
    sys.exit(f"{name} does not answer on port {port}.")


def code_of(port: int) -> str:
    """How our router at `port` runs: "compiled" or "interpreted"."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        found = re.search(r'twinpool_router_processes\{code="(\w+)"\}', answer.read().decode())
    return found[1] if found else "unknown"


def family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def cpu_s(pid: int) -> float:
    """Processor seconds of a process and its children, all threads: from the scheduler, finer than clock ticks."""
    total = 0
    for process in family(pid):
        for file in Path(f"/proc/{process.pid}/task").glob("*/schedstat"):
            try:
                total += int(file.read_text().split()[0])
            except OSError:
                pass  # the thread has ended
    return total / 1e9


def rss_bytes(pid: int) -> int:
    return sum(process.memory_info().rss for process in family(pid))
