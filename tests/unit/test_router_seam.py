"""Which broken streams may be carried on, and how two streams are made one."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from controlplane.router import framing, seam
from controlplane.router.bodies import Body
from controlplane.router.seam import Seam, Sent

TEXT: dict[str, Any] = {"model": "m", "prompt": "once", "max_tokens": 30, "temperature": 0}
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
COMPLETIONS = "/v1/completions"


@pytest.mark.parametrize(
    "data",
    [
        TEXT,
        {**TEXT, "seed": 3},
        {**TEXT, "temperature": 0.8},
        {**TEXT, "temperature": None, "seed": None},
        {**TEXT, "stop": ["\n"], "stream_options": {"include_usage": True}},
        {**TEXT, "prompt": [1, 2, 3]},
        {**TEXT, "n": 1, "echo": False, "logprobs": None, "presence_penalty": 0.0, "repetition_penalty": 1.0},
    ],
)
def test_what_follows_from_its_text_alone_can_be_carried_on(data: dict[str, Any]) -> None:
    assert seam.can_resume(data, COMPLETIONS)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.8, "seed": 3},
        {"temperature": None, "seed": 3},
        {"n": 2},
        {"logprobs": 0},
        {"presence_penalty": 0.1},
        {"repetition_penalty": 1.1},
        {"guided_json": {}},
        {"structured_outputs": {"regex": "a"}},
        {"response_format": {"type": "json_schema"}},
        {"tools": [{}]},
        {"include_stop_str_in_output": True},
        {"stream_options": {"continuous_usage_stats": True}},
        {"prompt": ["a", "b"]},
        {"prompt": {"prompt": "x"}},
        {"vllm_xargs": {"a": 1}},
        {"return_token_ids": True},
    ],
    ids=str,
)
def test_what_looks_back_or_is_not_known_cannot(fields: dict[str, Any]) -> None:
    assert not seam.can_resume({**TEXT, **fields}, COMPLETIONS)


@pytest.mark.parametrize(
    "fields", [{"messages": []}, {"messages": None}, {"messages": [{"role": "assistant", "content": "x"}]}], ids=str
)
def test_a_chat_must_wait_for_an_answer(fields: dict[str, Any]) -> None:
    assert seam.can_resume(CHAT, seam.CHAT)
    assert not seam.can_resume({**CHAT, **fields}, seam.CHAT)


def plain(document: Any) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(document)


def event(document: Any) -> bytes:
    """As a chunk."""
    return framing.chunk(plain(document))


@pytest.mark.parametrize(
    "delta",
    [
        {"tool_calls": [{"index": 0}]},
        {"reasoning_content": "hm"},
        {"reasoning": "hm", "content": None},
        {"content": 5},
        None,
    ],
    ids=str,
)
def test_a_stream_of_more_than_text_is_not_read(delta: Any) -> None:
    good = event({"id": "a", "choices": [{"delta": {"role": "assistant", "content": "x", "tool_calls": None}}]})
    assert seam.read([good]) is not None
    assert seam.read([good, event({"id": "a", "choices": [{"delta": delta}]})]) is None
    assert seam.read([]) is None


def test_what_was_sent_is_read_in_pieces() -> None:
    events = [{"id": "a", "choices": [{"text": text, "finish_reason": None}]} for text in ("on", "ce", "", " ü")]
    whole = b"".join(map(event, events))
    whole += framing.chunk(b": ping\n\n")
    sent = seam.read([whole[:150], whole[150:]])
    assert sent is not None
    assert (sent.text, sent.events, sent.finished, sent.first["id"]) == ("once ü", 3, False, "a")


def test_limits_are_what_is_left_of_them() -> None:
    body = Body({**TEXT, "max_completion_tokens": 20, "min_tokens": 5}, b"", False, "m", True, False)
    rest = seam.continued(body, COMPLETIONS, " upon", 7, None)
    assert rest is not None
    assert rest.data == {
        **TEXT, "prompt": "once upon", "max_tokens": 23, "max_completion_tokens": 13, "min_tokens": 0,
    }  # fmt: skip
    assert body.data["prompt"] == "once"
    assert seam.limits({"prompt": "x"}, COMPLETIONS) == {"max_tokens": 16}
    assert seam.limits(CHAT, seam.CHAT) == {}


def test_a_chat_goes_on_in_its_last_message() -> None:
    body = Body(CHAT, b"", False, "m", True, False)
    rest = seam.continued(body, seam.CHAT, "Hello", 1, None)
    assert rest is not None
    assert rest.data["messages"][-1] == {"role": "assistant", "content": "Hello"}
    assert (rest.data["add_generation_prompt"], rest.data["continue_final_message"]) == (False, True)
    begun = seam.continued(body, seam.CHAT, "", 0, None)
    assert begun is not None and begun.data == CHAT


@pytest.mark.parametrize(("rest", "kept"), [([" \n", "x"], "x"), ([" \nx"], "x"), ([" ", "\nx"], "x"), (["\n"], None)])
def test_white_space_that_was_sent_is_not_sent_again(rest: list[str], kept: str | None) -> None:
    one = Seam(Sent({"id": "a"}), 3, None, " \n")
    out = b"".join(one.rewrite(plain({"id": "b", "choices": [{"text": text}]})) for text in rest)
    assert one.torn == (kept is None)
    assert b"".join(out.split()) == (b"" if kept is None else b'data:{"id":"a","choices":[{"text":"x"}]}')


def test_usage_is_the_whole_requests() -> None:
    rest = {"prompt_tokens": 107, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 104}}
    expected = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    for known in (None, 100):
        total = Seam(Sent({}), 7, known, "").total(rest)
        assert {name: total[name] for name in expected} == expected
        assert total["prompt_tokens_details"] == {"cached_tokens": 100}
