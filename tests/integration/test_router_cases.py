"""Bugs that users of other routers reported (tests/data/router_cases.jsonl: input, source, right behaviour), each with its
whole kind, against engines that write down every leg."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from controlplane.core import kvsize
from controlplane.router import prefixes
from controlplane.router.upstream import Fault
from tests.integration import router_engine as act
from tests.integration.router_engine import FakeEngine, Leg, words
from tests.integration.router_kit import (
    Pair,
    ask_until,
    fakes,
    pair,
    parse_events,
    route_of,
    running,
    split_model,
    text_of,
    until,
    whole_model,
    with_engines,
)
from tests.unit.model_configs import config, shape

ROOT = Path(__file__).parents[2]
CASES: dict[str, dict[str, Any]] = {
    row["name"]: row for row in map(json.loads, (ROOT / "tests/data/router_cases.jsonl").read_text().splitlines())
}
ELSEWHERE = {"planner_infeasible_ttft", "advisor_short_prompt"}
"""Not about routers, nor about sizes of a KV cache."""
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BOTH = [CHAT, COMPLETIONS]
MODEL = {"name": "mock"}
TESTED: set[str] = set()

T = TypeVar("T", bound=Callable[..., Any])


def case(name: str) -> Callable[[T], T]:
    assert name in CASES, name
    TESTED.add(name)
    return lambda test: test


def body_of(name: str, path: str = "", **changes: Any) -> dict[str, Any]:
    """The case's body with changes (None takes a field away), in the shape of `path`."""
    body = {**CASES[name]["body"], **changes}
    if path == COMPLETIONS and "messages" in body:
        body["prompt"] = body.pop("messages")[0]["content"]
    if path == CHAT and "prompt" in body:
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
    return {field: value for field, value in body.items() if value is not None}


def only(legs: list[Leg]) -> Leg:
    assert len(legs) == 1
    return legs[0]


def kinds(two: Pair) -> tuple[list[Leg], list[Leg]]:
    """All generations: (prefill legs, the others)."""
    legs = [leg for engine in (*two.prefills, *two.decodes) for leg in engine.generations()]
    kept = [leg for leg in legs if (leg.body.get("kv_transfer_params") or {}).get("do_remote_decode")]
    return kept, [leg for leg in legs if leg not in kept]


def split_legs(two: Pair) -> tuple[dict[str, Any], dict[str, Any]]:
    """The bodies of the two legs of the only request; the decode leg's without what came of the prefill."""
    prefill, decode = map(only, kinds(two))
    params = decode.body.pop("kv_transfer_params")
    assert params["do_remote_prefill"] is True
    assert prefill.body.pop("kv_transfer_params") == {"do_remote_decode": True, "do_remote_prefill": False}
    assert prefill.body["stream"] is False
    return prefill.body, decode.body


def test_every_case_has_its_test() -> None:
    assert len(CASES) == 23
    assert set(CASES) - ELSEWHERE == TESTED


@case("kv_calc_swa")
def test_layers_with_a_window_do_not_grow_beyond_it() -> None:
    model = config("gpt-oss-120b")
    assert (kvsize.kv_bytes_per_token(model, "bf16"), kvsize.fixed_bytes_per_request(model, "bf16")) == (36_864, 4_718_592)
    assert kvsize.reserved_bytes_per_token(shape("gpt-oss-120b"), "bf16") == 73_728


@case("prefill_max_completion_tokens")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize("limits", [(None, 64), (64, None), (64, 64), (None, None)])
async def test_a_prefill_makes_one_token_whatever_the_limit_is_called(
    tmp_path: Path, limits: tuple[int | None, int | None], path: str, stream: bool
) -> None:
    name = "prefill_max_completion_tokens"
    body = body_of(name, path, max_tokens=limits[0], max_completion_tokens=limits[1], stream=stream or None)
    async with pair(tmp_path, **MODEL) as two:
        response = await two.kit.post(body, path)
        prefill, decode = split_legs(two)
        assert prefill["max_tokens"] == 1
        assert prefill.get("max_completion_tokens") == (1 if limits[1] else None)
        decode.pop("stream_options", None)
        assert decode == body
        if any(limits) and not stream:
            assert response.json()["usage"]["completion_tokens"] == 64


@case("no_max_tokens_not_zero")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BOTH)
async def test_what_the_client_left_out_is_left_out(tmp_path: Path, path: str, stream: bool) -> None:
    body = body_of("no_max_tokens_not_zero", path, stream=stream or None)
    async with pair(tmp_path, **MODEL) as two:
        assert (await two.kit.post(body, path)).status_code == 200
        _, decode = split_legs(two)
        assert set(decode) - {"stream_options"} == set(body)


@case("min_tokens_gt_1")
@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize("least", [0, 1, 2, 10, 50])
async def test_the_least_number_of_tokens_is_asked_of_the_decode_engine_only(tmp_path: Path, least: int, path: str) -> None:
    body = body_of("min_tokens_gt_1", path, min_tokens=least)
    async with pair(tmp_path, **MODEL) as two:
        response = await two.kit.post(body, path)
        assert response.json()["usage"]["completion_tokens"] == 50
        prefill, decode = split_legs(two)
        assert "min_tokens" not in prefill
        assert decode == body


@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize(
    "wrong",
    [
        {"min_tokens": 51},
        {"stream_options": {"include_usage": True}},
        {"max_tokens": 0, "min_tokens": None},
        {"max_tokens": 60_000_000, "min_tokens": 60_000_001},
    ],
    ids=str,
)
async def test_what_only_the_decode_engine_would_refuse_takes_no_prefill(
    tmp_path: Path, wrong: dict[str, Any], path: str
) -> None:
    """The KV of such a prefill would be held until its lease ends."""
    async with pair(tmp_path, **MODEL) as two:
        response = await two.kit.post(body_of("min_tokens_gt_1", path, **wrong), path)
        assert response.status_code == 400
        assert route_of(response)["reason"] == "unsupported_split"
        prefills, others = kinds(two)
        assert (len(prefills), len(others)) == (0, 1)
        assert all(engine.usable for engine in two.kit.router.directory.all_engines())


@case("stream_options_on_prefill")
@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize(
    "options",
    [{"include_usage": True}, {"include_usage": True, "continuous_usage_stats": False}, {"include_usage": 1}],
    ids=str,
)
async def test_a_stream_that_asked_for_usage_ends_with_one_usage_event(
    tmp_path: Path, options: dict[str, Any], path: str
) -> None:
    async with pair(tmp_path, **MODEL) as two:
        events = await two.kit.events(body_of("stream_options_on_prefill", path, stream_options=options), path)
        prefill, decode = split_legs(two)
        assert "stream_options" not in prefill
        assert decode["stream_options"] == options
        *tokens, last, done = events
        assert done == "[DONE]"
        assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 8)
        assert len(tokens) == 8
        assert not [event for event in tokens if event.get("usage")]


@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"continuous_usage_stats": True}], ids=str)
async def test_a_stream_that_did_not_ask_for_usage_has_none(tmp_path: Path, options: Any, path: str) -> None:
    async with pair(tmp_path, **MODEL) as two:
        events = await two.kit.events(body_of("stream_options_on_prefill", path, stream_options=options), path)
        _, decode = split_legs(two)
        assert decode["stream_options"]["include_usage"] is True
        assert not decode["stream_options"].get("continuous_usage_stats")
        assert (len(events), events[-1]) == (9, "[DONE]")
        assert not [event for event in events[:-1] if event.get("usage")]


@case("sse_content_type")
@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize("split", [True, False])
async def test_each_event_arrives_before_the_next_is_made(tmp_path: Path, path: str, split: bool) -> None:
    read = asyncio.Semaphore(1)

    async def in_step(engine: FakeEngine, leg: Leg) -> None:
        await act.begin_stream(leg)
        for token in words(act.prompt_of(leg.body), 4):
            await read.acquire()  # until the client has the one before
            await act.send_event(leg, act.event(leg.body, token))
        await read.acquire()
        await act.send_event(leg, b"[DONE]")
        leg.writer.write(b"0\r\n\r\n")

    body = body_of("sse_content_type", path)
    async with pair(tmp_path, mode="disaggregated" if split else "monolithic", name="mock") as two:
        two.d1.always = two.d2.always = in_step
        got = b""
        async with two.kit.client.stream("POST", two.kit.url + path, json=body) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            assert "content-length" not in response.headers
            async for part in response.aiter_bytes():
                got += part
                read.release()
        events = parse_events(got)
        assert text_of(events) == "".join(words(body.get("messages") or body["prompt"], 4))
        assert (len(events), events[-1]) == (5, "[DONE]")


@case("prefill_400_no_hang")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BOTH)
async def test_a_prompt_that_is_too_long_is_refused_by_the_prefill_alone(tmp_path: Path, path: str, stream: bool) -> None:
    body = body_of("prefill_400_no_hang", path, messages=[{"role": "user", "content": "word " * 300_000}], stream=stream)
    async with pair(tmp_path, **MODEL) as two:
        response = await two.kit.post(body, path)
        assert response.status_code == 400
        assert "maximum context length" in response.json()["error"]["message"]
        prefills, others = kinds(two)
        assert (len(prefills), len(others)) == (1, 0)
        assert all(engine.usable for engine in two.kit.router.directory.all_engines())
        await until(two.kit.idle, "idle")


@pytest.mark.parametrize("status", [400, 404, 413, 422, 429])
async def test_any_refusal_by_the_prefill_is_the_clients_at_once(tmp_path: Path, status: int) -> None:
    async with pair(tmp_path, **MODEL) as two:
        two.p1.always = two.p2.always = act.answer(status, extra="retry-after: 7\r\n")
        response = await two.kit.post(body_of("prefill_400_no_hang"), CHAT)
        assert (response.status_code, response.headers["retry-after"]) == (status, "7")
        assert [len(legs) for legs in kinds(two)] == [1, 0]
        assert not len(two.kit.router.ledger)


@case("no_prefill_ready_strict")
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("missing", ["prefill", "decode"])
@pytest.mark.parametrize("why", ["absent", "draining", "set aside"])
async def test_a_pool_without_engines_is_an_error_if_strict_else_shown(
    tmp_path: Path, why: str, missing: str, strict: bool
) -> None:
    async with pair(tmp_path, prefills=1, decodes=1, strict=strict, **MODEL) as two:
        gone = two.p1 if missing == "prefill" else two.d1
        route = split_model([two.p1], [two.d1], strict=strict, **MODEL)
        if why == "absent":
            await two.kit.apply(replace(route, engines=tuple(each for each in route.engines if each.id != gone.id)))
        elif why == "draining":
            await two.kit.apply(with_engines(route, lambda e: replace(e, state="draining") if e.id == gone.id else e))
        else:
            engine = next(each for each in two.kit.router.directory.all_engines() if each.route.id == gone.id)
            two.kit.router.engine_failed(engine, Fault("closed", sent=True))
        response = await two.kit.post(body_of("no_prefill_ready_strict"), CHAT)
        prefills, others = kinds(two)
        if strict:
            assert (response.status_code, response.json()["error"]["code"]) == (503, "no_engine")
            assert int(response.headers["retry-after"]) >= 1
            assert (prefills, others) == ([], [])
        else:
            assert response.status_code == 200
            assert (route_of(response)["path"], route_of(response)["reason"]) == ("monolithic", f"{missing}_unavailable")
            assert (len(prefills), len(others)) == (0, 1)
            page = (await two.kit.client.get(two.kit.url + "/metrics")).text
            assert f'reason="{missing}_unavailable"' in page


@case("decode_dies_before_dispatch")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_decode_engine_that_is_gone_is_replaced(tmp_path: Path, stream: bool) -> None:
    body = body_of("decode_dies_before_dispatch", stream=stream)
    async with pair(tmp_path, **MODEL) as two:
        await two.d1.stop()

        def ask(number: int) -> dict[str, Any]:
            return {**body, "messages": [{"role": "user", "content": f"hello {number}"}]}

        answers = await ask_until(two.kit, two.kit.router.set_aside, ask, CHAT)
        assert {(answer.status_code, route_of(answer)["decode"]) for answer in answers} == {(200, "d2")}
        assert [len(legs) for legs in kinds(two)] == [len(answers)] * 2
        await until(two.kit.idle, "idle")


@pytest.mark.parametrize("strict", [True, False])
async def test_without_any_decode_engine_the_client_is_told_or_one_engine_does_all(tmp_path: Path, strict: bool) -> None:
    async with pair(tmp_path, strict=strict, **MODEL) as two:
        await two.d1.stop()
        await two.d2.stop()
        response = await two.kit.post(body_of("decode_dies_before_dispatch"), CHAT)
        if strict:
            assert response.status_code == 502
        else:
            assert (response.status_code, route_of(response)["reason"]) in [(200, "decode_lost"), (502, "engine_fault")]
        await until(two.kit.idle, "idle")


@case("client_disconnect_after_prefill")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BOTH)
async def test_kv_is_fetched_for_a_client_that_left_between_the_legs(tmp_path: Path, path: str, stream: bool) -> None:
    """The decode engine that fetches it tells the prefill engine, which gives its blocks free."""
    body = body_of("client_disconnect_after_prefill", path, stream=stream)
    async with pair(tmp_path, prefills=1, decodes=1, **MODEL) as two:
        left = asyncio.Event()

        async def leave(engine: FakeEngine, leg: Leg) -> None:
            await act.behave(engine, leg)
            request.cancel()
            left.set()

        two.p1.acts = [leave]
        two.d1.acts = [act.once(left.wait)]
        request = asyncio.ensure_future(two.kit.post(body, path))
        await asyncio.gather(request, return_exceptions=True)
        ledger = two.kit.router.ledger
        await until(lambda: ledger.totals["pulled"] + ledger.totals["client_gone"] == 1, "ended")
        assert len(ledger) == 0
        fetching = only(two.d1.generations())
        assert fetching.body["kv_transfer_params"]["remote_engine_id"] == "p1"
        await until(two.kit.idle, "idle")
        assert two.kit.router.releasing == 0


@case("max_tokens_1")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize("count", [1, 2])
async def test_the_prefills_token_is_not_given_twice(tmp_path: Path, count: int, path: str, stream: bool) -> None:
    body = body_of("max_tokens_1", path, max_tokens=count)
    expected = "".join(words(body.get("messages") or body["prompt"], count))
    async with pair(tmp_path, **MODEL) as two:
        if stream:
            events = await two.kit.events({**body, "stream_options": {"include_usage": True}}, path)
            assert text_of(events) == expected
            assert (events[-3]["choices"][0]["finish_reason"], events[-2]["usage"]["completion_tokens"]) == ("length", count)
        else:
            answer = (await two.kit.post(body, path)).json()
            choice = only(answer["choices"])
            assert (choice.get("text") or choice["message"]["content"]) == expected
            assert (choice["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", count)
        assert [len(legs) for legs in kinds(two)] == [1, 1]


@case("n_gt_1")
@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize("n", [1, 2, 3])
async def test_as_many_answers_as_were_asked_for(tmp_path: Path, n: int, path: str) -> None:
    body = body_of("n_gt_1", path, n=n)
    async with pair(tmp_path, **MODEL) as two:
        response = await two.kit.post(body, path)
        answer = response.json()
        assert [choice["index"] for choice in answer["choices"]] == list(range(n))
        assert answer["usage"]["completion_tokens"] == 4 * n
        assert [len(legs) for legs in kinds(two)] == ([1, 1] if n == 1 else [0, 1])
        assert route_of(response)["reason"] == ("disaggregated" if n == 1 else "unsupported_split")
        events = await two.kit.events(body, path)
        assert {event["choices"][0]["index"] for event in events[:-1]} == set(range(n))
        assert len(events) == 4 * n + 1


@case("prompt_logprobs_echo")
@pytest.mark.parametrize("stream", [False, True])
async def test_an_echo_begins_with_the_prompt(tmp_path: Path, stream: bool) -> None:
    body = body_of("prompt_logprobs_echo")
    expected = "a b c" + "".join(words("a b c", 2))
    async with pair(tmp_path, **MODEL) as two:
        if stream:
            await two.kit.events(body)
        else:
            choice = (await two.kit.post(body)).json()["choices"][0]
            assert choice["text"] == expected
            assert choice["logprobs"]["tokens"][0] == "a b c"
        assert [len(legs) for legs in kinds(two)] == [0, 1]
        assert kinds(two)[1][0].body["echo"] is True


@pytest.mark.parametrize("wanted", [0, 1, 5, -1])
async def test_logprobs_of_the_prompt_come_from_an_engine_that_computed_it(tmp_path: Path, wanted: int) -> None:
    body = body_of("prompt_logprobs_echo", echo=None, prompt_logprobs=wanted)
    async with pair(tmp_path, **MODEL) as two:
        response = await two.kit.post(body)
        assert response.json()["choices"][0]["prompt_logprobs"] == [None, "b", "c"]
        assert route_of(response)["reason"] == "unsupported_split"


@case("prompt_token_ids")
@pytest.mark.parametrize(
    ("prompt", "tokens", "choices"),
    [
        ([1, 2, 3, 4, 5], 5, 1), ([[1, 2, 3, 4, 5]], 5, 1), (["one prompt"], 3, 1),
        ([[1, 2], [3]], 3, 2), (["a", "b"], 0, 2), (["a", "b", "c"], 0, 3),
    ],
    ids=str,
)  # fmt: skip
async def test_every_shape_of_a_prompt_is_counted_and_answered(
    tmp_path: Path, prompt: Any, tokens: int, choices: int
) -> None:
    async with pair(tmp_path, **MODEL) as two:
        response = await two.kit.post(body_of("prompt_token_ids", prompt=prompt))
        answer = response.json()
        assert answer["usage"]["prompt_tokens"] == tokens
        assert [choice["index"] for choice in answer["choices"]] == list(range(choices))
        assert [len(legs) for legs in kinds(two)] == ([1, 1] if choices == 1 else [0, 1])
        assert kinds(two)[1][0].body["prompt"] == prompt


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"dp_rank": {}}}}}


@case("response_format_json_schema")
@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}},
        {"response_format": None, "structured_outputs": {"regex": "[0-9]+"}},
        {"response_format": None, "tools": [TOOL]},
        {"response_format": None, "tools": [TOOL], "tool_choice": "none"},
        {"stop": ["\n"], "seed": 7, "logit_bias": {"1": -100}, "user": "u", "cache_salt": "s", "priority": 0},
        {"logprobs": True, "top_logprobs": 3, "bad_words": ["x"], "allowed_token_ids": [1], "ignore_eos": True},
        {"reasoning_effort": "low", "chat_template_kwargs": {"thinking": True}, "parallel_tool_calls": False},
    ],
    ids=str,
)
async def test_both_legs_have_the_same_prompt_and_grammar(tmp_path: Path, extra: dict[str, Any]) -> None:
    body = body_of("response_format_json_schema", **extra)
    async with pair(tmp_path, **MODEL) as two:
        assert (await two.kit.post(body, CHAT)).status_code == 200
        prefill, decode = split_legs(two)
        assert decode == body
        assert prefill == {**body, "max_tokens": 1, "stream": False}


@case("usage_cached_tokens")
@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize("cached", [0, 3])
async def test_cached_tokens_are_what_the_prefill_engine_had(tmp_path: Path, cached: int, path: str) -> None:
    body = body_of("usage_cached_tokens", path)
    async with pair(tmp_path, **MODEL) as two:
        for engine in (*two.prefills, *two.decodes):
            engine.cached = cached
        answer = (await two.kit.post(body, path)).json()
        assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": cached}
        events = await two.kit.events({**body, "stream_options": {"include_usage": True}}, path)
        assert events[-2]["usage"]["prompt_tokens_details"] == {"cached_tokens": cached}
        assert events[-2]["usage"]["completion_tokens"] == 2


@case("models_endpoint")
async def test_the_models_page_lists_what_is_served(tmp_path: Path) -> None:
    async with pair(tmp_path, aliases=("other",), **MODEL) as two:
        response = await two.kit.client.get(two.kit.url + "/v1/models")
        assert response.status_code == 200
        document = response.json()
        assert document["object"] == "list"
        assert [(row["id"], row["object"]) for row in document["data"]] == [("mock", "model"), ("other", "model")]
        assert [len(legs) for legs in kinds(two)] == [0, 0]


async def test_an_adapter_goes_to_both_engines_under_its_own_name(tmp_path: Path) -> None:
    async with pair(tmp_path, aliases=("other",), adapters=("tuned",), **MODEL) as two:
        for name, served in (("other", "mock"), ("tuned", "tuned"), ("mock", "mock")):
            prompt = f"{name} " * 400
            assert (await two.kit.post({"model": name, "prompt": prompt, "max_tokens": 2})).status_code == 200
            prefills, others = kinds(two)
            assert [leg.body["model"] for leg in (*prefills, *others) if leg.body["prompt"] == prompt] == [served] * 2
        rows = (await two.kit.client.get(two.kit.url + "/v1/models")).json()["data"]
        assert [(row["id"], row["root"], row.get("parent")) for row in rows] == [
            ("mock", "mock", None), ("other", "mock", None), ("tuned", "tuned", "mock"),
        ]  # fmt: skip


async def test_a_prompt_that_the_model_knows_is_new_to_its_adapter(tmp_path: Path) -> None:
    async with pair(tmp_path, prefills=1, decodes=1, adapters=("tuned",), **MODEL) as two:
        prompt = "x" * 4000
        seen = []
        for name in ("mock", "tuned", "tuned"):
            keys = prefixes.of({"prompt": prompt}, name).keys
            seen.append(bool(two.kit.router.directory.index.match(keys)))
            await two.kit.post({"model": name, "prompt": prompt, "max_tokens": 2})
        assert seen == [False, False, True]


@case("unknown_model")
@pytest.mark.parametrize("path", [*BOTH, "/v1/embeddings", "/v1/responses", "/v1/messages", "/v1/score", "/v1/rerank"])
@pytest.mark.parametrize("model", ["nope", "Mock", "mock ", "mock\0", "../mock"])
async def test_an_unknown_model_reaches_no_engine(tmp_path: Path, model: str, path: str) -> None:
    async with pair(tmp_path, **MODEL) as two:
        response = await two.kit.post(body_of("unknown_model", model=model), path)
        assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
        assert response.json()["error"]["param"] == "model"
        assert [len(legs) for legs in kinds(two)] == [0, 0]


@case("scale_down_drain")
@pytest.mark.parametrize("how", ["draining", "removed"])
@pytest.mark.parametrize("path", BOTH)
async def test_streams_of_an_engine_that_is_taken_away_are_finished(tmp_path: Path, path: str, how: str) -> None:
    body = body_of("scale_down_drain", path, max_tokens=40)
    async with pair(tmp_path, **MODEL) as two:
        for engine in two.decodes:
            engine.step_s = 0.02
        request = asyncio.ensure_future(two.kit.post(body, path))
        going = await until(lambda: next((engine for engine in two.decodes if engine.legs), None), "streaming")
        staying = two.d2 if going is two.d1 else two.d1
        if how == "draining":
            route = split_model(two.prefills, two.decodes, **MODEL)
            await two.kit.apply(with_engines(route, lambda e: replace(e, state="draining") if e.id == going.id else e))
        else:
            await two.kit.apply(split_model(two.prefills, [staying], **MODEL))
        later = [await two.kit.post({**body, "max_tokens": 2, "stream": False}, path) for _ in range(4)]
        assert {(answer.status_code, route_of(answer)["decode"]) for answer in later} == {(200, staying.id)}
        events = parse_events((await request).content)
        assert text_of(events) == "".join(words(body.get("messages") or body["prompt"], 40))
        assert events[-1] == "[DONE]"
        assert len(going.legs) == 1


WHOLE_PATHS = ["/v1/embeddings", "/v1/responses", "/v1/messages", "/v1/score", "/v1/rerank"]


@case("responses_endpoint")
@pytest.mark.parametrize("path", WHOLE_PATHS)
@pytest.mark.parametrize("mode", ["disaggregated", "monolithic"])
async def test_other_paths_are_answered_by_one_engine(tmp_path: Path, mode: str, path: str) -> None:
    async with pair(tmp_path, mode=mode, **MODEL) as two:
        body = {**body_of("responses_endpoint"), "kv_transfer_params": {"do_remote_prefill": True}}
        response = await two.kit.post(body, path)
        assert (response.status_code, response.json()["path"]) == (200, path)
        assert route_of(response)["reason"] == "whole_endpoint"
        assert only(kinds(two)[1]).body == body_of("responses_endpoint")


@pytest.mark.parametrize("field", ["previous_response_id", "conversation", "background"])
async def test_a_response_that_builds_on_another_is_refused(tmp_path: Path, field: str) -> None:
    """The other may be on another engine."""
    async with pair(tmp_path, **MODEL) as two:
        refused = await two.kit.post({**body_of("responses_endpoint"), field: "resp_1"}, "/v1/responses")
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "stateless_responses")
        assert refused.json()["error"]["param"] == field
        assert [len(legs) for legs in kinds(two)] == [0, 0]
        taken = await two.kit.post({**body_of("responses_endpoint"), field: None, "store": True}, "/v1/responses")
        assert taken.status_code == 200


@case("health_reflects_pools")
@pytest.mark.parametrize("page", ["/health", "/readyz"])
async def test_health_is_good_only_with_an_engine_in_each_pool(tmp_path: Path, page: str) -> None:
    async with fakes("p1", "d1") as (p1, d1), running(tmp_path, split_model([p1], [], **MODEL)) as kit:

        async def status() -> int:
            return (await kit.client.get(kit.url + page)).status_code

        assert await status() == 503
        await kit.apply(split_model([], [d1], **MODEL))
        assert await status() == 503
        await kit.apply(split_model([p1], [d1], **MODEL))
        assert await status() == 200
        await kit.apply(with_engines(split_model([p1], [d1], **MODEL), lambda e: replace(e, state="draining")))
        assert await status() == 503
        await kit.apply(whole_model(d1, **MODEL))
        assert await status() == 200
        assert [leg.body["prompt"] for leg in d1.legs] == ["ping"]


@pytest.mark.parametrize("fault", [act.answer(503), act.close, act.answer(401), act.hang, act.garbage], ids=str)
async def test_health_is_not_good_before_engines_have_generated(tmp_path: Path, fault: act.Act) -> None:
    async with fakes("p1", "d1") as (p1, d1), running(tmp_path, split_model([p1], [d1], **MODEL)) as kit:
        d1.acts = [fault]

        async def page() -> Any:
            return (await kit.client.get(kit.url + "/readyz")).json()

        first = await page()
        assert (first["status"], first["models"]["mock"]["missing"]) == ("not ready", ["decode"])
        d1.drop_connections()  # the hung one fails at last
        for _ in range(500):
            if (await page())["status"] == "ready":
                break
            await asyncio.sleep(0.05)
        assert (await kit.client.get(kit.url + "/health")).status_code == 200


async def test_a_model_that_does_not_generate_may_be_ready(tmp_path: Path) -> None:
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine, **MODEL)) as kit:
        engine.acts = [act.answer(404)]
        assert (await kit.client.get(kit.url + "/readyz")).status_code == 200
