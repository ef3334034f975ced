"""The index of prefixes: what it finds, what it forgets and that it stays bounded."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.core.kvindex import LEAST_TRUST, NO_PREFIX, KvIndex, Prefix


def chain(*parts: int) -> list[int]:
    """Keys that depend on all before them, as real ones do."""
    keys: list[int] = []
    for part in parts:
        keys.append(hash((keys[-1] if keys else 0, part)))
    return keys


def found(index: KvIndex, keys: list[int]) -> dict[str, int]:
    return {holder.name: blocks for holder, blocks in index.match(keys).items()}


def test_one_walk_tells_what_each_engine_holds() -> None:
    index = KvIndex()
    a, b, c = (index.add(name) for name in "abc")
    a.insert(chain(1, 2, 3, 4), 0)
    b.insert(chain(1, 2, 9), 0)
    c.insert(chain(7), 0)
    assert found(index, chain(1, 2, 3, 4, 5)) == {"a": 4, "b": 2}
    assert found(index, chain(1, 2, 9)) == {"a": 2, "b": 3}
    assert found(index, chain(1)) == {"a": 1, "b": 1}
    assert found(index, chain(7, 1)) == {"c": 1}
    assert found(index, chain(2)) == {}
    assert found(index, []) == {}


def test_the_same_block_after_another_prefix_is_another_one() -> None:
    index = KvIndex()
    index.add("a").insert(chain(1, 2), 0)
    assert found(index, chain(3, 2)) == {}


def test_a_full_engine_forgets_what_was_used_longest_ago_and_ends_before_starts() -> None:
    index = KvIndex()
    a = index.add("a", capacity=16)
    old, new = chain(*range(8)), chain(*range(100, 108))
    a.insert(old, 0)
    a.insert(new, 1)
    assert (found(index, old), found(index, new)) == ({"a": 8}, {"a": 8})
    a.insert(chain(50), 2)
    assert len(a.held) <= 16
    assert found(index, old) == {"a": 7}
    assert found(index, new) == {"a": 8}
    a.insert(old, 3)
    a.insert(chain(*range(200, 203)), 4)
    assert found(index, old) == {"a": 8}
    assert 0 < found(index, new).get("a", 0) < 8


def test_a_prompt_longer_than_a_cache_leaves_its_start() -> None:
    index = KvIndex()
    a = index.add("a", capacity=5)
    a.insert(chain(*range(20)), 0)
    assert found(index, chain(*range(20))) == {"a": 5}


def test_what_is_not_used_grows_old() -> None:
    index = KvIndex()
    a, b = index.add("a"), index.add("b")
    a.insert(chain(1, 2), 0)
    b.insert(chain(1, 2), 50)
    a.insert(chain(5), 60)
    index.expire(before=40)
    assert found(index, chain(1, 2)) == {"b": 2}
    assert found(index, chain(5)) == {"a": 1}
    index.expire(before=1000)
    assert (len(index), index.holders) == (0, {})


def test_a_replaced_engine_is_forgotten_and_its_late_legs_add_nothing_to_the_new_one() -> None:
    index = KvIndex()
    first, other = index.add("a"), index.add("b")
    first.insert(chain(1, 2), 0)
    other.insert(chain(1), 0)
    first.close()
    second = index.add("a")
    assert found(index, chain(1, 2)) == {"b": 1}
    first.insert(chain(1, 2), 1)
    first.close()
    assert found(index, chain(1, 2)) == {"b": 1}
    second.insert(chain(1, 2), 2)
    assert found(index, chain(1, 2)) == {"a": 2, "b": 1}
    second.forget()
    assert found(index, chain(1, 2)) == {"b": 1}


def test_a_share_of_the_whole_is_the_most_an_engine_may_hold() -> None:
    index = KvIndex(max_blocks=64)
    holders = [index.add(str(number), capacity=1000) for number in range(4)]
    for number, holder in enumerate(holders):
        holder.insert(chain(*range(1000 * number, 1000 * number + 40)), 0)
    assert [len(holder.held) for holder in holders] == [16] * 4
    full = KvIndex(max_blocks=1)
    for name in "ab":
        full.add(name).insert(chain(1), 0)
    assert len(full) == 0


def test_an_engine_whose_cache_holds_less_is_trusted_less_and_again_more() -> None:
    holder = KvIndex().add("a")
    for _ in range(100):
        holder.found(int(1000 * holder.trust), 400)
    assert 0.38 < holder.trust < 0.42
    for _ in range(100):
        holder.found(int(1000 * holder.trust), 0)
    assert holder.trust == LEAST_TRUST
    for _ in range(100):
        holder.found(int(1000 * holder.trust), 1000)
    assert holder.trust > 0.95
    holder.found(0, 0)
    assert holder.trust > 0.95


def test_blocks_count_as_their_share_of_the_tokens() -> None:
    prefix = Prefix(keys=(1, 2, 3), ends=(512, 1024, 2048, 4096), size=4000)
    assert [prefix.tokens(blocks, 1000) for blocks in range(4)] == [0, 128, 256, 512]
    assert NO_PREFIX.tokens(0, 1000) == 0


def test_a_day_of_traffic_leaves_it_bounded() -> None:
    """24 h at 20 requests/s of ever new prompts, every hundredth request played."""
    index = KvIndex(max_blocks=4000)
    holders = [index.add(str(number), capacity=1500 if number % 2 else 0) for number in range(8)]
    most = 0
    for request in range(24 * 3600 // 5):
        now = request * 5.0
        holders[request % 8].insert(chain(request % 50, *range(request, request + 18)), now)
        if request % 12 == 0:
            index.expire(now - 3600)
        most = max(most, len(index))
    assert most <= 4000
    assert len(index.holders) <= len(index)
    index.expire(1e9)
    assert (len(index), index.holders) == (0, {})


Action = tuple[str, int, list[int]]
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(("insert", "insert", "insert", "close", "forget", "expire")),
        st.integers(0, 3),
        st.lists(st.integers(0, 3), max_size=6),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(ACTIONS, st.lists(st.integers(0, 3), max_size=7))
def test_it_agrees_with_looking_into_every_engine(actions: list[Action], parts: list[int]) -> None:
    index = KvIndex(max_blocks=80)
    holders = [index.add(str(number), capacity=number * 8) for number in range(4)]
    for time, (verb, number, path) in enumerate(actions):
        if verb == "insert":
            holders[number].insert(chain(*path), time)
        elif verb == "close":
            holders[number].close()
            holders[number] = index.add(str(number), capacity=number * 8)
        elif verb == "forget":
            holders[number].forget()
        else:
            index.expire(time - 3)
    keys = chain(*parts)
    expected = {}
    for holder in holders:
        depth = next((depth for depth, key in enumerate(keys) if key not in holder.held), len(keys))
        if depth:
            expected[holder.name] = depth
        assert list(holder.held.values()) == sorted(holder.held.values())
    assert found(index, keys) == expected
    assert set(index.holders) == {key for holder in holders for key in holder.held}
    assert len(index) <= 80
