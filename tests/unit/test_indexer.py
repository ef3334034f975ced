"""What the indexer makes of events, good and bad, and of requests."""

from __future__ import annotations

from array import array
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.core.blockindex import BlockIndex
from controlplane.indexer import blocks, caches, wire
from controlplane.indexer.caches import Caches
from controlplane.indexer.events import BadBatch, read
from controlplane.indexer.tokens import CHAT, question

BLOCK = 4
PROMPT = list(range(100, 120))
"""Five blocks; the last token is always computed, so four can be hit."""


def stored(tokens: list[int], first: int = 0, **changes: Any) -> dict[str, Any]:
    """vLLM's event for all blocks of a prompt from `first` on. Hashes: here, what a block's tokens add up to."""
    hashes = [sum(tokens[: end + BLOCK]) for end in range(0, len(tokens), BLOCK)]
    event = {
        "type": "BlockStored", "block_hashes": hashes[first:], "parent_block_hash": hashes[first - 1] if first else None,
        "token_ids": tokens[first * BLOCK :], "block_size": BLOCK, "lora_id": None, "medium": "GPU", "lora_name": None,
        "extra_keys": [None] * (len(hashes) - first), "group_idx": 0, "kv_cache_spec_kind": "full_attention",
    }  # fmt: skip
    return event | changes


def removed(*hashes: int, **changes: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", "group_idx": 0} | changes


CLEARED = {"type": "AllBlocksCleared"}


def batch(*events: Any) -> bytes:
    return bytes(msgpack.packb([1.0, list(events), 0]))


class Told:
    """Engines that tell, and what is known then."""

    def __init__(self, replays: bool = False) -> None:
        self.asked: list[tuple[str, int]] = []
        self.caches = Caches(BlockIndex(), self._gap if replays else lambda engine, number: False)
        self.now = 0.0

    def _gap(self, engine: str, number: int) -> bool:
        self.asked.append((engine, number))
        return True

    def tell(self, number: int, *events: Any, engine: str = "a") -> Told:
        self.caches.heard(engine, number, batch(*events), self.now)
        return self

    def held(self, tokens: list[int] = PROMPT, engine: str = "a", salt: str = "", adapter: str = "") -> Any:
        return self.caches.look_up(array("I", tokens), adapter, {engine: salt}).get(engine)


def test_what_is_stored_is_held_until_it_is_removed() -> None:
    told = Told().tell(0, stored(PROMPT[:12])).tell(1, stored(PROMPT, first=3))
    assert told.held() == (16, True)
    assert told.held([*PROMPT, 7]) == (20, True)
    assert told.held([1, *PROMPT]) == (0, True)
    told.tell(2, removed(sum(PROMPT[:16])))
    assert told.held() == (12, True)
    told.tell(3, CLEARED, stored(PROMPT[:4]))
    assert told.held() == (4, True)


def test_salts_and_adapters_tell_prompts_apart() -> None:
    salted = stored(PROMPT, extra_keys=[["team"], None, None, None, None])
    tuned = stored(PROMPT, lora_name="lora", extra_keys=[["lora"]] * 5)
    both = stored(PROMPT, lora_name="lora", extra_keys=[["lora", "team"], *[["lora"]] * 4])
    for event, own in ((stored(PROMPT), {}), (salted, {"salt": "team"}), (tuned, {"adapter": "lora"}),
                       (both, {"adapter": "lora", "salt": "team"})):  # fmt: skip
        told = Told().tell(0, event)
        for asked in ({}, {"salt": "team"}, {"adapter": "lora"}, {"adapter": "lora", "salt": "team"}, {"salt": "lora"}):
            assert told.held(**asked) == ((16, True) if asked == own else (0, True))


def test_a_picture_is_no_text() -> None:
    told = Told().tell(0, stored(PROMPT, extra_keys=[None, None, [["picture", 0]], None, None]))
    assert told.held() == (8, True)


def test_engines_with_other_block_sizes_are_found_too() -> None:
    hashes = [1, 2]
    other = stored(PROMPT[:16], block_size=8, block_hashes=hashes, extra_keys=[None] * 2)
    told = Told().tell(0, stored(PROMPT)).tell(0, other, engine="b")
    assert (told.held(), told.held(engine="b")) == ((16, True), (16, True))


def test_after_a_gap_only_what_is_told_later_is_believed() -> None:
    told = Told().tell(0, stored(PROMPT)).tell(2, stored([*range(8)]))
    assert (told.held(), told.held([*range(9)])) == ((0, False), (8, False))
    told.tell(3, stored(PROMPT, first=2))
    assert told.held() == (0, False), "its first blocks may have gone"
    told.tell(4, CLEARED, stored(PROMPT))
    assert told.held() == (16, True)
    assert told.caches.counters.gaps == 1


def test_who_comes_late_knows_a_part() -> None:
    assert Told().tell(5, stored(PROMPT)).held() == (16, False)


def test_numbers_that_begin_anew_are_another_start() -> None:
    told = Told().tell(0, stored(PROMPT)).tell(1, stored([*range(8)])).tell(0, stored([*range(8)]))
    assert (told.held(), told.held([*range(9)])) == ((0, True), (8, True))
    assert told.caches.counters.restarts == 1


def test_a_new_start_that_numbers_do_not_show_is_told_by_routers() -> None:
    told = Told().tell(0, stored(PROMPT))
    told.now = 10.0
    told.caches.known_to_routers({"a": 1}, 10.0)
    assert told.held() == (16, True)
    told.caches.known_to_routers({"a": 2}, 20.0)
    assert told.held() == (0, False)


def test_a_new_start_that_numbers_showed_first_is_not_forgotten() -> None:
    told = Told()
    told.caches.known_to_routers({"a": 1}, 1.0)
    told.tell(0, stored(PROMPT))
    told.caches.known_to_routers({"a": 1}, 2.0)
    told.now = 10.0
    told.tell(0, stored(PROMPT))
    told.caches.known_to_routers({"a": 2}, 11.0)
    assert told.held() == (16, True)


def test_a_gap_is_filled_by_what_the_engine_repeats() -> None:
    told = Told(replays=True).tell(0, stored(PROMPT[:4])).tell(3, removed(sum(PROMPT[:20]))).tell(4, stored([*range(8)]))
    assert told.asked == [("a", 1)]
    assert told.held() is None
    missed = [
        (1, batch(stored(PROMPT[:12], first=1))),
        (2, batch(stored(PROMPT, first=3))),
        (3, batch(removed(sum(PROMPT)))),
    ]
    told.caches.repeated("a", missed, 0.0)
    assert (told.held(), told.held([*range(9)])) == ((16, True), (8, True))
    assert told.held([*PROMPT, 1]) == (16, True)


def test_a_gap_that_is_not_filled_stays_one() -> None:
    told = Told(replays=True).tell(0, stored(PROMPT)).tell(3, stored([*range(8)]))
    told.caches.repeated("a", [(2, batch(stored(PROMPT[:8])))], 0.0)
    assert (told.held(), told.held([*range(9)])) == ((8, False), (8, False))


def test_engines_that_are_gone_are_forgotten() -> None:
    told = Told().tell(0, stored(PROMPT)).tell(0, stored(PROMPT), engine="b")
    told.caches.known_to_routers({"a": 1}, caches.FORGET_S + 1.0)
    assert (told.held(), told.held(engine="b")) == ((16, True), None)
    assert told.caches.index.total == 5


def test_names_that_nobody_knows_never_keep_an_engine_out() -> None:
    told = Told()
    for number in range(caches.MAX_ENGINES + 50):
        told.now = float(number)
        told.tell(0, stored(PROMPT[:4]), engine=f"x{number}")
        if number == 0:
            told.caches.known_to_routers({"x0": 1}, 0.0)
    told.tell(0, stored(PROMPT))
    assert (told.held(), told.held(engine="x0")) == ((16, True), (4, True))
    assert len(told.caches.followed) == caches.MAX_ENGINES


def test_a_batch_that_cannot_be_read_is_a_gap() -> None:
    told = Told().tell(0, stored(PROMPT))
    told.caches.heard("a", 1, b"\xc1", 0.0)
    assert told.held() == (0, False)
    assert told.tell(2, stored(PROMPT)).held() == (16, False)
    assert told.caches.counters.refused == 1


def test_other_media_and_layers_with_a_window_are_left_out() -> None:
    told = Told().tell(0, stored(PROMPT, medium="CPU"), stored(PROMPT, kv_cache_spec_kind="sliding_window", group_idx=0))
    assert told.held() is None
    told.tell(1, stored(PROMPT, group_idx=1), removed(sum(PROMPT[:4]), group_idx=0), {"type": "SomethingNew"})
    assert told.held() == (16, True)


BAD: list[Any] = [
    7, [], [1.0], [1.0, 7], [1.0, [7]], [1.0, [{"type": "BlockRemoved"}]],
    *([1.0, [stored(PROMPT) | change]] for change in (
        {"block_hashes": 7}, {"block_hashes": [None]}, {"block_hashes": [1.5]}, {"token_ids": None}, {"token_ids": [1]},
        {"token_ids": b"\0" * 80},
        {"token_ids": [-1] * 20}, {"token_ids": [1 << 40] * 20}, {"token_ids": ["a"] * 20}, {"block_size": 0},
        {"block_size": 1 << 40}, {"block_size": None}, {"parent_block_hash": "x"}, {"lora_name": 7}, {"extra_keys": 7},
        {"extra_keys": [None]}, {"extra_keys": [7] * 5}, {"extra_keys": [[{}]] * 5}, {"extra_keys": [[[[]]]] * 5},
        {"group_idx": "x"},
    )),
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_what_vllm_does_not_send_is_refused(bad: Any) -> None:
    with pytest.raises(BadBatch):
        read(msgpack.packb(bad))


VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.binary(max_size=8) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=10,
)
EVENT = st.builds(
    lambda name, value: stored(PROMPT) | {name: value}, st.sampled_from(sorted(stored(PROMPT))), VALUE
) | st.builds(lambda name, value: removed(1) | {name: value}, st.sampled_from(sorted(removed(1))), VALUE)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60) | VALUE.map(msgpack.packb) | st.lists(EVENT, max_size=4).map(lambda events: batch(*events)))
def test_nothing_that_comes_breaks_it(payload: bytes) -> None:
    told = Told().tell(0, stored(PROMPT))
    told.caches.heard("a", 1, payload, 0.0)
    told.held()
    assert told.tell(2, CLEARED, stored(PROMPT)).held() == (16, True)


def test_of_a_prompt_that_goes_on_only_what_is_told_of_it_is_known() -> None:
    told = Told().tell(0, stored(PROMPT)).tell(0, stored(PROMPT[:8]), engine="b")
    found = told.caches.look_up(array("I", PROMPT), "", {"a": "", "b": ""}, all_tokens=False)
    assert found == {"a": (16, False), "b": (8, True)}


# --- keys, frames, questions ----------------------------------------------------------------------------------------------


def test_keys_depend_on_every_token_before() -> None:
    tokens = array("I", range(1000))
    keys = blocks.chain(tokens, 16, blocks.root("", ""))
    assert len(keys) == 62
    changed = array("I", [7, *range(1, 1000)])
    assert set(keys).isdisjoint(blocks.chain(changed, 16, blocks.root("", "")))
    assert blocks.chain(tokens[:500], 16, blocks.root("", "")) == keys[:31]
    assert blocks.root("a", "b") != blocks.root("b", "a")


def test_frames_come_in_any_pieces() -> None:
    messages = [[1, ["a"]], [2, 7, "x" * 1000, b"y"], [3]]
    raw, reader = b"".join(map(wire.pack, messages)), wire.Reader()
    assert [message for byte in raw for message in reader.feed(bytes([byte]))] == messages


@pytest.mark.parametrize("raw", [b"\xff\xff\xff\xff", b"\0\0\0\1\xc1", b"\0\0\0\1\x07"])
def test_other_protocols_are_cut_off(raw: bytes) -> None:
    with pytest.raises(wire.BadFrame):
        list(wire.Reader().feed(raw))


TEXT = "/v1/completions"
QUESTIONS: list[tuple[str, str, dict[str, Any], Any]] = [
    ("token ids", TEXT, {"prompt": [1, 2]}, array("I", [1, 2])),
    ("one list of token ids", TEXT, {"prompt": [[1, 2]]}, array("I", [1, 2])),
    ("a text", TEXT, {"prompt": "a", "n": 2, "kv_transfer_params": 1}, {"model": "m", "prompt": "a"}),
    ("no special tokens", TEXT, {"prompt": "a", "add_special_tokens": False},
     {"model": "m", "prompt": "a", "add_special_tokens": False}),
    ("two texts", TEXT, {"prompt": ["a", "b"]}, None),
    ("no ids", TEXT, {"prompt": [1, "a"]}, None),
    ("ids out of range", TEXT, {"prompt": [1, -1]}, None),
    ("nothing", TEXT, {}, None),
    ("a cut prompt", TEXT, {"prompt": "a", "truncate_prompt_tokens": 5}, None),
    ("a chat", CHAT, {"messages": [{"role": "user", "content": "a"}], "tools": [1], "temperature": 1},
     {"model": "m", "messages": [{"role": "user", "content": "a"}], "tools": [1]}),
    ("tools that may not be used", CHAT, {"messages": [{"role": "user", "content": "a"}], "tools": [1],
                                          "tool_choice": "none"}, None),
    ("an image", CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, None),
    ("documents", CHAT, {"messages": [{"role": "user", "content": "a"}], "documents": [{}]}, None),
    ("reasoning", CHAT, {"messages": [{"role": "user", "content": "a"}], "reasoning_effort": "low"}, None),
    ("no messages", CHAT, {"messages": 7}, None),
]  # fmt: skip


@pytest.mark.parametrize(("path", "data", "expected"), [case[1:] for case in QUESTIONS], ids=[case[0] for case in QUESTIONS])
def test_tokens_are_told_only_where_they_are_sure(path: str, data: dict[str, Any], expected: Any) -> None:
    assert question(path, data, "m") == expected
