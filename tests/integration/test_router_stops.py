"""Processes that stand still over the end of a lease (SIGSTOP, as swapping or a paused machine would): the text is right, or
there is none. Real routers and simulated engines, which give out garbage for KV whose lease has ended."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from controlplane.core.codec import encode
from controlplane.core.protocol import VERSION, EngineRoute, ModelRoute, RoutingTable
from controlplane.router import server
from tests.integration.router_process import RouterProcess, router_process
from tests.simulated_engines import KEY, MODEL, RunningEngine, running, spec, until

LEASE_S = 1.5
PROMPT = "the quick brown fox " * 40


@dataclass
class Fleet:
    router: RouterProcess
    prefill: RunningEngine
    decode: RunningEngine
    right: str

    def ask(self) -> httpx.Response:
        return self.router.post({"model": MODEL, "prompt": PROMPT, "max_tokens": 12, "ignore_eos": True})

    def never_wrong(self, answer: Future[httpx.Response]) -> None:
        response = answer.result(60)
        if response.status_code == 200:
            assert response.json()["choices"][0]["text"] == self.right
        else:
            assert response.status_code == 504


@contextmanager
def fleet(folder: Path) -> Iterator[Fleet]:
    with (
        running(folder, spec("p1", kv_lease_s=LEASE_S)) as prefill,
        running(folder, spec("d1", kv_lease_s=LEASE_S)) as decode,
    ):
        routes = (
            EngineRoute("p1", prefill.url, "prefill", engine_key=KEY),
            EngineRoute("d1", decode.url, "decode", engine_key=KEY),
        )
        model = ModelRoute(MODEL, "disaggregated", routes, connector="nixl", kv_lease_s=LEASE_S)
        file = folder / "table.json"
        file.write_text(json.dumps(encode(RoutingTable(VERSION, 1, models=(model,)))))
        with router_process(folder, "", "--table", str(file)) as router:
            until(lambda: router.generation() == 1)
            yield Fleet(router, prefill, decode, decode.text(PROMPT, max_tokens=12))


@pytest.fixture(scope="module")
def stalled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("stalled")) as made:
        yield made


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


@contextmanager
def still(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """The process stands still, and is known to do so when this begins."""
    process.send_signal(signal.SIGSTOP)
    try:
        until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T")
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def past_the_lease() -> None:
    time.sleep(LEASE_S + 0.3)  # what is tested is that this time has passed


def is_asked(to: RunningEngine) -> bool:
    """Whether bytes lie at the engine that it has not read: a leg has been sent to it."""
    port = int(to.url.rsplit(":", 1)[1])
    queued = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(int(each[1].split(":")[1], 16) == port and int(each[4].split(":")[1], 16) > 0 for each in queued)


def test_a_router_that_stood_still_over_the_lease(stalled: Fleet, pool: ThreadPoolExecutor) -> None:
    with still(stalled.prefill.process):
        answer = pool.submit(stalled.ask)
        until(lambda: is_asked(stalled.prefill))
        os.kill(stalled.router.process.pid, signal.SIGSTOP)
    past_the_lease()
    os.kill(stalled.router.process.pid, signal.SIGCONT)
    stalled.never_wrong(answer)


@pytest.mark.parametrize("after_s", [0.0, 0.6 * LEASE_S])
def test_a_prefill_engine_that_stood_still_over_the_lease(stalled: Fleet, pool: ThreadPoolExecutor, after_s: float) -> None:
    with still(stalled.decode.process):
        answer = pool.submit(stalled.ask)
        until(lambda: is_asked(stalled.decode))
        time.sleep(after_s)
        stopped: Any = still(stalled.prefill.process)
        stopped.__enter__()
    past_the_lease()
    stopped.__exit__(None, None, None)
    stalled.never_wrong(answer)


def test_a_router_and_a_decode_engine_that_stood_still_over_the_lease(stalled: Fleet, pool: ThreadPoolExecutor) -> None:
    with still(stalled.decode.process):
        answer = pool.submit(stalled.ask)
        until(lambda: is_asked(stalled.decode))
        with still(stalled.router.process):
            past_the_lease()
        time.sleep(0.3)  # for the router to read what it can now
    stalled.never_wrong(answer)


async def test_work_that_loses_a_cancellation_is_ended_all_the_same() -> None:
    async def deaf() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(3600)

    task = asyncio.ensure_future(deaf())
    await asyncio.sleep(0)
    await server.end([task])
    assert task.cancelled()
