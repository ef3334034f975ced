"""Block hashes beside those that vLLM 0.32 computed (its own functions, called with these tokens)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.common.prefixhash import ALGORITHMS, PrefixHasher, event_hash, salt_keys

SMALL, LARGE = list(range(250, 266)), [each * 70001 % 4_000_000 for each in range(250, 266)]


@pytest.mark.parametrize(
    ("algorithm", "none", "salted", "after"),
    [
        (
            "sha256",
            "066b1e8987e027138e98701c46128929378935f9b6cd1549105ae6b4f0d71198",
            "72f94923fa34aad0f12ff15116df55ba5d83509280747ba8d7abeb9fabfe2799",
            "a5cc09d83fc46131ce2beeb94921e090badd110a1e45213384810118e9159279",
        ),
        (
            "sha256_cbor",
            "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0",
            "477f62ed556fa23a3531e2f32f702a01d1bd4f3c76cb70945b06621c6aa3c69c",
            "ac76ee4ae6f525e95baf2585d11e0de565ebc58a1db0f9c0749472e0ed4031f5",
        ),
    ],
)
def test_hashes_are_vllms(algorithm: str, none: str, salted: str, after: str) -> None:
    hasher = PrefixHasher(algorithm)
    assert hasher.none_hash.hex() == none
    first = hasher.block(None, SMALL, salt_keys("team-a"))
    assert first.hex() == salted
    assert hasher.block(first, LARGE).hex() == after
    assert [each.hex() for each in hasher.chain([*SMALL, *LARGE, 1], 16, "team-a")] == [salted, after]


def test_events_carry_the_low_64_bits() -> None:
    hashes = PrefixHasher().chain([1, 2, 3, 4, 5, 6, 7, 70000], 4)
    assert [event_hash(each) for each in hashes] == [1882140585328457242, 11555527206780696170]


def test_other_extra_keys_are_hashed_as_vllm_tags_them() -> None:
    hasher = PrefixHasher()
    second = hasher.block(hasher.block(None, SMALL, salt_keys("team-a")), LARGE)
    third = [each * 70001 % 4_000_000 for each in LARGE]
    digest = "d67babbf0327a0a329c3d838e1e38467e583951c6ec295cfb26efaa491c1cba7"
    assert hasher.block(second, third, (("lora", "l", "p"),)).hex() == digest


def test_a_seed_of_the_environment_replaces_vllms_own() -> None:
    assert PrefixHasher(seed="7").none_hash.hex() == "57cfd20ce97292a667d700097b3f1988b9b9b0f780d2625ebf56fb8789d4911b"


@pytest.mark.parametrize("algorithm", ["xxhash", "xxhash_cbor", "md5", ""])
def test_algorithms_that_differ_from_engine_to_engine_are_refused(algorithm: str) -> None:
    with pytest.raises(ValueError, match="one of sha256, sha256_cbor"):
        PrefixHasher(algorithm)


@given(st.lists(st.integers(0, (1 << 32) - 1), max_size=40), st.integers(1, 9), st.sampled_from(ALGORITHMS))
def test_a_longer_prompt_keeps_the_hashes_of_its_beginning(tokens: list[int], block: int, algorithm: str) -> None:
    hasher = PrefixHasher(algorithm)
    whole = hasher.chain(tokens, block)
    assert len(whole) == len(tokens) // block
    assert hasher.chain(tokens[: len(tokens) // 2], block) == whole[: len(tokens) // 2 // block]
    if whole:
        assert hasher.chain(tokens, block, "salt")[-1] != whole[-1]
