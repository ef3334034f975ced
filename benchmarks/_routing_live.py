"""Plays a Mooncake trace through the real router process in front of simulated engine processes."""

from __future__ import annotations

import asyncio
import json
import random
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from _engines import HOST, KEY, MODEL, EngineProcess, ask, running, spec
from _mooncake import BLOCK_TOKENS, Arrival

from controlplane.core.codec import encode
from controlplane.core.protocol import VERSION, EngineRoute, ModelRoute, RoutingTable

KV_BYTES_PER_TOKEN = 131_072
"""Of Llama-3.1-8B in bfloat16."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"
START_S = 60.0
AT_ONCE = 200
"""Requests in flight at most, so that a slow machine is not buried."""


@dataclass(frozen=True)
class Live:
    hit_share: float
    imbalance: float
    failed: int
    late_s: float
    """How long after its time the last request was sent."""
    router_cpu_us: float
    """A request."""


def play(arrivals: Sequence[Arrival], engines: int, blocks: int, speed: float, answer: int) -> Live:
    """Engines run `speed` times faster than the models they stand for, and the trace comes as much faster. Answers are cut
    to `answer` tokens: what is measured are prefills."""
    names = [f"{role}{number}" for role in "pd" for number in range(engines)]
    cache = blocks // engines * BLOCK_TOKENS * KV_BYTES_PER_TOKEN
    args = {"speed": speed, "max_model_len": 200_000, "kv_cache_memory_bytes": cache}
    with running([replace(spec(name), args=args) for name in names]) as processes:
        prefills = processes[:engines]
        with running_router(dict(zip(names, processes, strict=True))) as router:
            started_s = _cpu_s(router.pid)
            failed, late_s = asyncio.run(_send(arrivals, router, speed, answer))
            spent_s = _cpu_s(router.pid) - started_s
        counts = [_prefixes(engine) for engine in prefills]
    computed = [queries - hits for queries, hits in counts]
    hit = sum(hits for _, hits in counts) / sum(queries for queries, _ in counts)
    imbalance = max(computed) / statistics.mean(computed)
    return Live(hit, imbalance, failed, late_s, spent_s / len(arrivals) * 1e6)


async def _send(arrivals: Sequence[Arrival], router: EngineProcess, speed: float, answer: int) -> tuple[int, float]:
    began, places, failed = time.monotonic(), asyncio.Semaphore(AT_ONCE), 0

    async def one(arrival: Arrival) -> None:
        nonlocal failed
        body = {
            "model": MODEL,
            "prompt": text(arrival),
            "max_tokens": max(1, min(answer, arrival.output_tokens)),
            "ignore_eos": True,
        }
        try:
            await ask(router, "/v1/completions", body)
        except (SystemExit, OSError, ValueError) as error:
            failed += 1
            print(f"failed: {error}", file=sys.stderr)
        finally:
            places.release()

    tasks, late_s = [], 0.0
    for arrival in arrivals:
        await places.acquire()
        wait_s = arrival.at_s / speed - (time.monotonic() - began)
        late_s = max(0.0, -wait_s)
        await asyncio.sleep(max(0.0, wait_s))
        tasks.append(asyncio.create_task(one(arrival)))
    await asyncio.gather(*tasks)
    return failed, late_s


def text(arrival: Arrival) -> str:
    """As many words of three letters, each a token of the simulated engine, as the prompt has tokens: the same words for the
    same block of the trace, and words of its own for what is left."""
    rest = arrival.prompt_tokens - len(arrival.keys) * BLOCK_TOKENS
    own = f"rest {arrival.at_s} {arrival.prompt_tokens} {arrival.keys[-1:]}"
    return "".join([*(_words(key, BLOCK_TOKENS) for key in arrival.keys), _words(own, rest)])


def _words(seed: object, count: int) -> str:
    letters = random.Random(str(seed)).choices(LETTERS, k=3 * count)
    return "".join(f" {letters[at]}{letters[at + 1]}{letters[at + 2]}" for at in range(0, 3 * count, 3))


@contextmanager
def running_router(engines: dict[str, EngineProcess]) -> Iterator[EngineProcess]:
    """The router's process, which is asked like an engine."""
    routes = tuple(
        EngineRoute(name, f"http://{HOST}:{each.port}", "prefill" if name[0] == "p" else "decode", engine_key=KEY)
        for name, each in engines.items()
    )
    model = ModelRoute(MODEL, "disaggregated", routes, connector="nixl", kv_bytes_per_token=KV_BYTES_PER_TOKEN, strict=True)
    with TemporaryDirectory(prefix="twinpool-bench-") as folder:
        table, log_file = Path(folder, "table.json"), Path(folder, "log")
        table.write_text(json.dumps(encode(RoutingTable(VERSION, 1, models=(model,)))))
        with log_file.open("wb") as log:
            command = [sys.executable, "-m", "controlplane.router", "--port", "0", "--table", str(table)]
            process = subprocess.Popen(command, stderr=log, cwd=Path(__file__).parents[1])
        try:
            deadline = time.monotonic() + START_S
            while not (said := re.search(r"listens on 127\.0\.0\.1:(\d+)", log_file.read_text())):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"the router did not start: {log_file.read_text()}")
                time.sleep(0.05)
            yield EngineProcess(process.pid, int(said[1]))
        finally:
            process.terminate()
            process.wait()


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/schedstat").read_text().split()
    return int(fields[0]) / 1e9


def _prefixes(engine: EngineProcess) -> tuple[float, float]:
    """Prompt tokens an engine looked up in its prefix cache, and those it found."""
    request = urllib.request.Request(f"http://{HOST}:{engine.port}/metrics", headers={"authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        page = answer.read().decode()
    queries, hits = (
        sum(float(value) for value in re.findall(rf"^vllm:prefix_cache_{name}_total\{{[^\n]*\}} (\S+)$", page, re.MULTILINE))
        for name in ("queries", "hits")
    )
    return queries, hits
