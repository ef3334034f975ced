"""What the precise index costs: the indexer's answers and CPU, and the router's CPU with and without one.

`manage.py bench precise_index`: an indexer process is told 8 caches of 25,000 blocks over ZMQ and asked over its socket, one
question at a time; then the router's process serves the same requests in front of 2 simulated engines with and without it.
CPU is user + system time of the process that is named (Linux only).
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgpack
import psutil
import zmq
from _engines import HOST, KEY, MODEL, running, spec

from controlplane.core.codec import encode
from controlplane.core.protocol import VERSION, EngineRoute, ModelRoute, RoutingTable
from controlplane.indexer import wire

ROOT = Path(__file__).resolve().parents[1]
BLOCK = 16
ENGINES = 8
BLOCKS = 25_000
QUESTIONS = 300
REQUESTS = 300


def main(argv: Sequence[str]) -> int:
    argparse.ArgumentParser(prog="manage.py bench precise_index", description=__doc__).parse_args(argv)
    with TemporaryDirectory(prefix="twinpool-bench-") as name:
        folder = Path(name)
        endpoint = f"tcp://{HOST}:{_free_port()}"
        with _process(folder, "indexer", "--socket", str(folder / "socket"), "--events", endpoint) as indexer:
            _events(indexer, endpoint, folder)
            with running([spec("tokens")]) as (engine,):
                _answers(indexer, folder, f"http://{HOST}:{engine.port}")
        _router(folder)
    return 0


def _events(indexer: psutil.Process, endpoint: str, folder: Path) -> None:
    """Caches of random tokens, in batches of 512 blocks."""
    chance, before = random.Random(1), indexer.memory_info().rss
    with zmq.Context() as context, context.socket(zmq.PUB) as publisher:
        publisher.connect(endpoint)
        number = 0
        while not _status(folder)["batches"]:  # until the connection stands
            publisher.send_multipart(
                (b"kv@e0", number.to_bytes(8, "big"), msgpack.packb([0.0, [{"type": "AllBlocksCleared"}], 0]))
            )
            number += 1
            time.sleep(0.05)
        cpu_s, told = _cpu_s(indexer), 0
        for engine in range(ENGINES):
            start = number if engine == 0 else 0
            for batch in range(BLOCKS // 512):
                hashes = [chance.getrandbits(64) for _ in range(512)]
                event = {
                    "type": "BlockStored", "block_hashes": hashes, "parent_block_hash": None,
                    "token_ids": chance.choices(range(128_000), k=512 * BLOCK), "block_size": BLOCK, "lora_id": None,
                    "medium": "GPU", "lora_name": None, "extra_keys": [None] * 512, "group_idx": 0,
                    "kv_cache_spec_kind": "full_attention",
                }  # fmt: skip
                payload = msgpack.packb([0.0, [event], 0])
                publisher.send_multipart((b"kv@e%d" % engine, (start + batch).to_bytes(8, "big"), payload))
                told += 512
        while _status(folder)["blocks"] < told:
            time.sleep(0.05)
        cpu_s = _cpu_s(indexer) - cpu_s
    grown = indexer.memory_info().rss - before
    print(
        f"events: {told} blocks of {ENGINES} engines, {cpu_s / told * 1e6:.2f} us CPU and {grown / told:.0f} bytes a block"
    )


def _answers(indexer: psutil.Process, folder: Path, url: str) -> None:
    chance = random.Random(2)
    rows = [[f"e{number}", 1, url, MODEL] for number in range(ENGINES)]
    kinds: list[tuple[str, list[bytes]]] = []
    for tokens in (2048, 8192, 32768):
        ids = [chance.choices(range(128_000), k=tokens) for _ in range(20)]
        kinds.append((f"{tokens} token ids", [json.dumps({"prompt": each}).encode() for each in ids]))
    for tokens in (2048, 8192, 32768):
        texts = [json.dumps({"prompt": _text(chance, tokens)}).encode() for _ in range(20)]
        kinds.append((f"{tokens} tokens of text, seen before", texts))
    fresh = [json.dumps({"prompt": _text(chance, 2048)}).encode() for _ in range(QUESTIONS)]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(folder / "socket"))
        connection.sendall(wire.pack([wire.ENGINES, rows]))
        for name, bodies in kinds:
            for body in bodies:
                for _ in range(50):
                    if _ask(connection, body)[1]:
                        break
                    time.sleep(0.05)
            _measure(indexer, connection, name, [bodies[at % len(bodies)] for at in range(QUESTIONS)])
        _measure(indexer, connection, "2048 tokens of text, new: an engine is asked", fresh)


def _measure(indexer: psutil.Process, connection: socket.socket, name: str, bodies: list[bytes]) -> None:
    cpu_s, times = _cpu_s(indexer), []
    for body in bodies:
        began = time.perf_counter()
        known = _ask(connection, body)[1]
        times.append((time.perf_counter() - began) * 1000)
        assert known
    cpu_s = _cpu_s(indexer) - cpu_s
    cuts = statistics.quantiles(times, n=100)
    late = sum(each > 5 for each in times)
    print(
        f"{name}: answer p50 {statistics.median(times):.2f} ms, p99 {cuts[98]:.2f} ms, over 5 ms {late / len(times):.1%}; "
        f"CPU {cpu_s / len(times) * 1e6:.0f} us a question"
    )


def _ask(connection: socket.socket, body: bytes) -> list[Any]:
    reader = wire.Reader()
    connection.sendall(wire.pack([wire.ASK, 1, "/v1/completions", MODEL, "", "", {}, body]))
    while True:
        for message in reader.feed(connection.recv(1 << 20)):
            return message


def _router(folder: Path) -> None:
    """The same requests, 10 times each, with and without an indexer."""
    endpoint = f"tcp://{HOST}:{_free_port()}"
    names = ("e1", "e2")
    args = {"speed": 1000.0, "max_model_len": 40_000}
    specs = [replace(spec(name), args=args, kv_events={"endpoint": endpoint}) for name in names]
    with (
        _process(folder, "indexer", "--socket", str(folder / "second"), "--events", endpoint) as indexer,
        running(specs) as engines,
    ):
        table = folder / "table.json"
        routes = tuple(
            EngineRoute(name, f"http://{HOST}:{each.port}", "mixed", engine_key=KEY)
            for name, each in zip(names, engines, strict=True)
        )
        model = ModelRoute(MODEL, "monolithic", routes)
        table.write_text(json.dumps(encode(RoutingTable(VERSION, 1, models=(model,)))))
        for tokens in (2048, 16384):
            chance = random.Random(3)
            bodies = [
                json.dumps({"model": MODEL, "prompt": _text(chance, tokens), "max_tokens": 2}).encode()
                for _ in range(REQUESTS // 10)
            ] * 10
            for options in ((), ("--indexer", str(folder / "second"))):
                _serve(folder, table, options, bodies, tokens, indexer)


def _serve(
    folder: Path, table: Path, options: tuple[str, ...], bodies: list[bytes], tokens: int, indexer: psutil.Process
) -> None:
    port = _free_port()
    with _process(folder, "router", "--port", str(port), "--table", str(table), *options) as router:
        while json.load(urllib.request.urlopen(f"http://{HOST}:{port}/readyz"))["table"] is None:
            time.sleep(0.05)
        for body in bodies[:30]:
            _post(port, body)
        before = _cpu_s(router), _cpu_s(indexer)
        for body in bodies:
            _post(port, body)
        router_us, indexer_us = (
            (now - then) / len(bodies) * 1e6 for now, then in zip((_cpu_s(router), _cpu_s(indexer)), before, strict=True)
        )
        page = urllib.request.urlopen(f"http://{HOST}:{port}/metrics").read().decode()
    lines = [line for line in page.splitlines() if line.startswith("twinpool_router_indexer")]
    counts = {line.split('"')[1]: int(line.split()[-1]) for line in lines}
    what = f"{tokens} tokens of text, {'with' if options else 'without'} an indexer"
    print(f"{what}: router {router_us:.0f} us a request", f"indexer {indexer_us:.0f} us; {counts}" if options else "")


def _post(port: int, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(f"http://{HOST}:{port}/v1/completions", body, headers)).read()


def _text(chance: random.Random, tokens: int) -> str:
    """Words of three letters, each a token of the simulated engine."""
    return "".join(" " + "".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=3)) for _ in range(tokens))


@contextmanager
def _process(folder: Path, package: str, *options: str) -> Iterator[psutil.Process]:
    """The indexer or the router, listening."""
    log_file = folder / f"{package}.log"
    begun = log_file.read_text().count("listens") if log_file.exists() else 0
    with log_file.open("ab") as log:
        command = [sys.executable, "-m", f"controlplane.{package}", *options]
        process = subprocess.Popen(command, stderr=log, cwd=ROOT)
    try:
        while log_file.read_text().count("listens") == begun:
            if process.poll() is not None:
                sys.exit(log_file.read_text())
            time.sleep(0.02)
        yield psutil.Process(process.pid)
    finally:
        process.kill()
        process.wait()


def _status(folder: Path) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(folder / "socket"))
        connection.sendall(wire.pack([wire.STATUS, 1]))
        reader = wire.Reader()
        while True:
            for message in reader.feed(connection.recv(1 << 16)):
                return dict(message[1])


def _cpu_s(process: psutil.Process) -> float:
    """Of all threads; finer than the clock ticks of /proc/PID/stat."""
    files = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
