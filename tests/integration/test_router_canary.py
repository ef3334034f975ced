"""A real router process and a canary: sessions stay in their arm, main serves what the canary cannot, each is told of."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import redis

from controlplane.core import names, signing
from controlplane.core.codec import decode
from controlplane.core.protocol import Canary, CanaryReport, EngineRoute, ModelRoute, Role, SessionSeen, Slo
from tests.integration import router_engine as act
from tests.integration.router_engine import FakeEngine
from tests.integration.router_kit import fakes, route_of, until
from tests.integration.router_process import SECRET, RouterProcess, publish, router_process, rows_of, table

CANARY = Canary("canary", "monolithic", 0.5, id=7)


def route(engine: FakeEngine, role: Role = "mixed", arm: str = "main", **fields: Any) -> EngineRoute:
    return EngineRoute(engine.id, engine.url, role, arm=arm, **fields)


@dataclass
class Kit:
    router: RouterProcess
    valkey: redis.Redis
    client: httpx.AsyncClient
    engines: list[FakeEngine] = field(default_factory=list)
    generation: int = 0

    async def apply(self, model: ModelRoute) -> None:
        self.generation += 1
        publish(self.valkey, table(self.generation, model))
        await until(lambda: self.router.generation() == self.generation, "applied")

    async def ask(self, session: int, **fields: Any) -> httpx.Response:
        body = {"model": "m", "prompt": "hello there", "max_tokens": 4, "stream": True, **fields}
        headers = {"x-session-id": f"session-{session}"}
        return await self.client.post(self.router.url + "/v1/completions", json=body, headers=headers)

    async def ask_all(self, sessions: range, **fields: Any) -> list[dict[str, str]]:
        answers = []
        for session in sessions:
            answer = await self.ask(session, **fields)
            assert answer.status_code == 200, answer.text
            answers.append(route_of(answer))
        return answers

    def told(self, canary: int = 7) -> list[SessionSeen]:
        """What was reported so far, one entry per session and report."""
        key = signing.router_key(SECRET)
        entries: Any = self.valkey.xrange(names.canary_stream(canary))
        reports = [decode(CanaryReport, signing.unseal(key, fields[b"r"])) for _, fields in entries]
        assert {report.canary for report in reports} <= {canary}
        return [seen for report in reports for seen in report.sessions]

    async def told_of(self, sessions: int) -> dict[str, list[SessionSeen]]:
        def found() -> dict[str, list[SessionSeen]]:
            by_session: dict[str, list[SessionSeen]] = {}
            for seen in self.told():
                by_session.setdefault(seen.session, []).append(seen)
            return by_session if len(by_session) >= sessions else {}

        result: dict[str, list[SessionSeen]] = await until(found, "told of all sessions")
        return result


@asynccontextmanager
async def running(tmp_path: Path, valkey: redis.Redis, valkey_url: str, *ids: str) -> AsyncIterator[Kit]:
    async with fakes(*ids) as engines, httpx.AsyncClient(timeout=60, trust_env=False) as client:
        with router_process(tmp_path, valkey_url, "--valkey") as router:
            yield Kit(router, valkey, client, engines)


async def test_sessions_stay_in_their_arm_and_each_is_told_of(valkey: redis.Redis, valkey_url: str, tmp_path: Path) -> None:
    async with running(tmp_path, valkey, valkey_url, "e1", "e2") as kit:
        main, trial = kit.engines
        model = ModelRoute("m", "monolithic", (route(main), route(trial, arm="canary")), canary=CANARY)
        await kit.apply(model)
        first = await kit.ask_all(range(40))
        again = await kit.ask_all(range(40))
        assert [each["decode"] for each in first] == [each["decode"] for each in again]
        by_engine = Counter(each["decode"] for each in first)
        assert min(by_engine.values()) > 8 and by_engine.keys() == {"e1", "e2"}
        sessions = await kit.told_of(40)
        arms = Counter(seen[0].canary for seen in sessions.values())
        assert (arms[True], arms[False]) == (by_engine["e2"], by_engine["e1"])
        assert all(each.ttft_ms and not (each.over or each.failed or each.fell_back) for each in kit.told())
        rows = await until(lambda: len(found := rows_of(valkey, "request")) == 80 and found, "told of all requests")
        assert {row["session"] for row in rows} == sessions.keys()
        assert all((row["arm"] == "canary") == (row["decode_engine"] == "e2") for row in rows)

        await kit.apply(replace(model, canary=replace(CANARY, share=0.7)))
        wider = await kit.ask_all(range(40))
        moved = [(old["decode"], new["decode"]) for old, new in zip(first, wider, strict=True) if old != new]
        assert set(moved) == {("e1", "e2")}, "only from main to the canary"

        await kit.apply(replace(model, canary=None))
        over_at = time.time()
        assert {each["decode"] for each in await kit.ask_all(range(10))} == {"e1"}
        assert kit.router.stop() == 0
        assert all(seen.at <= over_at for seen in kit.told()), "nothing is tried any more"


async def test_main_serves_what_the_canary_cannot(valkey: redis.Redis, valkey_url: str, tmp_path: Path) -> None:
    async with running(tmp_path, valkey, valkey_url, "e1", "e2", "e3") as kit:
        main, prefill, decode_engine = kit.engines
        arm = (route(prefill, "prefill", "canary"), route(decode_engine, "decode", "canary"))
        canary = replace(CANARY, mode="disaggregated", share=1.0)
        model = ModelRoute("m", "monolithic", (route(main), *arm), canary=canary, connector="nixl", strict=True)
        await kit.apply(model)
        served = route_of(await kit.ask(1))
        assert (served["path"], served["prefill"], served["decode"]) == ("disaggregated", "e2", "e3")

        await kit.apply(replace(model, engines=(route(main), arm[0])))  # half a pair
        served = route_of(await kit.ask(2))
        assert (served["path"], served["reason"], served["decode"]) == ("monolithic", "canary_unavailable", "e1")

        await kit.apply(
            replace(model, engines=(route(main), route(prefill, arm="canary")), canary=replace(CANARY, share=1.0))
        )
        prefill.always = act.answer(500)
        served = route_of(await kit.ask(3))
        assert (served["reason"], served["decode"]) == ("canary_unavailable", "e1"), "its engine failed: main's is asked"

        sessions = await kit.told_of(3)
        by_session = {tuple(seen.session for seen in found): found for found in sessions.values()}
        told = sorted((found[0].fell_back, found[0].failed, found[0].over) for found in by_session.values())
        assert told == [(False, False, False), (False, True, False), (True, False, False)]
        assert all(found[0].canary for found in sessions.values())


async def test_a_canary_on_shared_engines_is_a_mode(valkey: redis.Redis, valkey_url: str, tmp_path: Path) -> None:
    async with running(tmp_path, valkey, valkey_url, "e1", "e2") as kit:
        prefill, decode_engine = kit.engines
        canary = Canary("canary", "disaggregated", 0.5, shared=True, id=7)
        pair = (route(prefill, "prefill"), route(decode_engine, "decode"))
        await kit.apply(ModelRoute("m", "conditional", pair, canary=canary, connector="nixl"))
        reasons = Counter(each["reason"] for each in await kit.ask_all(range(40)))
        assert reasons.keys() == {"disaggregated", "conditional_short"}
        sessions = await kit.told_of(40)
        assert Counter(found[0].canary for found in sessions.values())[True] == reasons["disaggregated"]


async def test_what_is_told_does_not_depend_on_what_the_stream_samples(
    valkey: redis.Redis, valkey_url: str, tmp_path: Path
) -> None:
    async with running(tmp_path, valkey, valkey_url, "e1", "e2") as kit:
        main, trial = kit.engines
        slow = replace(CANARY, share=0.5)
        engines = (route(main), route(trial, arm="canary"))
        await kit.apply(ModelRoute("m", "monolithic", engines, canary=slow, slo=Slo(ttft_ms=60_000, itl_ms=20_000)))
        whole = await asyncio.gather(*(kit.ask(session, stream=False) for session in range(60)))
        assert {answer.status_code for answer in whole} == {200}
        assert (await kit.ask(99, min_tokens=9)).status_code == 400
        trial.always = act.break_stream(1)  # after a byte: nobody else can be asked, and it cannot be carried on
        streams = await asyncio.gather(*(kit.ask(session, n=2) for session in range(60)))
        broken = sum(b"[DONE]" not in answer.content for answer in streams)  # until the engine is set aside

        def failed() -> int:
            return len({seen.session for seen in kit.told() if seen.failed})

        await until(lambda: failed() >= broken > 0, "told of those that broke")
        assert failed() == broken
        assert len({seen.session for seen in kit.told()}) == 60, "a client's own mistake is no session"
        assert all(seen.over and seen.canary for seen in kit.told() if seen.failed)
