"""The precise index: real engines publish, a real indexer listens, real routers ask it."""

from __future__ import annotations

import asyncio
import hashlib
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgpack
import psutil
import pytest
import zmq

from controlplane.core.protocol import EngineRoute, KeyEntry, ModelRoute
from controlplane.indexer.__main__ import main
from controlplane.router.admission import team_salt
from controlplane.router.eras import salted
from controlplane.router.precise import SETTLE_S, Precise
from tests.integration.indexer_kit import PATIENT, Fleet, Indexer, fleet, indexing
from tests.integration.router_kit import QUICK, Kit, route_of
from tests.integration.router_kit import running as in_process
from tests.integration.router_kit import until as until_true
from tests.integration.router_process import RouterProcess
from tests.simulated_engines import KEY, MODEL, free_port, running, spec, until


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("precise")) as made:
        yield made


def text(topic: str, words: int = 500) -> str:
    return " ".join(f"{topic}{number}" for number in range(words))


def body(prompt: Any, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": prompt, "max_tokens": 2, **fields}


def chat(*contents: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content} for content in contents]
    return {"model": MODEL, "messages": messages, "max_tokens": 2, **fields}


def chosen(router: RouterProcess, request: dict[str, Any]) -> str:
    answer = router.post(request, "/v1/chat/completions" if "messages" in request else "/v1/completions")
    assert answer.status_code == 200, answer.text
    return route_of(answer)["decode"]


def counted(router: RouterProcess) -> dict[str, float]:
    page = httpx.get(router.url + "/metrics", trust_env=False).text
    lines = [line for line in page.splitlines() if line.startswith("twinpool_router_indexer_total")]
    return {line.split('"')[1]: float(line.split()[-1]) for line in lines}


def test_a_prompt_goes_where_it_was_served_behind_the_routers_back(three: Fleet, tmp_path: Path) -> None:
    requests = [
        body(text("plain")),
        body(list(range(3000, 4500))),
        body(text("salted"), cache_salt="s"),
        chat(text("chat"), text("more")),
        chat(text("template"), add_generation_prompt=False),
    ]
    with three.router(tmp_path, *PATIENT) as router:
        for round in range(2):
            for number, request in enumerate(requests):
                name = sorted(three.engines)[(number + round) % 3]
                own = {**request, "cache_salt": f"{request.get('cache_salt', '')}{round}"}
                three.serve(name, own, "/v1/chat/completions" if "messages" in own else "/v1/completions")
                assert chosen(router, own) == name
        counts = counted(router)
        assert (counts["answered"], counts["right"]) == (10, 10)
        assert not any(counts[each] for each in ("unknown", "late", "away", "wrong"))


def test_each_process_of_a_router_asks(three: Fleet, tmp_path: Path) -> None:
    with three.router(tmp_path, *PATIENT, "--processes", "2") as router:
        until(lambda: router.log().count("asks the indexer") == 2)
        for number in range(6):
            name = sorted(three.engines)[number % 3]
            request = body(text(f"processes{number}"))
            three.serve(name, request)
            assert chosen(router, request) == name


def test_a_router_that_holds_its_own_index_wrong_is_put_right(three: Fleet, tmp_path: Path) -> None:
    """It sent a prompt to one engine, which has lost its cache since; another has served it meanwhile."""
    request = body(text("moved"))
    with three.router(tmp_path, *PATIENT) as router:
        first = chosen(router, request)
        three.settle(first)
        other = next(name for name in three.engines if name != first)
        three.serve(other, request)
        time.sleep(SETTLE_S + 0.1)  # what was sent before might be on its way
        assert chosen(router, request) == other


@asynccontextmanager
async def asking(three: Fleet, folder: Path, **table: Any) -> AsyncIterator[Kit]:
    """A router in this process that asks the indexer."""
    routes = tuple(EngineRoute(name, url, "mixed", engine_key=KEY) for name, url in three.urls.items())
    async with in_process(folder, ModelRoute(MODEL, "monolithic", routes), **table) as kit:
        kit.router.precise = precise = Precise(three.indexer.path, replace(QUICK, indexer_s=10.0))
        precise.apply(kit.router.directory.engines.values())
        task = asyncio.create_task(precise.run())
        await until_true(lambda: precise.connected)
        try:
            yield kit
        finally:
            task.cancel()


async def test_the_salt_of_a_new_cache_era_is_hashed_as_the_engine_sees_it(three: Fleet, tmp_path: Path) -> None:
    async with asking(three, tmp_path) as kit:
        engines = {engine.route.id: engine for engine in kit.router.directory.engines.values()}
        for name, own in (("e2", ""), ("e3", "mine")):
            request = body(text(f"era{name}"), **({"cache_salt": own} if own else {}))
            engines[name].lose(engines[name].era)
            await asyncio.to_thread(three.serve, "e1" if name == "e2" else "e2", {**request, "cache_salt": "of nobody"})
            await asyncio.to_thread(
                three.serve, name, {**request, "cache_salt": salted(engines[name].era.salt, own or None)}
            )
            answer = await kit.post(request)
            assert route_of(answer)["decode"] == name
            assert kit.router.precise is not None
            assert kit.router.precise.counts["wrong"] == 0


async def test_the_salt_of_a_team_is_hashed_as_the_engine_sees_it(three: Fleet, tmp_path: Path) -> None:
    key = KeyEntry(hashlib.sha256(b"sk-team").hexdigest(), "blue")
    async with asking(three, tmp_path, keys=(key,), require_key=True) as kit:
        for name in three.engines:
            request = body(text(f"team{name}"))
            await asyncio.to_thread(three.serve, name, {**request, "cache_salt": str(team_salt(key, request))})
            answer = await kit.post(request, authorization="Bearer sk-team")
            assert route_of(answer)["decode"] == name


def test_blocks_that_were_evicted_are_forgotten(tmp_path: Path) -> None:
    small = {"kv_cache_memory_bytes": 256 << 20, "max_model_len": 1600}  # 128 blocks of Llama-8B
    prompts = [list(range(start, start + 1000)) for start in range(10_000, 60_000, 10_000)]
    with fleet(tmp_path, "e1", args=small) as made:
        held = made.indexer.held
        made.serve("e1", body(prompts[0]))
        assert held(made.urls, body(prompts[0]))[1] == {"e1": [992, True]}
        for prompt in prompts[1:]:
            made.serve("e1", body(prompt))
        for prompt in prompts:
            known = held(made.urls, body(prompt))[1]["e1"]
            hits = made.engines["e1"].metric("vllm:prefix_cache_hits_total")
            made.engines["e1"].text(prompt, max_tokens=1)
            assert known == [made.engines["e1"].metric("vllm:prefix_cache_hits_total") - hits, True]
            until(lambda prompt=prompt: held(made.urls, body(prompt))[1]["e1"][0] == 992)


def test_a_router_goes_on_without_its_indexer_and_finds_it_again(tmp_path: Path) -> None:
    with fleet(tmp_path, "e1", "e2") as made, made.router(tmp_path) as router:
        made.indexer.kill()
        until(lambda: "has gone" in router.log())
        for number in range(5):
            chosen(router, body(text(f"without{number}")))
        counts = counted(router)
        assert counts["away"] == 5
        assert not counts["late"], "nobody waits for an indexer that is not there"
        made.indexer.start()
        until(lambda: router.log().count("asks the indexer") == 2)
        number = iter(range(10_000))
        until(lambda: chosen(router, body(text(f"again{next(number)}"))) and counted(router)["answered"])


def test_an_indexer_that_hangs_is_not_waited_for_long(tmp_path: Path) -> None:
    with fleet(tmp_path, "e1", "e2") as made, made.router(tmp_path) as router:
        assert made.indexer.process is not None
        made.indexer.process.send_signal(signal.SIGSTOP)
        until(lambda: psutil.Process(made.indexer.process.pid).status() == psutil.STATUS_STOPPED)
        before = counted(router)
        for number in range(8):
            chosen(router, body(text(f"hung{number}")))
        counts = counted(router)
        assert (counts["late"] - before["late"], counts["away"]) == (3, 5)
        made.indexer.process.send_signal(signal.SIGCONT)
        number = iter(range(10_000))
        until(
            lambda: chosen(router, body([next(number), *range(1000)])) and counted(router)["answered"] > before["answered"]
        )


def test_an_indexer_that_was_restarted_knows_a_part_and_the_router_its_own(tmp_path: Path) -> None:
    with fleet(tmp_path, "e1", "e2") as made, made.router(tmp_path, *PATIENT) as router:
        request = body(text("mine"))
        first = chosen(router, request)
        made.indexer.kill(signal.SIGTERM)
        made.indexer.start()
        until(lambda: router.log().count("asks the indexer") == 2)
        for engine in made.engines.values():
            until(lambda engine=engine: engine.text(text("awake"), max_tokens=20) and len(made.indexer.status()["engines"]))
        assert not any(made.indexer.engine(name)["whole"] for name in made.engines)
        assert chosen(router, request) == first


def test_missed_batches_are_asked_for(tmp_path: Path) -> None:
    """An indexer that starts late hears the rest from the engine's replay socket."""
    events, replay = free_port(), f"tcp://127.0.0.1:{free_port()}"
    indexer = Indexer(tmp_path / "i.sock", events, tmp_path / "i.log", ("--replay", f"e1={replay}"))
    told = {"endpoint": indexer.endpoint, "replay_endpoint": replay, "buffer_steps": 1000}
    with running(tmp_path, spec("e1", connector="none", kv_events=told)) as engine:
        engine.text(list(range(500)), max_tokens=1)
        indexer.start()
        try:
            number = iter(range(1000, 10**6, 100))
            until(lambda: engine.text([next(number)] * 32, max_tokens=1) and indexer.engine("e1")["whole"])
            assert indexer.held({"e1": engine.url}, body(list(range(500))))[1] == {"e1": [496, True]}
        finally:
            indexer.kill()


def test_hostile_publishers_and_askers_are_survived(three: Fleet, tmp_path: Path) -> None:
    request = body(list(range(70_000, 71_000)))
    three.serve("e1", request)
    junk: list[tuple[bytes, ...]] = [
        (b"kv@",), (b"kv@e9", b"", b""), (b"kv@\xff", b"\0" * 8, b""), (b"kv@e9", b"\0" * 8, b"\xc1"),
        (b"kv@e9", b"\xff" * 8, msgpack.packb([0, [{"type": "BlockStored"}]])), (b"kv@" + b"x" * 10_000, b"\0" * 8, b"x"),
        (b"other", b"\0" * 8, b"x"), (b"kv@e9", b"\0" * 8, b"x" * (9 << 20)), (b"kv@e9", b"\0" * 8, b"\x91" * 100_000),
    ]  # fmt: skip
    with zmq.Context() as context:
        for frames in junk:
            with context.socket(zmq.PUB) as publisher:  # one that sends too much is cut off
                publisher.setsockopt(zmq.LINGER, 1000)
                publisher.connect(three.indexer.endpoint)
                publisher.poll(50, zmq.POLLOUT)
                for _ in range(20):
                    publisher.send_multipart(frames)
        with context.socket(zmq.PUB) as publisher:
            publisher.setsockopt(zmq.LINGER, 0)
            publisher.connect(three.indexer.endpoint)
            before = three.indexer.status()["refused"]
            until(lambda: publisher.send_multipart(junk[0]) or three.indexer.status()["refused"] > before)
    for raw in (b"\xff" * 100, b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\2\x91\x02", b"\0\0\0\1\x90", b"\0"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(three.indexer.path))
            connection.sendall(raw)
    for odd in (b"", b"[", b"[]", b'{"prompt": {}}', b"[" * 10_000, b"\xff"):
        asked = three.indexer.ask([2, 9, "/v1/completions", MODEL, "", "", {}, odd])
        assert asked == [9, 0, {}]
    assert three.indexer.held(three.urls, request)[1]["e1"] == [992, True]


def test_engines_that_cannot_be_asked_for_tokens_cost_nothing(three: Fleet) -> None:
    nowhere = {"e1": f"http://127.0.0.1:{free_port()}"}
    assert three.indexer.held(nowhere, body(text("nowhere"))) == [0, {}]
    assert three.indexer.held(nowhere, body(list(range(70))))[0] == 70


def test_a_long_chat_that_goes_on_is_known_by_its_last_turn(three: Fleet) -> None:
    messages = [{"role": "user", "content": text("turn", 3000)}]
    first = {"model": MODEL, "messages": messages, "max_tokens": 2}
    path = "/v1/chat/completions"
    three.serve("e1", first, path)
    more = [*messages, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": text("and then", 500)}]
    prompt, found = three.indexer.held(three.urls, {**first, "messages": more}, path)
    assert prompt > 6000
    assert found["e1"][0] > 5000
    assert not found["e1"][1], "it may hold more"
    assert (found["e2"], found["e3"]) == ([0, True], [0, True])


def test_long_prompts_are_known_the_next_time(three: Fleet) -> None:
    long = body(text("long", 5000))
    assert three.indexer.held(three.urls, long)[0] == 0
    until(lambda: three.indexer.held(three.urls, long)[0] > 9000)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--events", "tcp://8.8.8.8:5557"), "private address"),
        (("--events", "nonsense"), "must be tcp://ADDRESS:PORT"),
        ((), "--events tcp://ADDRESS:PORT is missing"),
        (("--events", "tcp://127.0.0.1:5557", "--max-blocks", "0"), "--max-blocks must be a positive number"),
        (("--events", "tcp://127.0.0.1:5557", "--replay", "e1"), "write ENGINE=tcp://ADDRESS:PORT"),
        (("--status",), "no indexer answers"),
    ],
)
def test_bad_options_are_one_clear_line(
    options: tuple[str, ...], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--socket", str(tmp_path / "none.sock"), *options]) == 2
    assert problem in capsys.readouterr().err


def test_two_indexers_never_share_a_socket(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with indexing(tmp_path) as indexer:
        again = ["--socket", str(indexer.path), "--events", f"tcp://127.0.0.1:{free_port()}"]
        assert main(again) == 2
        assert "another indexer serves" in capsys.readouterr().err
        assert main(["--socket", str(tmp_path / "other.sock"), "--events", indexer.endpoint]) == 2
        assert "Address already in use" in capsys.readouterr().err
        assert main(["--socket", str(indexer.path), "--status"]) == 0
        assert '"blocks": 0' in capsys.readouterr().out
        indexer.kill()
        indexer.start()
        assert indexer.status()["asked"] == 0
