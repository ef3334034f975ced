"""What a request costs in the router, beside other routers over the same engines.

    manage.py bench router [--scenarios short,pd64] [--repeats 5] [--seconds 3] [--processes N]
        [--peer 'NAME=COMMAND with {port} {aux} {engines}'] [--peer 'NAME=COMMAND with {port} {aux} {prefill} {decode}']

Engines and load are small C programs (router_race/) on one core; each router has another core to itself and takes its turn.
The figure is processor time a request, user and system, of all threads of the router, which a busy machine changes least.
First bytes are compared at the same load: half of the requests a second that the slowest router of a scenario can take. In a
closed loop the router that takes more requests fills the engines' queues more, which says nothing about what it adds.
Medians of the repeats are printed. A peer with {engines} in its command runs where one engine does all, one with {prefill}
where a request is split. Ratios are to a scenario's first peer; the limits are for vllm-router 0.1.17. Ours checks API keys.
It is the compiled one (manage.py compile-router) when a current build is there: its line says which it is.

Scenarios: short; long32k (32 KB of prompt); stream128 (128 events); pd64 (prefill, then 64 events from the decode); pd32k
(the same with 32 KB); paced (pd64 with an event every 5 ms).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _race import MODEL, code_of, compiled, cores, cpu_s, free_port, rss_bytes, running, start_engines, table, wait_ready

RSS_LIMIT = 80e6
WARM_S = 0.7


@dataclass(frozen=True)
class Scenario:
    body: dict[str, Any]
    split: bool
    limit: float
    """Of our processor time, as a share of the peer's."""
    tick_us: int = 0


PROMPT = "Write a short poem about routers and caches, please."
LONG = " ".join(f"word{number}" for number in range(4200))[: 32 * 1024]
SCENARIOS = {
    "short": Scenario({"prompt": PROMPT, "max_tokens": 16}, split=False, limit=0.5),
    "long32k": Scenario({"prompt": LONG, "max_tokens": 16}, split=False, limit=0.7),
    "stream128": Scenario({"prompt": PROMPT, "max_tokens": 128, "stream": True}, split=False, limit=0.4),
    "pd64": Scenario({"prompt": PROMPT, "max_tokens": 64, "stream": True}, split=True, limit=0.6),
    "pd32k": Scenario({"prompt": LONG, "max_tokens": 64, "stream": True}, split=True, limit=0.6),
    "paced": Scenario({"prompt": PROMPT, "max_tokens": 64, "stream": True}, split=True, limit=0.75, tick_us=5000),
}


@dataclass
class Racer:
    name: str
    port: int
    process: subprocess.Popen[bytes]
    rows: list[dict[str, float]] = field(default_factory=list)
    """Of the closed loop."""
    calm: list[dict[str, float]] = field(default_factory=list)
    """At the same requests a second for all."""

    def median(self, key: str) -> float:
        return statistics.median(row[key] for row in self.rows)

    def first_byte_us(self) -> float:
        return statistics.median(row["first_byte_p50_us"] for row in self.calm)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="manage.py bench router", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--scenarios", default=",".join(SCENARIOS))
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--processes", type=int, default=1, help="of ours")
    options = parser.parse_args()
    names = options.scenarios.split(",")
    unknown = [name for name in names if name not in SCENARIOS]
    malformed = [peer for peer in options.peer if "=" not in peer or "{port}" not in peer]
    if unknown or malformed:
        parser.error(f"choose scenarios of {', '.join(SCENARIOS)}; a peer is NAME=COMMAND with {{port}} in it")
    missed = []
    with tempfile.TemporaryDirectory(prefix="twinpool-bench-") as made:
        folder = Path(made)
        compiled(folder)
        print("scenario   router             CPU/request  ratio  requests/s   first byte      at half     RSS")
        for name in names:
            missed += _race(folder, name, SCENARIOS[name], options)
    print(f"load average of {os.cpu_count()} cores: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")
    for each in missed:
        print(f"missed: {each}")
    return int(bool(missed))


def _race(folder: Path, name: str, scenario: Scenario, options: argparse.Namespace) -> list[str]:
    """Prints one scenario's lines; what is over a limit."""
    body = folder / "body.json"
    body.write_text(json.dumps({"model": MODEL, **scenario.body}, separators=(",", ":")))
    with ExitStack() as stack:
        ports = start_engines(stack, folder, cores()[1], scenario.tick_us)
        racers = _start(stack, folder, ports, scenario, options)
        for _ in range(options.repeats):
            for racer in racers:
                racer.rows.append(_measured(folder, racer, body, options))
        half = min(racer.median("per_second") for racer in racers) / 2
        for _ in range(options.repeats):
            for racer in racers:
                racer.calm.append(_measured(folder, racer, body, options, half))
        for racer in racers:
            _print(name, racer, racers[0])
        return _missed(name, scenario, racers[-1], racers[0] if len(racers) > 1 else None)


def _start(
    stack: ExitStack, folder: Path, ports: tuple[int, int], scenario: Scenario, options: argparse.Namespace
) -> list[Racer]:
    """The peers that can run this scenario, then ours."""
    first, second = (f"http://127.0.0.1:{port}" for port in ports)
    wanted = "{prefill}" if scenario.split else "{engines}"
    commands = [peer.split("=", 1) for peer in options.peer if wanted in peer]
    routes = table(folder / "table.json", ports, scenario.split)
    many = f" --processes {options.processes}" if options.processes > 1 else ""
    commands.append(["ours", f"{sys.executable} -m controlplane.router --table {routes} --port {{port}}{many}"])
    racers = []
    for name, command in commands:
        port = free_port()
        filled = command.format(port=port, aux=free_port(), engines=f"{first} {second}", prefill=first, decode=second)
        process = stack.enter_context(running(filled.split(), cores()[0], folder / f"{name}.log"))
        wait_ready(port, name)
        racers.append(Racer(f"ours, {code_of(port)}" if name == "ours" else name, port, process))
    return racers


def _measured(folder: Path, racer: Racer, body: Path, options: argparse.Namespace, per_s: float = 0.0) -> dict[str, float]:
    """One run of the load: what it told, and `cpu_us`, the router's time a request. `per_s`: requests a second; 0: a closed
    loop."""
    words = (racer.port, options.connections, options.seconds, WARM_S, body, "/v1/completions", per_s)
    load = subprocess.Popen(
        [str(folder / "load"), *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=lambda: os.sched_setaffinity(0, {cores()[1]}),
    )  # fmt: skip
    assert load.stderr is not None and load.stdout is not None
    at = {line.strip(): cpu_s(racer.process.pid) for line in load.stderr}
    told = load.stdout.read()
    if load.wait() or not {"WARM", "END"} <= set(at):
        sys.exit(f"the load through {racer.name} failed: {', '.join(at)}")
    row: dict[str, float] = json.loads(told)
    if not row["done"]:
        sys.exit(f"{racer.name} served nothing: {told}")
    return {**row, "cpu_us": (at["END"] - at["WARM"]) / row["done"] * 1e6, "rss": rss_bytes(racer.process.pid)}


def _print(name: str, racer: Racer, first: Racer) -> None:
    cpu_us, per_second = racer.median("cpu_us"), racer.median("per_second")
    failures = sum(row["failed"] + row["cut_short"] for row in racer.rows)
    print(
        f"{name:10} {racer.name:17} {cpu_us:9.0f} us {cpu_us / first.median('cpu_us'):5.2f}x {per_second:11,.0f}"
        f" {racer.median('first_byte_p50_us'):9,.0f} us {racer.first_byte_us():9,.0f} us {racer.median('rss') / 1e6:4.0f} MB"
        + (f"  {failures:.0f} failed" if failures else ""),
        flush=True,
    )


def _missed(name: str, scenario: Scenario, ours: Racer, peer: Racer | None) -> list[str]:
    missed = []
    if ours.median("rss") > RSS_LIMIT:
        missed.append(f"{name}: {ours.median('rss') / 1e6:.0f} MB of at most {RSS_LIMIT / 1e6:.0f}")
    if sum(row["failed"] + row["cut_short"] for row in ours.rows):
        missed.append(f"{name}: failures")
    if peer is not None:
        ratio = ours.median("cpu_us") / peer.median("cpu_us")
        if ratio > scenario.limit:
            missed.append(f"{name}: {ratio:.2f}x the processor time of {peer.name}, at most {scenario.limit}x")
        if ours.first_byte_us() >= peer.first_byte_us():
            missed.append(f"{name}: at the same load the first byte comes later than through {peer.name}")
    return missed


if __name__ == "__main__":
    sys.exit(main())
