"""Prompts as chains of hashes, and the room that engines tell of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.router import capacity, prefixes

LONG = "The KV cache of a prompt is made once, then moved, then read. " * 100


def keys(body: Any, model: str = "m") -> list[int]:
    return list(prefixes.of(body, model).keys)


def chat(*contents: Any, **fields: Any) -> dict[str, Any]:
    roles = ("system", "user", "assistant", "user", "assistant")
    messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]
    return {"messages": messages, **fields}


def shared(one: Any, other: Any, **models: str) -> int:
    """Leading blocks that are equal."""
    pairs = list(zip(keys(one), keys(other, **models), strict=False))
    return next((depth for depth, (a, b) in enumerate(pairs) if a != b), len(pairs))


def test_a_prompt_is_cut_at_fixed_places() -> None:
    prefix = prefixes.of({"prompt": "x" * 5000}, "m")
    assert (len(prefix.keys), list(prefix.ends[:4]), prefix.size) == (4, [512, 1024, 2048, 4096], 5000)
    assert keys({"prompt": "x" * 511}) == []
    assert keys({"prompt": "x" * 512}) == keys({"prompt": "x" * 1023})
    assert len(keys({"prompt": "x" * 8_000_000})) == len(prefixes.ENDS)


def test_a_chat_that_goes_on_keeps_its_prefix() -> None:
    first, next_turn = chat("be good", LONG), chat("be good", LONG, "Yes.", "And then?")
    assert keys(next_turn)[: len(keys(first))] == keys(first)
    assert shared(first, chat("be good", "X" + LONG)) == 0
    assert shared(chat(LONG, "a"), chat(LONG, "b")) == len(keys(chat(LONG)))


OTHERS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("an early message", chat("a", LONG), chat("b", LONG)),
    ("a role", chat("a", LONG), {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": LONG}]}),
    ("tools", chat("a", LONG), chat("a", LONG, tools=[{"type": "function", "function": {"name": "f"}}])),
    ("salt", chat("a", LONG), chat("a", LONG, cache_salt="s")),
    ("another salt", chat("a", LONG, cache_salt="t"), chat("a", LONG, cache_salt="s")),
    ("template", chat("a", LONG), chat("a", LONG, chat_template_kwargs={"thinking": True})),
    ("a name", chat("a", LONG),
     {"messages": [{"role": "system", "content": "a", "name": "n"}, *chat("", LONG)["messages"][1:]]}),
    ("a call", chat("", LONG), {"messages": [{"role": "system", "tool_calls": [1]}, *chat("", LONG)["messages"][1:]]}),
    ("an image", chat([{"type": "image_url", "image_url": {"url": "http://a/1.png"}}], LONG),
     chat([{"type": "image_url", "image_url": {"url": "http://a/2.png"}}], LONG)),
    ("token ids", {"prompt": list(range(1000))}, {"prompt": [7, *range(1, 1000)]}),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), [case[1:] for case in OTHERS], ids=[case[0] for case in OTHERS])
def test_whatever_changes_the_start_of_a_prompt_changes_all_of_its_blocks(one: Any, other: Any) -> None:
    assert shared(one, one) > 0
    assert shared(one, other) == 0


def test_models_share_nothing() -> None:
    assert shared({"prompt": LONG}, {"prompt": LONG}, model="m-lora") == 0


def test_parts_of_text_are_the_same_as_their_text_and_images_count_as_many_tokens() -> None:
    assert keys(chat([{"type": "text", "text": LONG}])) == keys(chat(LONG))
    image = chat([{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}])
    assert 2000 <= prefixes.of(image, "m").size < 2100


def test_token_ids_share_their_prefix() -> None:
    assert shared({"prompt": list(range(2000))}, {"prompt": [*range(1500), *range(500)]}) >= 3


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=20) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
BODY = st.fixed_dictionaries(
    {},
    optional={
        name: JSON
        | st.lists(st.dictionaries(st.sampled_from(("role", "content", "text", "type")), JSON, max_size=4), max_size=3)
        for name in ("messages", "prompt", "input", "tools", "cache_salt", "user", "prompt_cache_key", "system")
    },
)


@settings(max_examples=300, deadline=None)
@given(BODY)
def test_no_body_breaks_it(body: dict[str, Any]) -> None:
    read = orjson.loads(orjson.dumps(body))
    assert keys(read) == keys(read)
    prefixes.session(read)


def test_a_session_is_read_from_the_fields_of_openai() -> None:
    assert prefixes.session({"user": "u", "prompt_cache_key": "k"}) == b"k"
    assert prefixes.session({"user": "u", "prompt_cache_key": 5}) == b"u"
    assert prefixes.session({"user": ""}) is None
    assert prefixes.session({"user": "x" * 300}) is None


def test_an_engines_room_is_read_from_a_real_page() -> None:
    folder = Path(__file__).parents[1] / "data"
    page = (folder / "vllm_served_metrics.txt").read_bytes()
    line = next(line for line in page.splitlines() if line.startswith(b"vllm:cache_config_info"))
    blocks = int(line.split(b'num_gpu_blocks="')[1].split(b'"')[0])
    assert capacity.parse(page) == 128 * blocks > 0
    assert capacity.parse(page + line + b"\n") == 2 * 128 * blocks
    assert capacity.parse(b'vllm:cache_config_info{num_gpu_blocks="None",block_size="16"} 1\n') == 0
    assert capacity.parse(b"") == 0
