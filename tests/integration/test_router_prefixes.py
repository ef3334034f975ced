"""Requests go where their prefix is: the router with fake engines that log every leg."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.integration.router_engine import FakeEngine, Leg, behave, reply
from tests.integration.router_kit import (
    QUICK,
    TEXT,
    ask_until,
    fakes,
    pair,
    route_of,
    running,
    split_model,
    until,
    whole_model,
    with_engines,
)

SYSTEM = "You are a helper who answers in the manner of a router's manual. " * 400


def prompt(number: int) -> dict[str, Any]:
    """One system prompt, another question each time."""
    return {**TEXT, "prompt": f"{SYSTEM} Question {number}?"}


def with_legs(*engines: FakeEngine) -> list[FakeEngine]:
    return [engine for engine in engines if engine.generations()]


async def test_what_shares_a_prefix_stays_together(tmp_path: Path) -> None:
    async with pair(tmp_path, kv_bytes_per_token=300_000) as two:
        for number in range(10):
            assert (await two.kit.post(prompt(number), **{"x-session-id": f"s{number}"})).status_code == 200
        assert len(with_legs(*two.prefills)) == 1
        assert len(with_legs(*two.decodes)) == 1


async def test_other_salts_share_nothing_and_spread(tmp_path: Path) -> None:
    async with pair(tmp_path) as two:
        await ask_until(
            two.kit,
            lambda: len(with_legs(*two.prefills)) == 2,
            lambda number: {**prompt(0), "cache_salt": f"salt {number}"},
        )


async def test_one_hot_prompt_does_not_pile_up_on_one_engine(tmp_path: Path) -> None:
    """Prefills that do not end until there are as many as engines and more."""
    opened = asyncio.Event()

    async def held(engine: FakeEngine, leg: Leg) -> None:
        await opened.wait()
        await behave(engine, leg)

    async with fakes("a", "b", "c", "d") as engines, running(tmp_path, whole_model(*engines)) as kit:
        await kit.post(prompt(0))
        for engine in engines:
            engine.always = held
        sent = [asyncio.ensure_future(kit.post({**prompt(number), "max_tokens": 900})) for number in range(120)]
        await until(lambda: sum(len(engine.generations()) for engine in engines) == 121, "all sent")
        opened.set()
        assert {(await each).status_code for each in sent} == {200}
        counts = [len(engine.generations()) for engine in engines]
        assert min(counts) > 0
        assert max(counts) <= 60
        await until(kit.idle)


async def test_an_engine_that_was_replaced_holds_nothing(tmp_path: Path) -> None:
    async with fakes("a", "b") as engines:
        route = whole_model(*engines)
        async with running(tmp_path, route) as kit:
            await kit.post(prompt(0))
            (holder,) = with_legs(*engines)
            index = kit.router.directory.index
            assert len(index) > 0
            await kit.apply(with_engines(route, lambda e: replace(e, incarnation=2) if e.id == holder.id else e))
            assert len(index) == 0
            await kit.post(prompt(1))
            assert len(index) > 0


async def test_an_engine_that_broke_holds_nothing(tmp_path: Path) -> None:
    async with fakes("a", "b") as engines, running(tmp_path, whole_model(*engines)) as kit:
        await kit.post(prompt(0))
        (holder,) = with_legs(*engines)
        (other,) = (engine for engine in engines if engine is not holder)
        await holder.stop()
        assert (await kit.post(prompt(1))).status_code == 200
        assert len(other.generations()) == 1
        held = {engine.route.id: len(engine.holder.held) for engine in kit.router.directory.engines.values()}
        assert held[holder.id] == 0
        assert held[other.id] > 0


async def test_conditional_mode_looks_at_what_is_uncached(tmp_path: Path) -> None:
    async with pair(tmp_path, decodes=1, mode="conditional") as two:
        reasons = [route_of(await two.kit.post(prompt(number)))["reason"] for number in range(3)]
        assert reasons == ["conditional_remote", "conditional_short", "conditional_short"]


async def test_an_engine_that_does_not_find_its_prefixes_is_not_waited_for(tmp_path: Path) -> None:
    async def cacheless(engine: FakeEngine, leg: Leg) -> None:
        usage = {"prompt_tokens": 6500, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}
        await reply(leg, 200, {"choices": [{"index": 0, "text": "x"}], "usage": usage})

    async with fakes("a", "b") as engines, running(tmp_path, whole_model(*engines)) as kit:
        for engine in engines:
            engine.always = cacheless
        await kit.post(prompt(0))
        (first,) = with_legs(*engines)
        (holder,) = (engine.holder for engine in kit.router.directory.engines.values() if engine.route.id == first.id)
        answers = await ask_until(kit, lambda: holder.trust < 0.1, prompt)
        assert {answer.status_code for answer in answers} == {200}


async def test_the_room_of_an_engine_is_learnt(tmp_path: Path) -> None:
    async with fakes("p", "d") as (p, d), running(tmp_path, split_model([p], [d]), limits=replace(QUICK, room_s=0.0)) as kit:
        p.kv_blocks = d.kv_blocks = 6400
        await kit.post(prompt(0))
        engines = list(kit.router.directory.engines.values())
        await until(lambda: all(engine.kv_tokens == 102_400 for engine in engines), "told the room")
        assert {engine.holder.capacity for engine in engines} == {200}
