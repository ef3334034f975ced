"""What a router of several processes costs, and whether its processes act as one: `--processes N` beside one process.

    manage.py bench router_processes [--processes 2] [--scenarios short,pd64,paced] [--seconds 3] [--repeats 5]

Cost: processor time a request of all processes, in front of C engines (see `bench router`), each router on the same core in
turn, once in a closed loop and once at half of the requests a second that one process took there; limit 1.1 x one process
(median of pairs).
Load: 8 engines that answer after 10 ms a token, 64 clients with prompts of 100 to 6,000 characters, most with one of 40
beginnings of 4,000, and 10 to 100 tokens. Every 10 ms each engine's legs in flight are counted: the busiest engine's over
the mean one's, averaged over time (limit 1.3) and at a moment. Beside it, how many of the requests found an engine that had
seen their beginning.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from _race import KEY, MODEL, compiled, cores, cpu_s, free_port, running, start_engines, table, wait_ready

ENGINES = 8
CLIENTS = 64
TOPICS = 40
TOKEN_S = 0.01
WARM_S = 0.7
SCENARIOS = {
    "short": ({"prompt": "Write a short poem about routers and caches.", "max_tokens": 16}, False, 0),
    "pd64": ({"prompt": "Write a short poem about routers and caches.", "max_tokens": 64, "stream": True}, True, 0),
    "paced": ({"prompt": "Write a short poem about routers and caches.", "max_tokens": 64, "stream": True}, True, 5000),
}
COST_LIMIT = 1.1
LOAD_LIMIT = 1.3


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="manage.py bench router_processes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--scenarios", default=",".join(SCENARIOS))
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    names = [name for name in options.scenarios.split(",") if name]
    if unknown := [name for name in names if name not in SCENARIOS]:
        parser.error(f"no scenario {', '.join(unknown)}: choose of {', '.join(SCENARIOS)}")
    missed = []
    with tempfile.TemporaryDirectory(prefix="twinpool-bench-") as made:
        folder = Path(made)
        if names:
            compiled(folder)
        for name in names:
            for how, pairs in _costs(folder, name, options).items():
                one, many = (statistics.median(costs) for costs in zip(*pairs, strict=True))
                ratios = sorted(many / one for one, many in pairs)
                ratio, spread = statistics.median(ratios), f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
                many_are = f"{options.processes} processes {many:6.0f} us = x{ratio:.2f} ({spread})"
                print(f"{name:8} {how:12} CPU a request: {one:6.0f} us, {many_are}", flush=True)
                if ratio > COST_LIMIT:
                    missed.append(f"{name}, {how}: costs x{ratio:.2f}, limit {COST_LIMIT}")
        for processes in (1, options.processes):
            load = asyncio.run(_load(folder, processes, options.seconds * options.repeats))
            print(load.line(processes))
            if load.averaged > LOAD_LIMIT:
                missed.append(f"load of {processes} processes: max/mean {load.averaged:.2f}, limit {LOAD_LIMIT}")
    print(f"load average of {os.cpu_count()} cores: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")
    for each in missed:
        print(f"missed: {each}")
    return int(bool(missed))


def _router(stack: ExitStack, folder: Path, routes: Path, processes: int, core: int) -> tuple[int, int]:
    """(port, process id) of one that answers."""
    port = free_port()
    command = [sys.executable, "-m", "controlplane.router", "--table", str(routes), "--port", str(port)]
    many = ["--processes", str(processes)] if processes > 1 else []
    process = stack.enter_context(running([*command, *many], core, folder / f"router-{processes}.log"))
    wait_ready(port, f"the router with {processes} processes")
    time.sleep(1.0)  # the others of its processes
    return port, process.pid


# --- cost ---


def _costs(folder: Path, name: str, options: argparse.Namespace) -> dict[str, list[tuple[float, float]]]:
    """Microseconds a request of one process and of several, measured one right after the other, by how they are loaded."""
    body, split, tick_us = SCENARIOS[name]
    file = folder / "body.json"
    file.write_text(json.dumps({"model": MODEL, **body}, separators=(",", ":")))
    with ExitStack() as stack:
        ports = start_engines(stack, folder, cores()[1], tick_us)
        routes = table(folder / f"{name}.json", ports, split)
        routers = {processes: _router(stack, folder, routes, processes, cores()[0]) for processes in (1, options.processes)}
        half = _cost(folder, *routers[1], file, options)[1] / 2
        return {
            how: [
                tuple(_cost(folder, port, pid, file, options, per_s)[0] for port, pid in routers.values())  # type: ignore[misc]
                for _ in range(options.repeats)
            ]
            for how, per_s in {"closed loop": 0.0, "half load": half}.items()
        }


def _cost(
    folder: Path, port: int, pid: int, body: Path, options: argparse.Namespace, per_s: float = 0.0
) -> tuple[float, float]:
    """(microseconds of CPU a request, requests a second). `per_s`: requests a second; 0: a closed loop."""
    words = (port, options.connections, options.seconds, WARM_S, body, "/v1/completions", per_s)
    load = subprocess.Popen(
        [str(folder / "load"), *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=lambda: os.sched_setaffinity(0, {cores()[1]}),
    )  # fmt: skip
    assert load.stderr is not None and load.stdout is not None
    at = {line.strip(): cpu_s(pid) for line in load.stderr}
    told = json.loads(load.stdout.read())
    if load.wait() or not told["done"]:
        sys.exit(f"the load failed: {told}")
    return (at["END"] - at["WARM"]) / told["done"] * 1e6, told["per_second"]


# --- load ---


@dataclass
class Engine:
    """Answers after TOKEN_S a token, however many requests it has."""

    in_flight: int = 0
    topics: set[str] = field(default_factory=set)
    hits: int = 0
    misses: int = 0
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                size = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
                await self._answer(json.loads(await reader.readexactly(size)) if size else {}, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            writer.close()

    async def _answer(self, body: dict[str, object], writer: asyncio.StreamWriter) -> None:
        tokens = int(str(body.get("max_tokens", 0)))
        topic = str(body.get("prompt", ""))[:3]
        if topic.startswith("t"):
            self.hits += topic in self.topics
            self.misses += topic not in self.topics
            self.topics.add(topic)
        self.in_flight += 1
        await asyncio.sleep(tokens * TOKEN_S)
        self.in_flight -= 1
        answer = json.dumps(
            {"choices": [{"text": "x"}], "usage": {"prompt_tokens": 10, "completion_tokens": tokens}}
        ).encode()
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(answer) + answer
        )


@dataclass
class Load:
    averaged: float
    momentary: float
    hits: int
    asked: int
    served: int

    def line(self, processes: int) -> str:
        share = 100.0 * self.hits / self.asked
        return (
            f"processes {processes}: max/mean legs in flight over {ENGINES} engines "
            f"{self.averaged:.2f} averaged over time, {self.momentary:.2f} at a moment; beginnings known to their engine "
            f"{share:.1f}% of {self.asked}; {self.served} requests"
        )


async def _load(folder: Path, processes: int, seconds: float) -> Load:
    engines = [Engine() for _ in range(ENGINES)]
    servers = [await asyncio.start_server(engine.serve, "127.0.0.1", 0) for engine in engines]
    for engine, server in zip(engines, servers, strict=True):
        engine.port = server.sockets[0].getsockname()[1]
    routes = folder / f"load-{processes}.json"
    _write_routes(routes, engines)
    with ExitStack() as stack:
        port, _ = await asyncio.to_thread(_router, stack, folder, routes, processes, cores()[0])
        end = time.monotonic() + seconds
        clients = [asyncio.ensure_future(_client(port, number, end)) for number in range(CLIENTS)]
        await asyncio.sleep(1.0)  # until all are busy
        moments: list[list[int]] = []
        while time.monotonic() < end - 1.0:
            moments.append([engine.in_flight for engine in engines])
            await asyncio.sleep(0.01)
        served = sum(await asyncio.gather(*clients))
    for server in servers:
        server.close()
    sums = [sum(moment[at] for moment in moments) for at in range(ENGINES)]
    hits, misses = (sum(getattr(engine, what) for engine in engines) for what in ("hits", "misses"))
    momentary = statistics.fmean(max(moment) / statistics.fmean(moment) for moment in moments if any(moment))
    return Load(max(sums) / statistics.fmean(sums), momentary, hits, hits + misses, served)


def _write_routes(file: Path, engines: list[Engine]) -> None:
    routes = [
        {"id": f"e-{number}", "url": f"http://127.0.0.1:{engine.port}", "role": "mixed"}
        for number, engine in enumerate(engines)
    ]
    model = {"name": MODEL, "mode": "monolithic", "engines": routes}
    file.write_text(json.dumps({"version": 1, "generation": 1, "models": [model]}))


async def _client(port: int, number: int, end: float) -> int:
    """Requests answered over one connection, one after another."""
    chance, served = random.Random(number), 0
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.monotonic() < end:
        topic = chance.randrange(TOPICS)
        prompt = f"t{topic:02}" * 1334 if chance.random() < 0.8 else ""
        prompt += f" {number} {served} {chance.random()} " + "y" * chance.randrange(100, 2000)
        body = json.dumps({"model": MODEL, "prompt": prompt, "max_tokens": chance.randrange(10, 100)}).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(answer.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]))
        if b" 200 " not in answer[:20]:
            sys.exit(f"the router answered {answer[:200]!r}")
        served += 1
    writer.close()
    return served


if __name__ == "__main__":
    sys.exit(main())
