"""Which engine holds which blocks, as engines tell."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.core.blockindex import BlockIndex, Cache


def stored(cache: Cache, *keys: int) -> Cache:
    """Engines' hashes here are the keys' negatives."""
    for key in keys:
        cache.store(-key, key)
    return cache


def test_a_prompt_is_found_as_far_as_each_engine_holds_it() -> None:
    index = BlockIndex()
    stored(index.add("a"), 1, 2, 3)
    stored(index.add("b"), 1, 2)
    stored(index.add("c"), 2, 3)
    assert index.match([1, 2, 3, 4]) == {"a": 3, "b": 2}
    assert index.match([2, 3]) == {"a": 2, "b": 1, "c": 2}
    assert index.match([9, 1]) == {}
    assert index.match([]) == {}


def test_of_two_equal_blocks_one_may_go() -> None:
    index = BlockIndex()
    cache = stored(index.add("a"), 1, 1, 1)
    for left in (1, 1, 0):
        cache.remove(-1)
        assert index.match([1]).get("a", 0) == left
    cache.remove(-1)
    assert (index.total, index.holders) == (0, {})


def test_a_dropped_engine_leaves_nothing_and_its_place_is_free() -> None:
    index = BlockIndex()
    stored(index.add("a"), 1, 2)
    stored(index.add("b"), 1)
    index.drop("a")
    assert (index.match([1, 2]), index.total) == ({"b": 1}, 1)
    stored(index.add("c"), 1, 2)
    assert index.match([1, 2]) == {"c": 2, "b": 1}


def test_what_there_is_no_room_for_makes_a_cache_a_part() -> None:
    index = BlockIndex(max_blocks=10)
    first, second = index.add("a"), index.add("b")
    first.whole = second.whole = True
    stored(first, *range(1, 13))
    assert (len(first), first.whole) == (10, False)
    stored(second, *range(1, 6))
    assert (len(second), second.whole) == (5, True)
    stored(second, 6)
    assert (len(second), second.whole, index.total) == (5, False, 15)


STEPS = st.lists(
    st.tuples(
        st.sampled_from("abc"), st.sampled_from(("store", "store", "store", "remove", "clear", "drop")), st.integers(1, 6)
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_it_knows_what_a_plain_list_of_blocks_would(steps: list[tuple[str, str, int]]) -> None:
    index = BlockIndex()
    plain: dict[str, Counter[int]] = {}
    for name, what, key in steps:
        cache = index.caches.get(name) or index.add(name)
        own = plain.setdefault(name, Counter())
        if what == "store":
            cache.store(-key, key)
            own[key] += 1
        elif what == "remove":
            cache.remove(-key)
            own[key] = max(0, own[key] - 1)
        elif what == "clear":
            cache.clear()
            own.clear()
        else:
            index.drop(name)
            del plain[name]
    for key in range(1, 7):
        assert index.match([key]) == {name: 1 for name, own in plain.items() if own[key]}
    assert index.total == sum(1 for own in plain.values() for count in own.values() if count)
