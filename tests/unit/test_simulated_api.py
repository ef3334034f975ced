"""Request bodies: what is read, and what is refused how."""

from __future__ import annotations

import contextlib
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.engines.simulated.api import ApiError, Ask, EngineAsserts, Offered, read_ask
from workers.engines.simulated.generation import RemoteKv
from workers.engines.simulated.tokenizer import encode

OFFERED = Offered("tiny", 100, handoff=True)
REMOTE = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [3, 4],
    "remote_engine_id": "engine",
    "remote_request_id": "request",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
    "remote_num_tokens": 9,
}


def completion(offered: Offered = OFFERED, **fields: Any) -> Ask:
    return read_ask(orjson.dumps({"model": "tiny", "prompt": "hello"} | fields), False, offered)


def chat(messages: Any, **fields: Any) -> Ask:
    return read_ask(orjson.dumps({"model": "tiny", "messages": messages} | fields), True, OFFERED)


def test_a_plain_completion_has_vllms_defaults() -> None:
    ask = completion()
    assert list(ask.prompts[0]) == encode("hello")
    assert (ask.n, ask.stream, ask.hold, ask.remote) == (1, False, False, None)
    assert (ask.sampling.max_tokens, ask.sampling.temperature, ask.sampling.ignore_eos) == (16, 1.0, False)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ([1, 2, 3], [[1, 2, 3]]),
        (["a", "b"], [encode("a"), encode("b")]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        (["a", [7]], [encode("a"), [7]]),
    ],
)
def test_prompts_are_texts_or_token_ids(prompt: Any, expected: list[list[int]]) -> None:
    assert [list(tokens) for tokens in completion(prompt=prompt).prompts] == expected


def test_a_chat_answers_as_long_as_there_is_room() -> None:
    ask = chat([{"role": "user", "content": [{"type": "text", "text": "hi"}]}])
    assert ask.sampling.max_tokens == 100 - len(ask.prompts[0])
    assert chat([{"role": "user", "content": "hi"}], max_tokens=9, max_completion_tokens=5).sampling.max_tokens == 5


def test_max_tokens_that_do_not_fit_are_clipped_without_a_word() -> None:
    assert completion(prompt=[1] * 90, max_tokens=50).sampling.max_tokens == 10


def test_an_over_long_prompt_is_refused() -> None:
    with pytest.raises(ApiError, match="maximum context length is 100 tokens") as refused:
        completion(prompt=[1] * 100)
    assert refused.value.status == 400


def test_a_text_that_cannot_fit_is_refused_before_it_is_read() -> None:
    with pytest.raises(ApiError, match="at least 200000 input tokens"):
        completion(prompt="x" * 1_000_000)
    with pytest.raises(ApiError, match="at least 200000 input tokens"):
        chat([{"role": "user", "content": "x" * 500_000}] * 2)


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "other"}, 404, "model"),
        ({"model": 7}, 404, "model"),
        ({"prompt": ""}, 400, "prompt"),
        ({"prompt": []}, 400, "prompt"),
        ({"prompt": None}, 400, "prompt"),
        ({"prompt": {}}, 400, "prompt"),
        ({"prompt": [[]]}, 400, "prompt"),
        ({"prompt": [1, "a"]}, 400, "prompt"),
        ({"prompt": [-1]}, 400, "prompt"),
        ({"prompt": [1 << 40]}, 400, "prompt"),
        ({"prompt": [True]}, 400, "prompt"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"max_tokens": "5"}, 400, "max_tokens"),
        ({"max_tokens": 1, "min_tokens": 2}, 400, "min_tokens"),
        ({"n": 0}, 400, "n"),
        ({"n": 5000}, 400, "n"),
        ({"stream": "yes"}, 400, "stream"),
        ({"stream_options": {"include_usage": True}}, 400, "stream_options"),
        ({"temperature": -1}, 400, "temperature"),
        ({"temperature": True}, 400, "temperature"),
        ({"seed": "x"}, 400, "seed"),
        ({"stop": 5}, 400, "stop"),
        ({"stop": [""]}, 400, "stop"),
        ({"stop_token_ids": ["a"]}, 400, "stop_token_ids"),
        ({"cache_salt": 5}, 400, "cache_salt"),
        ({"kv_transfer_params": [1]}, 400, "kv_transfer_params"),
        ({"kv_transfer_params": {"do_remote_decode": 1}}, 400, "do_remote_decode"),
        ({"kv_transfer_params": REMOTE | {"remote_port": "5600"}}, 400, "kv_transfer_params"),
        ({"kv_transfer_params": REMOTE | {"remote_port": 99999}}, 400, "kv_transfer_params"),
        ({"kv_transfer_params": REMOTE | {"remote_block_ids": [-1]}}, 400, "kv_transfer_params"),
        ({"kv_transfer_params": REMOTE | {"remote_host": 5}}, 400, "kv_transfer_params"),
    ],
)
def test_bad_fields_are_refused_by_name(fields: dict[str, Any], status: int, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        completion(**fields)
    assert (refused.value.status, refused.value.param) == (status, param)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"5", b'"x"', b"\xff", b"{" * 10_000])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        read_ask(body, False, OFFERED)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "messages",
    [None, [], "hi", [5], [{}], [{"role": 5}], [{"role": "user", "content": 5}],
     [{"role": "user", "content": [{"type": "image_url"}]}]],
)  # fmt: skip
def test_bad_messages_are_refused(messages: Any) -> None:
    with pytest.raises(ApiError) as refused:
        chat(messages)
    assert refused.value.param == "messages"


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 1 << 40) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = [
    "prompt", "messages", "model", "n", "max_tokens", "max_completion_tokens", "min_tokens", "stream", "stream_options",
    "ignore_eos", "stop", "stop_token_ids", "seed", "temperature", "echo", "cache_salt", "kv_transfer_params", "vllm_xargs",
]  # fmt: skip


@given(st.dictionaries(st.sampled_from(FIELDS), anything, max_size=6), st.booleans())
def test_whatever_the_fields_hold_it_is_read_or_refused(fields: dict[str, Any], as_chat: bool) -> None:
    body = {"model": "tiny", "prompt": "hello", "messages": [{"role": "user", "content": "hi"}]} | fields
    with contextlib.suppress(ApiError, EngineAsserts):
        ask = read_ask(orjson.dumps(body), as_chat, OFFERED)
        assert 1 <= ask.sampling.max_tokens < 100


def test_a_prefill_leg_holds_its_kv() -> None:
    assert completion(kv_transfer_params={"do_remote_decode": True, "do_remote_prefill": False}).hold


@pytest.mark.parametrize("where", ["body", "xargs"])
def test_a_decode_leg_knows_where_its_kv_is(where: str) -> None:
    fields = {"kv_transfer_params": REMOTE}
    ask = completion(**(fields if where == "body" else {"vllm_xargs": fields}))
    assert ask.remote == RemoteKv("engine", "request", (3, 4), "127.0.0.1", 5600)


@pytest.mark.parametrize(
    "field", ["remote_engine_id", "remote_request_id", "remote_block_ids", "remote_host", "remote_port"]
)
def test_remote_prefill_without_its_fields_would_end_vllm(field: str) -> None:
    with pytest.raises(EngineAsserts, match=field):
        completion(kv_transfer_params={key: value for key, value in REMOTE.items() if key != field})


def test_without_a_connector_handoff_fields_are_ignored() -> None:
    ask = completion(Offered("tiny", 100, handoff=False), kv_transfer_params={"do_remote_prefill": True})
    assert (ask.hold, ask.remote) == (False, None)
