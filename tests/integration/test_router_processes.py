"""A router that is several processes: one port, one set of limits and loads, and nothing lost but what a killed one held."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import redis

from controlplane.core.protocol import KeyEntry, ModelRoute
from controlplane.router.siblings import FRESH_S
from tests.integration import agent_kit
from tests.integration.router_kit import TEXT, fakes, until, whole_model, write_table
from tests.integration.router_process import RouterProcess, publish, router_process, table

KEY = KeyEntry(hashlib.sha256(b"k").hexdigest(), "team", requests_per_minute=20)
AUTH = {"authorization": "Bearer k"}


def workers(router: RouterProcess) -> list[psutil.Process]:
    """In order of their numbers, without those that have just ended."""
    numbers: dict[psutil.Process, str] = {}
    for child in psutil.Process(router.process.pid).children():
        with suppress(psutil.NoSuchProcess):
            if words := child.cmdline():  # empty: it has ended and is not waited for yet
                numbers[child] = words[-1]
    return sorted(numbers, key=numbers.__getitem__)


@contextmanager
def started(folder: Path, *models: ModelRoute, processes: int = 2, **fields: Any) -> Iterator[RouterProcess]:
    path = folder / "table.json"
    write_table(path, models, **fields)
    with router_process(folder, "", "--table", str(path), "--processes", str(processes)) as router:
        ids = [worker.pid for worker in workers(router)]
        try:
            agent_kit.until("all have the table", lambda: router.log().count("applied") >= processes)
            yield router
        finally:
            router.process.kill()
            router.process.wait()
            for pid in ids:  # they end by themselves, in order; a test need not wait for that
                if psutil.pid_exists(pid):
                    os.kill(pid, signal.SIGKILL)


@asynccontextmanager
async def clients(router: RouterProcess, number: int) -> AsyncIterator[list[httpx.AsyncClient]]:
    """Each with a connection of its own: the kernel deals them out among the processes."""
    made = [client_of(router.url) for _ in range(number)]
    try:
        yield made
    finally:
        await asyncio.gather(*(client.aclose() for client in made))


def client_of(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=90, trust_env=False)


async def process_of(client: httpx.AsyncClient) -> str:
    """What begins the ids of requests that come over this client's connection."""
    return (await client.get("/livez")).headers["x-request-id"].partition("-")[0]


async def one_for_each(made: list[httpx.AsyncClient], processes: int) -> list[httpx.AsyncClient]:
    """Of `made` one that each process serves. Which one takes a connection is chance: some are made anew until all do."""
    found: dict[str, int] = {}
    for at, client in enumerate(made):
        found.setdefault(await process_of(client), at)
    while len(found) < processes:
        at = next(at for at in range(len(made)) if at not in found.values())
        await made[at].aclose()
        made[at] = client_of(str(made[at].base_url))
        found.setdefault(await process_of(made[at]), at)
    return [made[at] for at in found.values()]


async def metric(client: httpx.AsyncClient, name: str) -> float:
    page = (await client.get("/metrics")).text
    return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(name))


async def all_show(made: list[httpx.AsyncClient], name: str, number: float) -> None:
    """Waits until every client is told this: what other processes say of themselves is up to a second old."""
    async with asyncio.timeout(60):
        for client in made:
            while await metric(client, f"twinpool_router_{name}") != number:  # noqa: ASYNC110  # another process's memory
                await asyncio.sleep(0.02)


async def test_all_processes_together_keep_a_teams_limit(tmp_path: Path) -> None:
    async with fakes("e1") as (engine,):
        with started(tmp_path, whole_model(engine), require_key=True, keys=(KEY,)) as router:
            async with clients(router, 30) as made:
                await one_for_each(made, 2)
                answers = [await client.post("/v1/completions", json=TEXT, headers=AUTH) for client in made]
    statuses = Counter(answer.status_code for answer in answers)
    assert statuses == {200: 20, 429: 10}
    left = [int(answer.headers["x-ratelimit-remaining-requests"]) for answer in answers]
    assert left == [*range(19, -1, -1), *[0] * 10]


async def test_what_one_process_has_reserved_the_other_avoids(tmp_path: Path) -> None:
    async with fakes("e1", "e2") as engines:
        for engine in engines:
            engine.step_s = 3600
        with started(tmp_path, whole_model(*engines)) as router:
            async with clients(router, 24) as made:
                await one_for_each(made, 2)
                streams = []
                for number, client in enumerate(made):
                    body = {**TEXT, "stream": True, "prompt": f"prompt {number}", "max_tokens": 64}
                    streams.append(asyncio.ensure_future(client.post("/v1/completions", json=body)))
                    await until(lambda want=number + 1: sum(len(e.generations()) for e in engines) == want)
                    await asyncio.sleep(2 * FRESH_S)
                assert [len(engine.generations()) for engine in engines] == [12, 12]
                for stream in streams:
                    stream.cancel()
                await asyncio.gather(*streams, return_exceptions=True)


async def test_a_killed_process_loses_its_own_connections_only_and_leaves_no_reservation(tmp_path: Path) -> None:
    async with fakes("e1") as (engine,):
        engine.step_s = 0.01
        with started(tmp_path, whole_model(engine)) as router:
            first, second = workers(router)
            async with clients(router, 24) as made:
                a, b = await one_for_each(made, 2)
                engine.step_s = 3600
                body = {**TEXT, "stream": True}
                held = [asyncio.ensure_future(each.post("/v1/completions", json=body)) for each in (a, b)]
                await until(lambda: len(engine.generations()) == 2)
                first.kill()
                done, open_ = await asyncio.wait(held, return_when=asyncio.FIRST_COMPLETED)
                assert len(done) == 1
                assert isinstance(done.pop().exception(), httpx.HTTPError)
                await until(lambda: len(workers(router)) == 2 and router.log().count("serves port") == 3, "started again")
                assert "was killed by signal 9" in router.log()
                assert second.is_running()
                assert not next(iter(open_)).done()
                engine.step_s = 0
                async with clients(router, 24) as new:
                    for client in await one_for_each(new, 2):
                        assert (await client.post("/v1/completions", json=TEXT)).status_code == 200
                    await all_show(new, "engine_in_flight", 1)
                for stream in open_:
                    stream.cancel()
                await asyncio.gather(*open_, return_exceptions=True)


async def test_metrics_are_those_of_all_processes_whichever_is_asked_and_never_fall(tmp_path: Path) -> None:
    async with fakes("e1") as (engine,):
        with started(tmp_path, whole_model(engine)) as router:
            async with clients(router, 24) as made:
                pair = await one_for_each(made, 2)
                for client in (*pair, pair[0]):
                    await client.post("/v1/completions", json=TEXT)

                for name in ("requests_total", "ttft_seconds_count"):
                    await all_show(pair, name, 3)
                assert await metric(pair[0], "twinpool_router_table_generation") == 1
            workers(router)[0].kill()
            await until(lambda: router.log().count("serves port") == 3, "started again")
            async with clients(router, 24) as made:
                pair = await one_for_each(made, 2)
                await all_show(pair, "requests_total", 3)
                await pair[1].post("/v1/completions", json=TEXT)
                await all_show(pair, "requests_total", 4)


async def test_a_prefix_that_one_process_sent_is_known_to_the_other(tmp_path: Path) -> None:
    async with fakes("e1", "e2", "e3", "e4") as engines:
        with started(tmp_path, whole_model(*engines)) as router:
            async with clients(router, 24) as made:
                pair = await one_for_each(made, 2)
                topic = 0
                while topic < 6 or sum(bool(engine.generations()) for engine in engines) < 2:
                    for number, client in enumerate(pair * 4):
                        body = {**TEXT, "prompt": f"{topic} " * 4000 + str(number)}
                        assert (await client.post("/v1/completions", json=body)).status_code == 200
                        await asyncio.sleep(2 * FRESH_S)
                    topic += 1
        by_topic: dict[str, set[str]] = {}
        for engine in engines:
            for leg in engine.generations():
                by_topic.setdefault(leg.body["prompt"].split()[0], set()).add(engine.id)
        assert {len(ids) for ids in by_topic.values()} == {1}
        assert len(by_topic) == topic


async def test_sigterm_ends_all_processes_after_their_streams(tmp_path: Path) -> None:
    async with fakes("e1") as (engine,):
        engine.step_s = 0.05
        with started(tmp_path, whole_model(engine)) as router:
            children = workers(router)
            async with clients(router, 16) as made:
                await one_for_each(made, 2)
                body = {**TEXT, "stream": True, "max_tokens": 20}
                streams = [asyncio.ensure_future(client.post("/v1/completions", json=body)) for client in made]
                await until(lambda: len(engine.generations()) == 16)
                router.process.send_signal(signal.SIGTERM)
                answers = await asyncio.gather(*streams)
            assert all(answer.content.rstrip().endswith(b"[DONE]") for answer in answers)
            assert await asyncio.to_thread(router.process.wait, 60) == 0
            assert not any(child.is_running() for child in children)


async def test_when_the_parent_is_killed_its_processes_end(tmp_path: Path) -> None:
    async with fakes("e1") as (engine,):
        with started(tmp_path, whole_model(engine), processes=3) as router:
            children = workers(router)
            assert len(children) == 3
            assert {child.environ()["PYTHONMALLOC"] for child in children} == {"malloc"}  # memory of a burst goes back
            router.process.kill()
            router.process.wait()
            await until(lambda: not any(c.is_running() and c.status() != psutil.STATUS_ZOMBIE for c in children), "ended")


def test_each_process_tells_its_own_fact(valkey: redis.Redis, valkey_url: str, tmp_path: Path) -> None:
    with router_process(tmp_path, valkey_url, "--valkey", "--processes", "2") as router:
        publish(valkey, table(4))
        keys = [f"fact:router:{router.id}.{number}".encode() for number in (1, 2)]
        agent_kit.until("told", lambda: sorted(valkey.keys("fact:router:*")) == keys)
        agent_kit.until("applied", lambda: router.log().count("table 0:4 applied") == 2)
        assert router.stop() == 0
        assert valkey.keys("fact:router:*") == []
        assert len(set(re.findall(r"process (\S+) serves", router.log()))) == 2


def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "controlplane.router", "--table", "t", "--processes", "2", "--port", str(port)]
        done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
