"""A stream whose engine dies goes on elsewhere as if nothing had happened, where that is right; else it ends in an error."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controlplane.core.protocol import RequestRow
from tests.integration import router_engine as act
from tests.integration.router_engine import FakeEngine, Leg, words
from tests.integration.router_kit import (
    QUICK,
    TEXT,
    fakes,
    pair,
    parse_events,
    route_of,
    running,
    text_of,
    until,
    whole_model,
)
from tests.integration.test_router_keys import ask, key

NOVEL = [word + (" \n" if index % 7 == 6 else "") for index, word in enumerate(words("a novel", 60))]
"""What a model has to say, token by token; some end with white space."""
PROMPT_TOKENS = 5
GREEDY = {**TEXT, "temperature": 0, "max_tokens": 30, "stream": True}
CHAT = {**GREEDY, "messages": [{"role": "user", "content": "hello there"}]}
del CHAT["prompt"]


def said(body: dict[str, Any]) -> str:
    """The part of the novel that a prompt ends with."""
    if "messages" in body:
        last = body["messages"][-1]
        goes_on = body.get("continue_final_message") and body.get("add_generation_prompt") is False
        assert (last["role"] == "assistant") == bool(goes_on)
        return last["content"] if goes_on else ""
    prompt = body["prompt"]
    if isinstance(prompt, list):
        return "".join(NOVEL[token - 1000] for token in prompt if token >= 1000)
    return prompt.removeprefix("hello there")


def read_again(text: str) -> int:
    """How many tokens of the novel `text` is."""
    for count in range(len(NOVEL) + 1):
        if "".join(NOVEL[:count]).rstrip() == text.rstrip():
            return count
    raise AssertionError(f"{text!r} is no beginning")


def novelist(dies_after: int | None = None, tokens_an_event: int = 1, **last: Any) -> act.Act:
    """Tells the novel from where the prompt ends. Dies after so many tokens."""

    async def tell(engine: FakeEngine, leg: Leg) -> None:
        body = leg.body
        if leg.path == "/tokenize":
            count = read_again(body["prompt"])
            await act.reply(leg, 200, {"count": count, "tokens": [1000 + index for index in range(count)]})
            return
        if not body.get("stream"):
            await act.behave(engine, leg)
            return
        text = said(body)
        start = read_again(text)
        rest = "".join(NOVEL)[len(text) :]
        tokens = [rest[: len("".join(NOVEL[: start + 1])) - len(text)], *NOVEL[start + 1 :]]
        limit = body.get("max_tokens", 16)
        await act.begin_stream(leg)
        if "messages" in body:
            await act.send_event(leg, {**first_of_chat(), "id": f"of-{engine.id}"})
        said_tokens = limit if dies_after is None else min(limit, dies_after)
        dies = said_tokens == dies_after
        for at in range(0, said_tokens, tokens_an_event):
            part = "".join(tokens[at : min(limit, at + tokens_an_event)])
            ends = at + tokens_an_event >= limit and not dies
            await act.send_event(leg, {**act.event(body, part, "length" if ends else None), "id": f"of-{engine.id}"})
        if dies:
            if last:
                await act.send_event(leg, {"choices": [{"index": 0, "text": "", **last}]})
            await asyncio.sleep(0.02)
            leg.writer.transport.abort()
            return
        if (body.get("stream_options") or {}).get("include_usage"):
            usage = {"prompt_tokens": PROMPT_TOKENS + start, "completion_tokens": limit}
            await act.send_event(leg, {"id": "x", "choices": [], "usage": {**usage, "total_tokens": sum(usage.values())}})
        await act.send_event(leg, b"[DONE]")
        leg.writer.write(b"0\r\n\r\n")
        await leg.writer.drain()

    return tell


def first_of_chat() -> dict[str, Any]:
    return {"id": "x", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}


def path_of(body: dict[str, Any]) -> str:
    return "/v1/chat/completions" if "messages" in body else "/v1/completions"


def check(content: bytes, tokens: int, usage: bool) -> None:
    """One coherent stream with all of the answer."""
    events = parse_events(content)
    assert events[-1] == "[DONE]"
    assert text_of(events) == "".join(NOVEL[:tokens])
    documents = [event for event in events if isinstance(event, dict)]
    choices = [event["choices"][0] for event in documents if event["choices"]]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"]
    assert len({event["id"] for event in documents if event["choices"]}) == 1
    assert sum("role" in choice.get("delta", {}) for choice in choices) <= 1
    told = [event["usage"] for event in documents if event.get("usage")]
    if usage:
        assert told == [
            {
                "prompt_tokens": PROMPT_TOKENS,
                "completion_tokens": tokens,
                "total_tokens": PROMPT_TOKENS + tokens,
            }
        ]
    else:
        assert told == []


@pytest.mark.parametrize("usage", [True, False])
@pytest.mark.parametrize("body", [GREEDY, CHAT], ids=["completions", "chat"])
@pytest.mark.parametrize("after", [1, 7, 29])
async def test_another_engine_goes_on_with_the_same_stream(
    tmp_path: Path, body: dict[str, Any], usage: bool, after: int
) -> None:
    async with fakes("e1", "e2") as engines, running(tmp_path, whole_model(*engines)) as kit:
        rows: list[RequestRow] = []
        kit.router.telemetry.request = rows.append  # type: ignore[method-assign]
        for engine in engines:
            engine.always = novelist()
            engine.acts = [novelist(dies_after=after)]
        engines[1].acts = []
        while engines[0].acts:
            asked = {**body, "stream_options": {"include_usage": True}} if usage else body
            check((await kit.post(asked, path_of(body))).content, 30, usage)
        await until(kit.idle, "idle")
        assert (rows[-1].outcome, rows[-1].output_tokens, rows[-1].prompt_tokens) == ("ok", 30, PROMPT_TOKENS)
        assert kit.router.counters.resumed == 1


async def test_a_sampled_stream_without_a_seed_goes_on_too(tmp_path: Path) -> None:
    async with fakes("e1", "e2") as engines, running(tmp_path, whole_model(*engines)) as kit:
        engines[0].acts, engines[0].always = [novelist(dies_after=5)], novelist()
        engines[1].always = novelist()
        while engines[0].acts:
            check((await kit.post({**GREEDY, "temperature": 0.7, "stop": ["THE END"]})).content, 30, False)


async def test_a_prompt_of_token_ids_goes_on_with_token_ids(tmp_path: Path) -> None:
    async with fakes("e1", "e2") as engines, running(tmp_path, whole_model(*engines)) as kit:
        engines[0].acts, engines[0].always = [novelist(dies_after=5, tokens_an_event=2)], novelist()
        engines[1].always = novelist()
        while engines[0].acts:
            check((await kit.post({**GREEDY, "prompt": [1, 2, 3, 4, 5]})).content, 30, False)
        assert engines[1].generations()[-1].body["prompt"] == [1, 2, 3, 4, 5, *range(1000, 1006)]


async def test_in_disaggregated_mode_both_legs_are_made_again_elsewhere(tmp_path: Path) -> None:
    async with pair(tmp_path, prefills=1) as two:
        for engine in two.decodes:
            engine.always = novelist()
        two.d1.acts = [novelist(dies_after=9)]
        while two.d1.acts:
            check((await two.kit.post(GREEDY)).content, 30, False)
        rest = two.d2.generations()[-1].body
        assert rest["max_tokens"] == 21
        assert rest["kv_transfer_params"]["remote_engine_id"] == "p1"
        await until(two.kit.idle, "idle")


@pytest.mark.parametrize("last", [{"finish_reason": "length"}, {}], ids=["finished", "all tokens"])
async def test_a_stream_of_which_only_the_end_is_missing_is_ended(tmp_path: Path, last: dict[str, Any]) -> None:
    async with pair(tmp_path, prefills=1, decodes=1) as two:
        two.d1.acts = [novelist(dies_after=30, **last)]
        two.d1.always = two.p1.always = novelist()
        events = parse_events((await two.kit.post({**GREEDY, "max_tokens": 40 if last else 30})).content)
        if last:
            assert text_of(events) == "".join(NOVEL[:30])
        assert [event["choices"][0]["finish_reason"] for event in events[-2:-1]] == ["length"]
        assert events[-1] == "[DONE]"
        assert len(two.d1.generations()) == 1


NOT = {
    "a seed": {"temperature": 1, "seed": 3},
    "penalties": {"frequency_penalty": 0.5},
    "guided decoding": {"response_format": {"type": "json_object"}},
    "something unknown": {"some_new_field": 1},
    "tools": {"tools": [{"type": "function", "function": {"name": "f"}}]},
}


@pytest.mark.parametrize("fields", NOT.values(), ids=NOT)
async def test_what_another_engine_cannot_go_on_with_ends_with_an_error(tmp_path: Path, fields: dict[str, Any]) -> None:
    async with fakes("e1", "e2") as engines, running(tmp_path, whole_model(*engines)) as kit:
        for engine in engines:
            engine.always = novelist(dies_after=5)
        content = (await kit.post({**GREEDY, **fields})).content
        assert b'"code":"engine_fault"' in content
        assert b"[DONE]" not in content
        assert kit.router.counters.resumed == 0


async def test_a_rest_that_does_not_fit_is_not_sent(tmp_path: Path) -> None:
    """The template cuts the white space that was sent, and the other engine does not say it again."""

    async def other(engine: FakeEngine, leg: Leg) -> None:
        if leg.path != "/tokenize" and said(leg.body):
            await act.begin_stream(leg)
            await act.send_event(leg, act.event(leg.body, "something else"))
            return
        await novelist(dies_after=7)(engine, leg)

    async with fakes("e1", "e2") as engines, running(tmp_path, whole_model(*engines)) as kit:
        for engine in engines:
            engine.always = other
        content = (await kit.post(GREEDY)).content
        assert b"something else" not in content
        assert b'"code":"engine_fault"' in content
        await until(kit.idle, "idle")
        assert kit.router.set_aside() == ()
        assert sum(kit.router.counters.faults.values()) == 1  # of the engine that died alone


async def test_a_stream_that_kills_every_engine_is_shown_to_few(tmp_path: Path) -> None:
    async with fakes("e1", "e2", "e3", "e4", "e5") as engines, running(tmp_path, whole_model(*engines)) as kit:
        for engine in engines:
            engine.always = novelist(dies_after=2)
        content = (await kit.post(GREEDY)).content
        assert content.count(b"[DONE]") == 0
        assert b'"code":"engine_fault"' in content
        assert text_of([event for event in parse_events(content) if "choices" in event]) == "".join(NOVEL[:6])
        assert sum(len([leg for leg in engine.legs if leg.path != "/tokenize"]) for engine in engines) == 3


async def test_when_no_engine_is_left_the_stream_ends_with_an_error(tmp_path: Path) -> None:
    async with fakes("e1") as engines, running(tmp_path, whole_model(*engines)) as kit:
        engines[0].always = novelist(dies_after=2)
        response = await kit.post(GREEDY)
        assert response.status_code == 200
        assert b'"code":"no_engine"' in response.content or b'"code":"engine_fault"' in response.content
        assert response.content.count(b"HTTP/1.1") == 0


async def test_a_client_that_leaves_while_its_stream_is_carried_on_leaves_nothing(tmp_path: Path) -> None:
    async with fakes("e1", "e2") as engines, running(tmp_path, whole_model(*engines)) as kit:

        async def first_or_hang(engine: FakeEngine, leg: Leg) -> None:
            if leg.path == "/tokenize" or not said(leg.body):
                await novelist(dies_after=3)(engine, leg)
            else:
                await act.hang(engine, leg)

        for engine in engines:
            engine.always = first_or_hang
        request = asyncio.ensure_future(kit.post(GREEDY))
        legs = await until(lambda: [leg for e in engines for leg in e.legs if leg.path != "/tokenize" and said(leg.body)])
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await until(lambda: legs[0].cancelled, "cancelled")
        await until(kit.idle, "idle")


async def test_kv_of_a_carried_on_prompt_is_freed_with_that_prompt(tmp_path: Path) -> None:
    """Its client leaves between the second prefill and the second decode leg."""
    async with pair(tmp_path, prefills=1, limits=replace(QUICK, retry_jitter_s=36_000.0)) as two:
        two.d1.always = two.d2.always = novelist()

        async def dies_alone(engine: FakeEngine, leg: Leg) -> None:
            other = two.d2 if engine is two.d1 else two.d1
            await other.stop()  # so that the next decode leg cannot be sent
            await novelist(dies_after=9)(engine, leg)

        two.d1.acts, two.d2.acts = [dies_alone], [dies_alone]
        request = asyncio.ensure_future(two.kit.post(GREEDY))
        faults = two.kit.router.counters.faults
        await until(lambda: faults[("d1", "connect")] + faults[("d2", "connect")])
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        ended = two.kit.router.ledger.totals
        await until(lambda: ended["pulled"] + ended["client_gone"] == 2)
        legs = [leg for engine in (two.d1, two.d2) for leg in engine.generations() if leg.path != "/tokenize"]
        assert [said(leg.body) for leg in legs] == ["", "".join(NOVEL[:9]).rstrip()]
        assert legs[1].body["max_tokens"] == 1
        await until(two.kit.idle, "idle")


async def test_a_carried_on_stream_says_nothing_about_what_a_prefix_cache_held(tmp_path: Path) -> None:
    """Its first prompt was new to the prefill engine, its second nearly all there."""

    def holding(cached: int) -> act.Act:
        async def prefill(engine: FakeEngine, leg: Leg) -> None:
            engine.cached = cached
            await act.behave(engine, leg)

        return prefill

    body = {**CHAT, "messages": [{"role": "user", "content": "hello there " * 500}]}
    async with pair(tmp_path, prefills=1) as two:
        two.p1.acts = [holding(0), holding(1000)]
        two.d1.always = two.d2.always = novelist()
        two.d1.acts, two.d2.acts = [novelist(dies_after=9)], []
        if route_of(await two.kit.post(body, path_of(body)))["decode"] == "d2":
            two.p1.acts = [holding(0), holding(1000)]
            await two.kit.post({**body, "user": "2"}, path_of(body))
        assert two.kit.router.counters.resumed <= 1
        assert [engine.holder.trust for engine in two.kit.router.directory.engines.values()] == [1.0] * 3


async def test_a_stream_that_lacked_only_its_end_is_charged_for_what_was_sent(tmp_path: Path) -> None:
    keys = (key("k", tokens_per_minute=10_000),)
    async with fakes("e1") as engines, running(tmp_path, whole_model(*engines), require_key=True, keys=keys) as kit:
        engines[0].acts = [novelist(dies_after=30)]
        usual, engines[0].always = engines[0].always, novelist()
        assert parse_events((await ask(kit, "k", GREEDY)).content)[-1] == "[DONE]"
        await until(kit.idle)
        engines[0].always = usual
        after = await ask(kit, "k", {**TEXT, "prompt": "hi"})
    assert int(after.headers["x-ratelimit-remaining-tokens"]) == 10_000 - 30 - 4  # 4: the estimate of what asks


async def test_a_stream_goes_on_in_the_mode_that_its_model_has_by_then(tmp_path: Path) -> None:
    async with pair(tmp_path, prefills=1, decodes=1, strict=True) as two:
        two.d1.always = two.d2.always = novelist()

        async def dies_after_a_toggle(engine: FakeEngine, leg: Leg) -> None:
            await two.kit.apply(whole_model(two.d2, strict=True))
            await novelist(dies_after=9)(engine, leg)

        two.d1.acts = [dies_after_a_toggle]
        check((await two.kit.post(GREEDY)).content, 30, False)
        assert "kv_transfer_params" not in two.d2.generations()[-1].body
        assert len(two.p1.generations()) == 1


async def test_white_space_that_came_from_an_engine_that_died_too_is_expected_again(tmp_path: Path) -> None:
    async def only_white_space(engine: FakeEngine, leg: Leg) -> None:
        await act.begin_stream(leg)
        await act.send_event(leg, act.event(leg.body, " \n"))
        await asyncio.sleep(0.05)
        leg.writer.transport.abort()

    legs = [novelist(dies_after=7), only_white_space, novelist()]

    async def in_order(engine: FakeEngine, leg: Leg) -> None:
        await (legs.pop(0) if leg.path != "/tokenize" else novelist())(engine, leg)

    async with fakes("e1", "e2", "e3") as engines, running(tmp_path, whole_model(*engines)) as kit:
        for engine in engines:
            engine.always = in_order
        check((await kit.post(GREEDY)).content, 30, False)
        assert not legs
