"""Very many streams at once, and clients that vanish at random: what fails, and what is left behind.

    manage.py bench router_torture [--streams 2000] [--vanishing 1000] [--rounds 2] [--events 40] [--seed N]

A router splits requests over two small C engines (router_race/), which send an event every 100 ms. A round is: the streams,
all open at the same time and read to their ends, each on its own connection; then the vanishing clients, which leave before
or in the middle of their request or answer, with a reset or in good order. Afterwards everything must be as before: no
connection, open request, leg or KV that waits to be pulled, and memory (RSS) within 10% of what it was after 200 streams.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import psutil
import uvloop
from _race import KEY, MODEL, compiled, cores, cpu_s, free_port, rss_bytes, running, start_engines, table, wait_ready

GROWTH_LIMIT = 1.10
WARM_STREAMS = 200
LEASE_S = 10.0
TICK_US = 100_000
SETTLE_S = 60.0
TIDY_S = 16.0
"""The router gives memory back a little later."""
END = b"data: [DONE]\n\n\r\n0\r\n\r\n"
_LEFT = re.compile(
    r"^twinpool_router_(in_flight|connections|engine_in_flight|engine_handoffs)(?:\{[^}]*\})? (\S+)$", re.MULTILINE
)
_ENDED = re.compile(r'^twinpool_router_requests_total\{.*outcome="(\w+)"\} (\d+)$', re.MULTILINE)


class Client(asyncio.Protocol):
    def __init__(self) -> None:
        self.tail = b""
        self.events = self.size = 0
        self.status = 0
        self.over = asyncio.Event()
        self.heard = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.status = self.status or int(data[9:12])
        self.size += len(data)
        self.events += data.count(b" tok")
        self.tail = (self.tail + data)[-len(END) :]
        self.heard.set()
        if self.tail == END:
            self.over.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.heard.set()
        self.over.set()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="manage.py bench router_torture", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--vanishing", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--events", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory(prefix="twinpool-bench-") as made, ExitStack() as stack:
        folder, port = Path(made), free_port()
        compiled(folder)
        routes = table(folder / "table.json", start_engines(stack, folder, cores()[1], TICK_US), split=True, lease_s=LEASE_S)
        command = [sys.executable, "-m", "controlplane.router", "--table", str(routes), "--port", str(port)]
        router = stack.enter_context(running(command, cores()[0], folder / "router.log"))
        wait_ready(port, "the router")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            problems = runner.run(_torture(port, router, options))
        log = (folder / "router.log").read_text()
        problems += [line for line in log.splitlines() if " ERROR " in line or "Traceback" in line]
    for each in problems:
        print(f"problem: {each}")
    return int(bool(problems))


async def _torture(port: int, router: subprocess.Popen[bytes], options: argparse.Namespace) -> list[str]:
    chance = random.Random(options.seed)
    problems = await _streams(port, WARM_STREAMS, options.events)
    problems += await _settled(port, router.pid)
    before = rss_bytes(router.pid)
    print(f"after {WARM_STREAMS} streams: {before / 1e6:.1f} MB")
    for number in range(options.rounds):
        began, cpu = time.monotonic(), cpu_s(router.pid)
        problems += await _streams(port, options.streams, options.events)
        seconds, cpu = time.monotonic() - began, cpu_s(router.pid) - cpu
        most = rss_bytes(router.pid)
        await asyncio.gather(*(_vanish(port, options.events, chance) for _ in range(options.vanishing)))
        problems += await _settled(port, router.pid)
        after = rss_bytes(router.pid)
        print(
            f"round {number + 1}: {options.streams} streams of {options.events} events in {seconds:.1f} s,"
            f" {cpu:.1f} s of CPU, {most / 1e6:.1f} MB; {options.vanishing} clients vanished; then {after / 1e6:.1f} MB"
        )
    print(f"requests by outcome: {_outcomes(port)}")
    print(f"memory: {after / before:.3f} of what it was (limit {GROWTH_LIMIT})")
    if after > before * GROWTH_LIMIT:
        problems.append(f"memory grew from {before / 1e6:.1f} to {after / 1e6:.1f} MB")
    return problems


async def _streams(port: int, count: int, events: int) -> list[str]:
    """So many at once; what was wrong with them."""
    results = await asyncio.gather(*(_stream(port, events) for _ in range(count)))
    wrong = [result for result in results if result is not None]
    return [f"{len(wrong)} of {count} streams failed, such as: {wrong[0]}"] if wrong else []


async def _stream(port: int, events: int) -> str | None:
    client = await _connect(port)
    client.transport.write(_request(events))
    await client.over.wait()
    client.transport.abort()
    good = client.status == 200 and client.events == events and client.tail == END
    return None if good else f"status {client.status}, {client.events} events, the end {client.tail!r}"


async def _vanish(port: int, events: int, chance: random.Random) -> None:
    client, request = await _connect(port), _request(events)
    moment = chance.choice(["request", "at once", "wait", "answer"])
    client.transport.write(request[: chance.randrange(len(request))] if moment == "request" else request)
    if moment == "wait":
        await asyncio.sleep(chance.uniform(0, 2.0))
    elif moment == "answer":
        wanted = chance.randrange(1, 250 * events)
        while client.size < wanted and not client.over.is_set():
            client.heard.clear()
            await client.heard.wait()
    if chance.random() < 0.5:
        client.transport.abort()
    else:
        client.transport.close()


async def _connect(port: int) -> Client:
    _, client = await asyncio.get_running_loop().create_connection(Client, "127.0.0.1", port)
    return client


def _request(events: int) -> bytes:
    body = json.dumps({"model": MODEL, "prompt": "hello " * 100, "max_tokens": events, "stream": True}).encode()
    return (
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (KEY.encode(), len(body), body)
    )


async def _settled(port: int, pid: int) -> list[str]:
    """Waits until nothing is open any more; what is after all."""
    deadline = time.monotonic() + SETTLE_S
    while (left := _left(port, pid)) and time.monotonic() < deadline:  # noqa: ASYNC110  # only to be seen from outside
        await asyncio.sleep(0.5)
    await asyncio.sleep(TIDY_S)
    return [f"still there after {SETTLE_S:.0f} s: {left}"] if left else []


def _left(port: int, pid: int) -> dict[str, float]:
    """What the router says is open, our own question aside, and its sockets."""
    left: dict[str, float] = {}
    for name, value in _LEFT.findall(_metrics(port)):
        left[name] = left.get(name, 0.0) + float(value) - (name == "connections")
    left["sockets"] = sum(each.status == psutil.CONN_ESTABLISHED for each in psutil.Process(pid).net_connections("tcp"))
    return {name: value for name, value in left.items() if value}


def _outcomes(port: int) -> str:
    counts: dict[str, int] = {}
    for outcome, count in _ENDED.findall(_metrics(port)):
        counts[outcome] = counts.get(outcome, 0) + int(count)
    return ", ".join(f"{outcome} {count}" for outcome, count in sorted(counts.items()))


def _metrics(port: int) -> str:
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"connection": "close"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked, timeout=30) as answer:
        return str(answer.read().decode())


if __name__ == "__main__":
    sys.exit(main())
