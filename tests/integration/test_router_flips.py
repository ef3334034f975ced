"""Engines get other roles, and models other modes, while requests are under way: each ends as if nothing had happened, and
KV that waits is pulled by whoever can still pull it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from controlplane.core.protocol import Canary, ModelRoute
from tests.integration import router_engine as act
from tests.integration.router_engine import FakeEngine, words
from tests.integration.router_kit import TEXT, Pair, model, pair, parse_events, route_of, text_of, until, with_engines

WORDS = "".join(words(TEXT["prompt"], 4))


def disaggregated(prefill: list[FakeEngine], decode: list[FakeEngine], **fields: Any) -> ModelRoute:
    return model({"prefill": prefill, "decode": decode}, mode="disaggregated", connector="nixl", **fields)


def monolithic(engines: list[FakeEngine], **fields: Any) -> ModelRoute:
    return model({"mixed": engines}, mode="monolithic", connector="nixl", **fields)


def pulls(engine: FakeEngine) -> list[str]:
    """Which engine's KV it was told to pull, leg by leg."""
    params = [leg.body.get("kv_transfer_params") or {} for leg in engine.generations()]
    return [each["remote_engine_id"] for each in params if each.get("do_remote_prefill")]


async def prefilled_before(it: Pair, route: ModelRoute, **fields: Any) -> dict[str, str]:
    """How a request was served whose prefill on p1 ends once the table says `route`."""
    it.p1.acts = [act.once(lambda: it.kit.apply(route))]
    response = await it.kit.post({**TEXT, **fields})
    assert response.status_code == 200, response.text
    assert response.json()["choices"][0]["text"] == WORDS
    return route_of(response)


@pytest.mark.parametrize("strict", [False, True])
async def test_a_finished_prefill_is_pulled_by_the_engine_whose_role_it_took(tmp_path: Path, strict: bool) -> None:
    async with pair(tmp_path, prefills=1, decodes=1, strict=strict) as it:
        served = await prefilled_before(it, disaggregated([it.d1], [it.p1], strict=strict))
        assert (served["path"], served["prefill"], served["decode"]) == ("disaggregated", "p1", "d1")
        assert (pulls(it.d1), pulls(it.p1)) == (["p1"], [])
        assert it.kit.idle()


@pytest.mark.parametrize("strict", [False, True])
async def test_a_finished_prefill_is_pulled_by_an_engine_that_serves_whole_requests_now(
    tmp_path: Path, strict: bool
) -> None:
    async with pair(tmp_path, prefills=1, strict=strict) as it:
        served = await prefilled_before(it, monolithic([*it.prefills, *it.decodes], strict=strict))
        assert (served["path"], served["prefill"]) == ("disaggregated", "p1")
        assert served["decode"] != "p1", "an engine was told to pull from itself"
        assert sum(len(pulls(engine)) for engine in (it.p2, it.d1, it.d2)) == 1


async def test_a_strict_model_that_was_switched_loses_no_request_whose_prefill_failed_meanwhile(tmp_path: Path) -> None:
    async with pair(tmp_path, strict=True) as it:
        whole = monolithic([*it.prefills, *it.decodes], strict=True)

        async def switch_then_break(engine: FakeEngine, leg: act.Leg) -> None:
            await it.kit.apply(whole)
            for each in it.prefills:
                each.acts = []  # the other one may be asked for all of it, and does not break too
            await act.close(engine, leg)

        for prefill in it.prefills:
            prefill.acts = [switch_then_break]
        response = await it.kit.post(TEXT)
        assert (response.status_code, route_of(response)["path"]) == (200, "monolithic"), response.text


async def test_kv_waits_for_nobody_in_an_arm_that_is_over(tmp_path: Path) -> None:
    async with pair(tmp_path, prefills=1, decodes=1) as it:
        trial = Canary("trial", "disaggregated", 1.0)
        in_trial = with_engines(disaggregated([it.p1], [it.d1]), lambda engine: replace(engine, arm="trial"))
        others = disaggregated([it.p2], [it.d2]).engines
        await it.kit.apply(replace(in_trial, engines=(*in_trial.engines, *others), canary=trial))
        served = await prefilled_before(it, disaggregated(it.prefills, it.decodes))
        assert (served["path"], served["prefill"]) == ("disaggregated", "p1")
        assert served["decode"] in ("d1", "d2")


async def test_no_request_is_lost_while_roles_and_modes_change_to_and_fro(tmp_path: Path) -> None:
    async with pair(tmp_path) as it:
        engines = [*it.prefills, *it.decodes]
        for engine in engines:
            engine.step_s = 0.003
            engine.always = act.later(0.01)
        tables = cycle([
            disaggregated(it.decodes, it.prefills),
            disaggregated([it.p1, it.d1], [it.p2, it.d2]),
            monolithic(engines),
            disaggregated([it.p1], [it.d1, it.d2, it.p2]),
            model({"prefill": it.prefills, "decode": [it.d1], "mixed": [it.d2]}, mode="conditional", connector="nixl"),
            disaggregated(it.prefills, it.decodes),
        ])  # fmt: skip

        async def ask(number: int) -> None:
            prompt = f"request {number} " * 200
            response = await it.kit.post({"model": "m", "prompt": prompt, "max_tokens": 6, "stream": True})
            assert response.status_code == 200, response.text
            events = parse_events(response.content)
            assert events[-1] == "[DONE]"
            assert text_of(events) == "".join(words(prompt, 6))

        async def keep_asking(first: int) -> None:
            number = first
            while flips < 6 or number < first + 25:
                await ask(number)
                number += 1

        flips = 0
        asking = [asyncio.ensure_future(keep_asking(10_000 * client)) for client in range(8)]
        while not (all(each.done() for each in asking) or any(each.done() and each.exception() for each in asking)):
            await it.kit.apply(next(tables))
            flips += 1
            await asyncio.sleep(0.005)
        await asyncio.gather(*asking)
        assert flips > 3
        handed_over = [(source, engine.id) for engine in engines for source in pulls(engine)]
        assert handed_over, "nothing was ever handed over"
        assert all(source != by for source, by in handed_over), "an engine was told to pull from itself"
        await until(it.kit.idle)
