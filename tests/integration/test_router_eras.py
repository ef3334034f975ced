"""Wrong KV that a late pull leaves in an engine's prefix cache is never answered with: not later, not by other routers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from controlplane.core import names, signing
from controlplane.core.codec import decode, encode
from controlplane.core.protocol import CacheEra, RouterFact
from controlplane.router.server import Options, Server
from tests.integration import router_engine as act
from tests.integration.router_engine import FakeEngine, Leg, words
from tests.integration.router_kit import QUICK, TEXT, Pair, pair, parse_events, split_model, text_of, until, write_table
from tests.integration.router_process import SECRET, publish, table

EXPECTED = "".join(words("hello there", 4))
LEASE_S = 2.0
LATE_S = LEASE_S + 0.7


class Caching:
    """Makes an engine answer wrongly for prompts that it has wrong KV for, as long as they come under the same salt."""

    def __init__(self, engine: FakeEngine) -> None:
        self.spoilt: set[tuple[Any, str]] = set()
        self.salts: list[str] = []
        """Of its legs, in order; "" for none."""
        engine.always = self.answer

    async def answer(self, engine: FakeEngine, leg: Leg) -> None:
        salt = leg.body.get("cache_salt", "")
        self.salts.append(salt)
        if (leg.body.get("prompt"), salt) in self.spoilt:
            leg.body["prompt"] = "somebody else's"
        await act.behave(engine, leg)

    def late(self, after_s: float = LATE_S) -> act.Act:
        async def pull(engine: FakeEngine, leg: Leg) -> None:
            await asyncio.sleep(after_s)
            self.spoilt.add((leg.body.get("prompt"), leg.body.get("cache_salt", "")))
            await self.answer(engine, leg)

        return pull


async def spoil(two: Pair, cache: Caching) -> None:
    """One request whose KV comes late to d1."""
    two.d1.acts = [cache.late()]
    expiring = asyncio.ensure_future(act.expire_once_read(two.p1))
    answer = await two.kit.post(TEXT)
    await expiring
    assert answer.json()["choices"][0]["text"] == EXPECTED


@pytest.mark.parametrize("prefills", [1, 0], ids=["split", "whole"])
async def test_the_same_prompt_is_right_afterwards_on_the_engine_that_has_it_wrong(tmp_path: Path, prefills: int) -> None:
    async with pair(tmp_path, prefills=1, decodes=1, kv_lease_s=LEASE_S) as two:
        cache = Caching(two.d1)
        await spoil(two, cache)
        assert ("hello there", "") in cache.spoilt
        if not prefills:
            await two.kit.apply(split_model([], [two.d1], kv_lease_s=LEASE_S))
        for stream in (False, True, False):
            answer = await two.kit.post({**TEXT, "stream": stream})
            text = text_of(parse_events(answer.content)) if stream else answer.json()["choices"][0]["text"]
            assert text == EXPECTED
        assert len(two.d1.generations()) == 5
        assert "" not in cache.salts[1:]
        assert len(set(cache.salts[1:])) == 1


async def test_a_clients_own_salt_stays_inside(tmp_path: Path) -> None:
    async with pair(tmp_path, prefills=1, decodes=1, kv_lease_s=LEASE_S) as two:
        cache = Caching(two.d1)
        await spoil(two, cache)
        era = cache.salts[-1]
        for own in ("a", "b", "x" * 128):
            await two.kit.post({**TEXT, "cache_salt": own})
        assert cache.salts[-3:-1] == [f"{era}.a", f"{era}.b"]
        assert len(cache.salts[-1]) <= 128
        await two.kit.post({**TEXT, "cache_salt": ""})
        assert two.d1.generations()[-1].body["cache_salt"] == ""  # for the engine to refuse
        assert [leg.body.get("cache_salt") for leg in two.p1.generations()[-4:]] == ["a", "b", "x" * 128, ""]


async def test_answers_of_that_moment_are_held_until_it_is_known(tmp_path: Path) -> None:
    """A request that the engine answers from its cache after the late pull, before the router knows of it."""
    async with pair(tmp_path, prefills=1, decodes=1, kv_lease_s=LEASE_S) as two:
        cache = Caching(two.d1)
        pulled = asyncio.Event()

        async def from_the_cache(engine: FakeEngine, leg: Leg) -> None:
            await pulled.wait()
            await asyncio.sleep(0.1)
            await cache.answer(engine, leg)

        async def slow_page(engine: FakeEngine, leg: Leg) -> None:
            """The second reading, while which the other answer comes."""
            await asyncio.sleep(0.5)
            await act.metrics(engine, leg)

        async def late(engine: FakeEngine, leg: Leg) -> None:
            await cache.late()(engine, leg)
            pulled.set()

        two.d1.acts = [late, from_the_cache]
        expiring = asyncio.ensure_future(act.expire_once_read(two.p1))
        first = asyncio.ensure_future(two.kit.post(TEXT))
        await expiring
        two.p1.metrics_act = slow_page
        await two.kit.apply(split_model([], [two.d1], kv_lease_s=LEASE_S))
        second = await two.kit.post({**TEXT, "stream": True})
        assert text_of(parse_events(second.content)) == EXPECTED
        assert (await first).json()["choices"][0]["text"] == EXPECTED
        assert len(two.d1.generations()) == 4


async def test_an_engine_that_was_only_slow_is_asked_under_its_old_salt_again(tmp_path: Path) -> None:
    async with pair(tmp_path, prefills=1, decodes=1, kv_lease_s=2 * LEASE_S) as two:
        cache = Caching(two.d1)
        two.d1.acts = [act.later(2 * LATE_S)]
        assert (await two.kit.post(TEXT)).json()["choices"][0]["text"] == EXPECTED
        await two.kit.post(TEXT)
        assert cache.salts == [""]
        assert two.kit.router.counters.kv_checks == {"believed": 1}


async def leave(two: Pair) -> None:
    """A client that goes away while d1 has its decode leg and has not answered."""
    before = len(two.d1.generations())
    request = asyncio.ensure_future(two.kit.post({**TEXT, "stream": True}))
    await until(lambda: len(two.d1.generations()) > before)
    request.cancel()
    await until(two.kit.idle, "idle")


async def test_a_leg_that_was_given_up_counts_as_late_if_a_lease_expires(tmp_path: Path) -> None:
    async with pair(tmp_path, prefills=1, decodes=1, kv_lease_s=LEASE_S) as two:
        cache = Caching(two.d1)
        two.d1.acts = [act.hang]
        await leave(two)
        cache.spoilt.add(("hello there", ""))  # it went on after its lease
        await act.expire_once_read(two.p1)
        await until(lambda: two.kit.router.directory.eras.all(), "distrusted")
        assert (await two.kit.post(TEXT)).json()["choices"][0]["text"] == EXPECTED
        assert len(two.kit.router.watches) == 0


async def test_a_leg_that_was_given_up_is_forgotten_if_none_expires(tmp_path: Path) -> None:
    async with pair(tmp_path, prefills=1, decodes=1, kv_lease_s=2 * LEASE_S) as two:
        two.d1.acts = [act.hang]
        await leave(two)
        assert len(two.kit.router.watches) == 1
        await until(lambda: not len(two.kit.router.watches), "forgotten")
        assert two.kit.router.directory.eras.all() == ()


async def test_an_engine_that_answers_what_was_sent_later_has_noticed_the_end(tmp_path: Path) -> None:
    async with pair(tmp_path, prefills=1, decodes=1) as two:  # a lease of 30 s
        two.d1.acts = [act.hang]
        await leave(two)
        await two.kit.post(TEXT)
        await until(lambda: not len(two.kit.router.watches), "forgotten")
        assert [leg for leg in two.p1.legs if leg.path == "/metrics"] == []
        assert two.kit.router.directory.eras.all() == ()


async def test_routers_on_one_machine_and_later_ones_learn_it_from_the_file(tmp_path: Path) -> None:
    async with pair(tmp_path, prefills=1, decodes=1, kv_lease_s=LEASE_S) as two:
        cache = Caching(two.d1)
        early = Server(Options("127.0.0.1", 0, table=two.kit.table, limits=QUICK))
        stop = asyncio.Event()
        running = asyncio.ensure_future(early.run(stop))
        await until(lambda: early.router.directory.engines, "given a table")
        await spoil(two, cache)
        await until(lambda: [engine.era.salt for engine in early.router.directory.engines.values()] == ["", cache.salts[-1]])
        stop.set()
        await running
        later = Server(Options("127.0.0.1", 0, table=two.kit.table, limits=QUICK))
        stop.clear()
        running = asyncio.ensure_future(later.run(stop))
        await until(lambda: later.router.directory.engines, "given a table")
        answer = await two.kit.client.post(f"http://127.0.0.1:{later.port}/v1/completions", json=TEXT)
        assert answer.json()["choices"][0]["text"] == EXPECTED
        stop.set()
        await running


async def test_routers_on_other_machines_and_control_learn_it_from_valkey(
    valkey: redis.Redis, valkey_url: str, tmp_path: Path
) -> None:
    async with pair(tmp_path, prefills=1, decodes=1, kv_lease_s=LEASE_S) as two:
        cache = Caching(two.d1)
        publish(valkey, table(1, split_model([two.p1], [two.d1], kv_lease_s=LEASE_S)))
        stop = asyncio.Event()

        async def started(id: str) -> tuple[Server, asyncio.Task[None]]:
            options = Options("127.0.0.1", 0, id, valkey_url=valkey_url, fleet_secret=SECRET, limits=QUICK)
            server = Server(options)
            task = asyncio.ensure_future(server.run(stop))
            await until(lambda: server.router.directory.engines, "given a table")
            return server, task

        one, other = await started("one"), await started("other")
        two.d1.acts = [cache.late()]
        expiring = asyncio.ensure_future(act.expire_once_read(two.p1))
        answer = await two.kit.client.post(f"http://127.0.0.1:{one[0].port}/v1/completions", json=TEXT)
        await expiring
        assert answer.json()["choices"][0]["text"] == EXPECTED
        salts = ["", cache.salts[-1]]
        await until(lambda: [engine.era.salt for engine in other[0].router.directory.engines.values()] == salts)
        third = await started("third")
        assert [engine.era.salt for engine in third[0].router.directory.engines.values()] == salts

        def told() -> list[str]:
            envelope = valkey.get(names.fact_key("router", "other"))
            fact = decode(RouterFact, signing.unseal(signing.router_key(SECRET), envelope))  # type: ignore[arg-type]
            return [f"{era.engine}/{era.incarnation}/{era.number}/{era.salt}" for era in fact.eras]

        await until(lambda: told() == [f"d1/1/1/{salts[1]}"], "told in a fact")
        forged = encode(CacheEra("d1", 1, 9, "0123456789abcdef"))
        valkey.hset(names.ERAS_KEY, "forged", signing.seal(b"another key", forged))
        engine = one[0].router.directory.engines[("d1", 1, two.d1.url)]
        engine.lose(engine.era)
        await until(lambda: [engine.era.number for engine in third[0].router.directory.engines.values()] == [0, 2])
        kept = {b"forged", f"d1/1/2/{third[0].router.directory.eras.all()[0].salt}".encode()}
        await until(lambda: set(valkey.hkeys(names.ERAS_KEY)) == kept, "rid of the era that is outdone")  # type: ignore[arg-type]
        valkey.delete(names.ERAS_KEY)
        await until(lambda: valkey.hlen(names.ERAS_KEY) == 1, "told again to a Valkey that has lost it")
        stop.set()
        await asyncio.gather(*(task for _, task in (one, other, third)))


async def test_a_new_start_of_the_engine_begins_without_a_salt(tmp_path: Path) -> None:
    async with pair(tmp_path, prefills=1, decodes=1, kv_lease_s=LEASE_S) as two:
        cache = Caching(two.d1)
        await spoil(two, cache)
        model = split_model([two.p1], [two.d1], kv_lease_s=LEASE_S)
        again = replace(model, engines=tuple(replace(engine, incarnation=2) for engine in model.engines))
        await two.kit.apply(again)
        cache.spoilt.clear()
        await two.kit.post(TEXT)
        assert cache.salts[-1] == ""
        assert two.kit.router.directory.eras.all() == ()


async def test_a_router_that_stops_leaves_no_leg_unwatched(tmp_path: Path) -> None:
    """It ends between the end of a decode leg and that of its lease: nobody would see a late pull."""
    async with pair(tmp_path, prefills=1, decodes=1) as two:
        two.d1.acts = [act.hang]
        await leave(two)
        two.kit.stop.set()
        await two.kit.task
        assert [era.engine for era in two.kit.router.directory.eras.all()] == ["d1"]
        assert b"d1" in two.kit.table.with_name(f"{two.kit.table.name}.eras").read_bytes()


async def test_the_file_is_not_believed_if_everybody_may_write_it(tmp_path: Path) -> None:
    file = tmp_path / "table.json"
    async with pair(tmp_path, prefills=1, decodes=1) as two:
        write_table(file, [split_model([two.p1], [two.d1])])
        eras = tmp_path / "table.json.eras"
        eras.write_text('{"engine":"d1","incarnation":1,"number":1,"salt":"0123456789abcdef"}\nnonsense\n')
        for mode, known in ((0o666, 0), (0o600, 1)):
            eras.chmod(mode)
            server = Server(Options("127.0.0.1", 0, table=file, limits=QUICK))
            stop = asyncio.Event()
            running = asyncio.ensure_future(server.run(stop))
            await until(lambda server=server: server.router.directory.engines, "given a table")
            assert len(server.router.directory.eras.all()) == known
            stop.set()
            await running
