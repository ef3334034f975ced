"""What a request's legs look like on the engines, and what the client gets, when all goes well."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.integration.router_engine import FakeEngine, words
from tests.integration.router_kit import (
    CHAT,
    TEXT,
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

PATHS = [("/v1/completions", TEXT), ("/v1/chat/completions", CHAT)]


def expected(body: dict[str, Any]) -> str:
    return "".join(words(body.get("messages") or body["prompt"], body["max_tokens"]))


@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_a_monolithic_model_is_served_whole(tmp_path: Path, path: str, body: dict[str, Any]) -> None:
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine)) as kit:
        response = await kit.post(body, path)
        assert route_of(response) == {"path": "monolithic", "prefill": "-", "decode": "e1", "reason": "monolithic"}
        assert text_of([response.json() | {"choices": [_as_event(response.json()["choices"][0])]}]) == expected(body)
        assert text_of(await kit.events(body, path)) == expected(body)
        await until(kit.idle, "idle")


def _as_event(choice: dict[str, Any]) -> dict[str, Any]:
    return {"delta": choice["message"]} if "message" in choice else choice


@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_a_split_request_gives_the_text_of_the_whole_one(tmp_path: Path, path: str, body: dict[str, Any]) -> None:
    async with pair(tmp_path) as two:
        response = await two.kit.post(body, path)
        route = route_of(response)
        assert (route["path"], route["reason"]) == ("disaggregated", "disaggregated")
        assert route["prefill"][0] + route["decode"][0] == "pd"
        assert text_of([{"choices": [_as_event(response.json()["choices"][0])]}]) == expected(body)
        events = await two.kit.events(body, path)
        assert text_of(events) == expected(body)
        assert events[-1] == "[DONE]"
        await until(two.kit.idle, "idle")


async def test_the_legs_are_as_vllm_wants_them(tmp_path: Path) -> None:
    body = {**CHAT, "max_completion_tokens": 9, "min_tokens": 3, "stream": True, "stream_options": {"include_usage": True}}
    async with pair(tmp_path, prefills=1, decodes=1) as two:
        await two.kit.post(body, "/v1/chat/completions")
        (prefill,), (decode,) = two.p1.legs, two.d1.legs
        assert prefill.body == {
            "model": "m", "messages": CHAT["messages"], "max_tokens": 1, "max_completion_tokens": 1, "stream": False,
            "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False},
        }  # fmt: skip
        params = decode.body.pop("kv_transfer_params")
        assert params["do_remote_prefill"] is True
        assert params["remote_engine_id"] == "p1"
        assert decode.body == body
        assert prefill.headers["authorization"] == "Bearer key-of-p1"
        assert decode.headers["authorization"] == "Bearer key-of-d1"


async def test_a_field_the_client_left_out_is_not_invented(tmp_path: Path) -> None:
    async with pair(tmp_path) as two:
        await two.kit.post({"model": "m", "prompt": "a b c"})
        (decode,) = two.d1.legs + two.d2.legs
        assert set(decode.body) == {"model", "prompt", "kv_transfer_params"}


async def test_the_clients_bytes_are_passed_on_as_they_are(tmp_path: Path) -> None:
    raw = b'{ "model":"m",\n "prompt":"\\u00e9 x",  "seed":12345678901234567890, "temperature":1.0}\n'
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine)) as kit:
        await kit.post(raw)
        assert engine.legs[0].raw == raw


async def test_usage_is_always_asked_for_and_only_given_when_the_client_asked(tmp_path: Path) -> None:
    async with pair(tmp_path, prefills=1, decodes=1) as two:
        plain = await two.kit.events(TEXT)
        assert two.d1.legs[0].body["stream_options"] == {"include_usage": True}
        assert not [event for event in plain if isinstance(event, dict) and event.get("usage")]
        asked = await two.kit.events({**TEXT, "stream_options": {"include_usage": True}})
        usages = [event["usage"] for event in asked if isinstance(event, dict) and event.get("usage")]
        assert [usage["completion_tokens"] for usage in usages] == [4]


async def test_example_connector_sends_no_parameters_and_prefills_one_token(tmp_path: Path) -> None:
    async with pair(tmp_path, prefills=1, decodes=1, connector="example") as two:
        response = await two.kit.post(TEXT)
        assert route_of(response)["path"] == "disaggregated"
        assert two.p1.legs[0].body == {**TEXT, "max_tokens": 1, "stream": False}
        assert two.d1.legs[0].raw == json.dumps(TEXT).encode()


UNSPLITTABLE: list[dict[str, Any]] = [
    {"n": 2}, {"n": "2"}, {"best_of": 3}, {"echo": True, "logprobs": 1}, {"prompt_logprobs": 0}, {"prompt": ["a", "b"]},
    {"prompt": [[1, 2], [3]]}, {"max_tokens": 0}, {"use_beam_search": True}, {"tool_choice": "required"},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
]  # fmt: skip


@pytest.mark.parametrize("extra", UNSPLITTABLE, ids=str)
async def test_what_cannot_be_split_goes_whole_to_one_engine(tmp_path: Path, extra: dict[str, Any]) -> None:
    async with pair(tmp_path) as two:
        route = route_of(await two.kit.post({**TEXT, **extra}))
        assert (route["path"], route["prefill"], route["reason"]) == ("monolithic", "-", "unsupported_split")
        assert [leg for leg in two.legs() if leg[1]] == []
        assert len(two.legs()) == 1


@pytest.mark.parametrize(
    "extra", [{"n": 1}, {"prompt": [1, 2, 3]}, {"prompt": ["one"]}, {"echo": False}, {"logprobs": 2}], ids=str
)
async def test_what_can_be_split_is(tmp_path: Path, extra: dict[str, Any]) -> None:
    async with pair(tmp_path) as two:
        assert route_of(await two.kit.post({**TEXT, **extra}))["path"] == "disaggregated"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/responses", "/v1/messages", "/v1/score", "/v1/rerank"])
async def test_the_other_paths_are_whole_requests(tmp_path: Path, path: str) -> None:
    async with pair(tmp_path) as two:
        response = await two.kit.post({"model": "m", "input": "x"}, path)
        assert response.json()["path"] == path
        assert route_of(response)["reason"] == "whole_endpoint"


async def test_an_alias_is_sent_under_the_served_name(tmp_path: Path) -> None:
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine, aliases=("other",))) as kit:
        assert (await kit.post({**TEXT, "model": "other"})).status_code == 200
        assert engine.legs[0].body["model"] == "m"


async def test_a_large_answer_that_is_no_stream_passes_through(tmp_path: Path) -> None:
    async def large(engine: FakeEngine, leg: Any) -> None:
        body = b'{"choices":[{"text":"' + b"x" * 3_000_000 + b'"}]}'
        leg.writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body))
        leg.writer.write(body)
        await leg.writer.drain()

    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine)) as kit:
        engine.acts = [large]
        response = await kit.post(TEXT)
        assert len(response.json()["choices"][0]["text"]) == 3_000_000
        assert response.headers["content-length"]


async def test_events_cut_anywhere_by_the_network_come_out_whole(tmp_path: Path) -> None:
    async def drip(engine: FakeEngine, leg: Any) -> None:
        leg.writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        events = b'data: {"choices":[{"text":"ab"}]}\n\ndata: {"choices":[],"usage":{"prompt_tokens":3}}\n\ndata: [DONE]\n\n'
        wire = (
            b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (events[:7], events[7:50], events[50:])) + b"0\r\n\r\n"
        )
        for index in range(0, len(wire), 5):
            leg.writer.write(wire[index : index + 5])
            await leg.writer.drain()

    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine)) as kit:
        engine.acts = [drip]
        response = await kit.post({**TEXT, "stream": True})
        assert parse_events(response.content) == [{"choices": [{"text": "ab"}]}, "[DONE]"]


async def test_conditional_mode_splits_only_long_prompts(tmp_path: Path) -> None:
    async with pair(tmp_path, mode="conditional") as two:
        assert route_of(await two.kit.post(TEXT))["reason"] == "conditional_short"
        long = {**TEXT, "prompt": "word " * 2000}
        assert route_of(await two.kit.post(long))["reason"] == "conditional_remote"


async def test_only_compatible_engines_are_paired(tmp_path: Path) -> None:
    async with fakes("p1", "p2", "d1", "d2") as (p1, p2, d1, d2):
        route = split_model([p1, p2], [d1, d2])
        route = with_engines(route, lambda engine: replace(engine, compat=engine.id[1]))
        async with running(tmp_path, route) as kit:
            for number in range(8):
                found = route_of(await kit.post({**TEXT, "prompt": f"x{number}"}))
                assert found["prefill"][1] == found["decode"][1]


async def test_load_is_spread_over_the_engines(tmp_path: Path) -> None:
    async with pair(tmp_path) as two:
        await ask_until(two.kit, lambda: all(engine.legs for engine in two.prefills + two.decodes))
