"""What clients may ask for, through the router and two real vLLM engines: the answer is the one that one engine gives, split
where that is right and whole where it is not."""

from __future__ import annotations

import json
import random
from typing import Any

import httpx
import pytest

from tests.vllm.harness import MODEL, RealEngine, wait_for
from tests.vllm.router import RouterProcess

Pair = tuple[RealEngine, RealEngine]

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TEXT = "Where does a coroutine wait, and who wakes it up again? " * 4
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}


def tokens(length: int, seed: int) -> list[int]:
    chance = random.Random(f"surface {seed}:{length}")
    return [chance.randrange(3, 2048) for _ in range(length)]


SPLIT: list[tuple[str, dict[str, Any]]] = [
    (COMPLETIONS, {}),
    (COMPLETIONS, {"prompt": [tokens(70, 1)]}),
    (COMPLETIONS, {"prompt": TEXT}),
    (COMPLETIONS, {"prompt": [TEXT], "add_special_tokens": False}),
    (COMPLETIONS, {"max_tokens": 1}),
    (COMPLETIONS, {"min_tokens": 8}),
    (COMPLETIONS, {"logprobs": 3}),
    (COMPLETIONS, {"n": 1, "seed": 7, "temperature": 1.0}),
    (COMPLETIONS, {"stop": ["e", "a"], "include_stop_str_in_output": True}),
    (COMPLETIONS, {"stop_token_ids": list(range(0, 2048, 2))}),
    (COMPLETIONS, {"logit_bias": {"42": 100}, "bad_words": ["the"]}),
    (COMPLETIONS, {"allowed_token_ids": list(range(100, 200)), "frequency_penalty": 1.0, "repetition_penalty": 1.2}),
    (COMPLETIONS, {"return_token_ids": True, "ignore_eos": True, "user": "u", "priority": 0, "cache_salt": "mine"}),
    (COMPLETIONS, {"response_format": {"type": "json_object"}, "max_tokens": 24}),
    (COMPLETIONS, {"structured_outputs": {"choice": ["yes", "no"]}}),
    (CHAT, {}),
    (CHAT, {"max_completion_tokens": 6, "max_tokens": None}),
    (CHAT, {"max_tokens": None, "stop": ["e"]}),
    (CHAT, {"logprobs": True, "top_logprobs": 2}),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": TEXT}]}]}),
    (CHAT, {"messages": [{"role": "system", "content": TEXT}, {"role": "user", "content": "x"}, {"role": "assistant",
     "content": "It waits"}], "continue_final_message": True, "add_generation_prompt": False}),
    (CHAT, {"tools": [TOOL], "tool_choice": "none"}),
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}, "max_tokens": 24}),
]  # fmt: skip
WHOLE: list[tuple[str, dict[str, Any]]] = [
    (COMPLETIONS, {"n": 3, "seed": 7, "temperature": 1.0}),
    (COMPLETIONS, {"prompt": [tokens(70, 2), tokens(40, 3)]}),
    (COMPLETIONS, {"prompt": [TEXT, "another"]}),
    (COMPLETIONS, {"echo": True}),
    (COMPLETIONS, {"echo": True, "logprobs": 1}),
    (COMPLETIONS, {"echo": True, "logprobs": 1, "max_tokens": 0}),
    (COMPLETIONS, {"prompt_logprobs": 2}),
    (COMPLETIONS, {"truncate_prompt_tokens": 20}),
    (COMPLETIONS, {"use_beam_search": True, "n": 2}),
    (CHAT, {"n": 2, "seed": 7, "temperature": 1.0}),
    (CHAT, {"prompt_logprobs": 1}),
    (CHAT, {"truncate_prompt_tokens": -1, "max_tokens": None, "stop": ["e"]}),
]
REFUSED: list[tuple[str, dict[str, Any]]] = [
    (COMPLETIONS, {"min_tokens": 9}),
    (COMPLETIONS, {"stream_options": {"include_usage": True}}),
    (COMPLETIONS, {"max_tokens": -1}),
    (COMPLETIONS, {"max_tokens": 5000}),
    (COMPLETIONS, {"min_tokens": None}),
    (COMPLETIONS, {"stream": "perhaps"}),
    (COMPLETIONS, {"prompt": tokens(2100, 4)}),
    (COMPLETIONS, {"prompt": ""}),
    (COMPLETIONS, {"prompt": [99999]}),
    (COMPLETIONS, {"temperature": -1}),
    (COMPLETIONS, {"n": 0}),
    (COMPLETIONS, {"logprobs": 1000}),
    (COMPLETIONS, {"suffix": "x"}),
    (COMPLETIONS, {"stop": 5}),
    (COMPLETIONS, {"cache_salt": "a/b"}),
    (COMPLETIONS, {"response_format": {"type": "json_schema"}}),
    (COMPLETIONS, {"prompt_embeds": "AAAA"}),
    (CHAT, {"messages": "x"}),
    (CHAT, {"messages": []}),
    (CHAT, {"tools": []}),
    (CHAT, {"tools": [TOOL]}),
    (CHAT, {"tools": [TOOL], "tool_choice": "required"}),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}]}]},
    ),
    (CHAT, {"top_logprobs": 2}),
]


@pytest.fixture(scope="module")
def routed(nixl_pair: Pair, router: RouterProcess) -> RouterProcess:
    router.route(*nixl_pair, "nixl")
    return router


def body_of(path: str, extra: dict[str, Any]) -> dict[str, Any]:
    asked = {"messages": [{"role": "user", "content": TEXT}]} if path == CHAT else {"prompt": tokens(70, 0)}
    body = {"model": MODEL, "max_tokens": 8, "temperature": 0, **asked, **extra}
    return {name: value for name, value in body.items() if value is not None or name != "max_tokens"}


def alone(engine: RealEngine, path: str, body: dict[str, Any]) -> httpx.Response:
    """The engine's own whole answer; the salt keeps it from using KV that was transferred before."""
    return engine.ask(path, {"cache_salt": "computed-here", **body})


VARIES = {"id", "created", "kv_transfer_params", "prompt_tokens_details", "system_fingerprint"}
"""Not the answer: names, times, what a cache held."""


def difference(got: Any, expected: Any, where: str = "") -> str:
    """The first place where two documents differ; empty if nowhere. Numbers of real engines agree to 0.002."""
    if isinstance(got, dict) and isinstance(expected, dict):
        names = sorted((got.keys() | expected.keys()) - VARIES)
        found = (difference(got.get(name), expected.get(name), f"{where}.{name}") for name in names)
        return next(filter(None, found), "")
    if isinstance(got, list) and isinstance(expected, list) and len(got) == len(expected):
        pairs = enumerate(zip(got, expected, strict=True))
        return next(filter(None, (difference(*pair, f"{where}[{index}]") for index, pair in pairs)), "")
    near = isinstance(got, float) and isinstance(expected, float) and abs(got - expected) < 2e-3
    return "" if near or got == expected else f"{where}: {got!r:.300} is not {expected!r:.300}"


@pytest.mark.parametrize(("path", "extra"), SPLIT, ids=str)
def test_what_is_split_is_answered_as_by_one_engine(
    path: str, extra: dict[str, Any], nixl_pair: Pair, routed: RouterProcess
) -> None:
    body = body_of(path, extra)
    own = alone(nixl_pair[1], path, body)
    assert own.status_code == 200, own.text
    assert not difference(routed.answer(path, body), own.json())


@pytest.mark.parametrize(("path", "extra"), WHOLE, ids=str)
def test_what_cannot_be_split_is_answered_by_one_engine(
    path: str, extra: dict[str, Any], nixl_pair: Pair, routed: RouterProcess
) -> None:
    body = body_of(path, extra)
    own, response = alone(nixl_pair[1], path, body), routed.post(path, body)
    assert "reason=unsupported_split" in response.headers["x-twinpool-route"]
    assert (response.status_code, own.status_code) == (200, 200), response.text
    assert not difference(response.json(), own.json())


def test_what_an_engine_refuses_is_refused_in_its_words_and_leaves_no_kv_behind(
    nixl_pair: Pair, routed: RouterProcess
) -> None:
    for path, extra in REFUSED:
        body = body_of(path, extra)
        own, response = alone(nixl_pair[1], path, body), routed.post(path, body)
        assert (response.status_code, own.status_code) == (400, 400), (extra, response.text, own.text)
        assert response.json()["error"]["message"] == own.json()["error"]["message"]
    prefill = nixl_pair[0]
    wait_for(lambda: prefill.metric("vllm:kv_cache_usage_perc") == 0, 20, "the prefill engine to have no KV in use")
    assert prefill.metric("vllm:nixl_num_kv_expired_reqs_total") == 0


MESSAGE = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 8, "temperature": 0}
OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/responses", {"input": TEXT, "max_output_tokens": 8, "temperature": 0}),
    ("/v1/responses", {"input": [{"role": "user", "content": TEXT}], "max_output_tokens": 8, "temperature": 0}),
    ("/v1/messages", MESSAGE),
    ("/v1/messages", {**MESSAGE, "max_tokens": 0}),
    ("/v1/embeddings", {"input": TEXT}),
    ("/v1/score", {"text_1": TEXT, "text_2": TEXT}),
    ("/v1/rerank", {"query": TEXT, "documents": [TEXT]}),
]


@pytest.mark.parametrize(("path", "extra"), OTHERS, ids=str)
def test_other_paths_answer_as_the_engine_does(
    path: str, extra: dict[str, Any], nixl_pair: Pair, routed: RouterProcess
) -> None:
    body = {"model": MODEL, **extra}
    own, response = nixl_pair[1].ask(path, body), routed.post(path, body)
    assert response.status_code == own.status_code
    if own.status_code != 200:
        assert own.status_code < 500
        assert response.json()["error"]["message"]
        return
    answer, expected = response.json(), own.json()
    for part in ("output", "content"):  # its ids differ
        texts = [[item.get("text") or item.get("content") for item in each.get(part, [])] for each in (answer, expected)]
        assert not difference(*texts)
    assert answer["usage"]["output_tokens"] == expected["usage"]["output_tokens"] > 0
    with httpx.stream("POST", routed.url + path, json={**body, "stream": True}, timeout=60) as stream:
        kinds = [line.removeprefix("event: ") for line in stream.iter_lines() if line.startswith("event: ")]
    assert kinds[-1] in ("response.completed", "response.incomplete", "message_stop")


def test_cached_tokens_are_those_of_the_prefill_engine(nixl_pair: Pair, routed: RouterProcess) -> None:
    for path, extra in (
        (COMPLETIONS, {"prompt": tokens(300, 5)}),
        (CHAT, {"messages": [{"role": "user", "content": "Nobody said: " + TEXT * 6}]}),
    ):
        body = body_of(path, extra)
        first, again = routed.answer(path, body)["usage"], routed.answer(path, body)["usage"]
        own = nixl_pair[0].answer(path, body)["usage"]
        assert not (first["prompt_tokens_details"] or {}).get("cached_tokens")
        assert again == own
        assert 0 < own["prompt_tokens_details"]["cached_tokens"] < own["prompt_tokens"]
        events = routed.events(path, {**body, "stream_options": {"include_usage": True}})
        (told,) = [event["usage"] for event in events if event.get("usage")]
        assert told["prompt_tokens_details"] == own["prompt_tokens_details"]
        assert not difference(told, own)
        assert events[-1]["choices"] == []


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("extra", [{}, {"n": 2, "seed": 7, "temperature": 1.0}, {"max_tokens": 1}], ids=str)
@pytest.mark.parametrize("options", [None, {"include_usage": True, "continuous_usage_stats": True}], ids=str)
def test_a_stream_is_the_whole_answer_in_pieces(
    path: str, extra: dict[str, Any], options: Any, nixl_pair: Pair, routed: RouterProcess
) -> None:
    body = body_of(path, extra)
    own = alone(nixl_pair[1], path, body).json()
    streamed = {**body, "stream": True} | ({"stream_options": options} if options else {})
    response = routed.post(path, streamed)
    assert response.headers["content-type"].startswith("text/event-stream")
    *lines, done = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert done == "[DONE]"
    events = [json.loads(line) for line in lines]
    texts = dict.fromkeys(range(len(own["choices"])), "")
    for choice in (choice for event in events for choice in event["choices"]):
        texts[choice["index"]] += choice.get("text") or choice.get("delta", {}).get("content") or ""
    assert list(texts.values()) == [each.get("text") or each["message"]["content"] for each in own["choices"]]
    told = [event for event in events if event.get("usage")]
    assert not told if options is None else not difference(told[-1]["usage"], own["usage"])
    assert all(event["usage"]["prompt_tokens"] == own["usage"]["prompt_tokens"] for event in told)
