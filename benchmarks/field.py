"""How the fleet `field` (64 simulated H100, 16 engines) starts and holds 3 requests/s of 4,096 prompt and 300 answer tokens.

`manage.py bench field [--seconds 120]`: uses a state folder of its own and free ports. Limits: starts within 120 s, answers
every request, and at least 95% of 3 requests/s minus what is chance in Poisson arrivals.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import psutil

from controlplane.core.scenes import SCENES
from controlplane.stack.folder import StateFolder
from controlplane.stack.leftovers import engine_pids
from controlplane.stack.supervisor import family

ROOT = Path(__file__).resolve().parents[1]
START_LIMIT_S = 120.0
WARM_S = 30.0
"""A request takes about 6 s; after this as many end as begin."""
STALL_OVER_MEDIAN = 5.0
"""A gap between two tokens this many times the median is counted as a stall: no decode step varies so much by itself."""
TRAFFIC = SCENES["field"].traffic
ENGINES = sum(pool.engines for model in SCENES["field"].models for pool in model.pools)
ENGINE = re.compile(r"^twinpool_router_engine_in_flight\{", re.MULTILINE)
SAMPLE = re.compile(r'^twinpool_router_requests_total\{[^}]*outcome="(\w+)"\} (\S+)$', re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(prog="manage.py bench field", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long the rate is measured (default 120)")
    seconds: float = parser.parse_args().seconds
    state = Path(tempfile.mkdtemp(prefix="twinpool-bench-"))
    try:
        began = time.monotonic()
        _manage("up", "--fleet", "field", "--detach", "--port", "0", "--router-port", "0", "--state", str(state))
        serves_s = time.monotonic() - began
        router = _status(state)["router_url"].removesuffix("/v1")
        while len(ENGINE.findall(_metrics(router))) < ENGINES:  # `up` is ready when the first ones serve
            time.sleep(0.2)
        start_s = time.monotonic() - began
        print(f"first engines serve   {serves_s:6.1f} s")
        print(f"all {ENGINES} engines serve  {start_s:6.1f} s      (limit {START_LIMIT_S:.0f})")
        time.sleep(WARM_S)
        return _measured(state, start_s, seconds)
    finally:
        subprocess.run(
            [sys.executable, "manage.py", "down", "--state", str(state)], cwd=ROOT, capture_output=True, check=False
        )
        shutil.rmtree(state, ignore_errors=True)


def _measured(state: Path, start_s: float, seconds: float) -> int:
    status = _status(state)
    router = status["router_url"].removesuffix("/v1")
    gaps: list[float] = []
    stop = threading.Event()
    probe = threading.Thread(target=_probe, args=(router, stop, gaps))
    requests, cpu, began = _requests(router), _cpu_s(state, status), time.monotonic()
    probe.start()
    time.sleep(seconds)
    passed_s = time.monotonic() - began
    ended = Counter(_requests(router))
    ended.subtract(requests)
    used = {name: (value - cpu.get(name, 0.0)) / passed_s for name, value in _cpu_s(state, status).items()}
    stop.set()
    probe.join()
    status = _status(state)

    rate, failed = ended["ok"] / passed_s, sum(ended.values()) - ended["ok"]
    least = 0.95 * TRAFFIC.requests_per_s - 2 * math.sqrt(TRAFFIC.requests_per_s / passed_s)
    sent = f"sent {TRAFFIC.requests_per_s:g}, Poisson; limit {least:.2f}"
    print(f"answered              {rate:6.2f} req/s  ({sent}) over {passed_s:.0f} s")
    print(f"not answered          {failed:6d}        (limit 0)")
    shares = ", ".join(f"{name} {value:.2f}" for name, value in sorted(used.items(), key=lambda pair: -pair[1]))
    print(f"CPU                   {sum(used.values()):6.2f} cores  of {os.cpu_count()}: {shares}")
    print(f"memory (PSS)          {status['pss_bytes'] / 1e6:6.0f} MB     of all processes but the engines")
    print(f"engines (PSS)         {status['engines_pss_bytes'] / 1e6:6.0f} MB     in {status['engine_processes']} processes")
    print(_stalls(gaps))
    print(f"load average of {os.cpu_count()} cores: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")
    return int(start_s > START_LIMIT_S or rate < least or failed > 0)


def _stalls(gaps: list[float]) -> str:
    """What a client sees between two tokens."""
    ordered = sorted(gaps)
    p50, p99 = (ordered[round(share * (len(ordered) - 1))] for share in (0.5, 0.99))
    long = [gap for gap in ordered if gap > STALL_OVER_MEDIAN * p50]
    middle = f", half of them over {long[len(long) // 2] * 1e3:.0f} ms" if long else ""
    return (
        f"between tokens        p50 {p50 * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms, longest {ordered[-1] * 1e3:.0f} ms; "
        f"{len(long)} stalls over {STALL_OVER_MEDIAN:g} × p50 in {len(ordered)} gaps{middle}"
    )


def _probe(router: str, stop: threading.Event, gaps: list[float]) -> None:
    """One client that streams answers one after the other and notes the time between events."""
    body = {
        "model": SCENES["field"].models[0].name,
        "prompt": "a b c d",
        "max_tokens": TRAFFIC.answer_tokens,
        "ignore_eos": True,
        "stream": True,
    }
    with httpx.Client(timeout=120, trust_env=False) as client:
        while not stop.is_set():
            with client.stream("POST", f"{router}/v1/completions", json=body) as answer:
                before = 0.0
                for line in answer.iter_lines():
                    now = time.monotonic()
                    if line.startswith("data: {"):
                        gaps.extend([now - before] if before else ())
                        before = now


def _requests(router: str) -> dict[str, int]:
    found: Counter[str] = Counter()
    for outcome, value in SAMPLE.findall(_metrics(router)):
        found[outcome] += int(float(value))
    return found


def _metrics(router: str) -> str:
    return httpx.get(f"{router}/metrics", timeout=30, trust_env=False).text


def _cpu_s(state: Path, status: dict[str, Any]) -> dict[str, float]:
    """Processor seconds so far by kind of process."""
    used: Counter[str] = Counter()
    for each in status["processes"]:
        kind = "agents" if each["name"].startswith("agent-") else each["name"]
        # The supervisor's descendants are the other processes.
        members = [psutil.Process(each["pid"])] if each["name"] == "up" else family(each["pid"])
        used[kind] += sum(map(_cpu_of, members))
    used["engines"] = sum(_cpu_of(psutil.Process(pid)) for pid in engine_pids(StateFolder(state)))
    return used


def _cpu_of(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def _status(state: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_manage("status", "--json", "--state", str(state)))
    return found


def _manage(*arguments: str) -> str:
    command = [sys.executable, "manage.py", *arguments]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
