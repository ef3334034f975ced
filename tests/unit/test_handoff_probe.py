"""What a probe's answers prove, as a table; and the prompts it asks with."""

from __future__ import annotations

import pytest

from controlplane.core.handoff_probe import BLOCKS, Seen, judge, make_prompt, word_count


def seen(pulled: float = 100, size: float = 4000.0, same: bool = True) -> Seen:
    return Seen(prompt_tokens=100, pulled_tokens=pulled, pulled_bytes=size, same_text=same)


@pytest.mark.parametrize(
    ("what", "counts_bytes", "verified", "kv_bytes", "said"),
    [
        (seen(), True, True, 4000, "KV of 100 prompt tokens (4,000 bytes) moved"),
        (seen(pulled=400), True, True, 1000, "(1,000 bytes)"),  # others' transfers are in the counter
        (seen(pulled=96), True, True, 4000, "moved"),  # the last block stayed behind
        (seen(size=0), False, True, None, "KV of 100 prompt tokens moved"),
        (seen(pulled=0, size=0), True, False, None, "0 of 100 prompt tokens came from the prefill engine"),
        (seen(pulled=49), True, False, None, "49 of 100"),
        (seen(size=0), True, False, None, "counted no bytes"),
        (seen(pulled=-5000), True, False, None, "started anew"),
        (seen(same=False), True, False, None, "the answer is not that of the same prompt"),
    ],
)
def test_a_pair_is_verified_only_by_kv_that_moved_and_text_that_is_right(
    what: Seen, counts_bytes: bool, verified: bool, kv_bytes: int | None, said: str
) -> None:
    verdict = judge(what, counts_bytes)
    assert (verdict.verified, verdict.kv_bytes) == (verified, kv_bytes)
    assert said in verdict.reason


@pytest.mark.parametrize(("block_size", "max_model_len"), [(16, 0), (16, 8192), (32, 2048), (128, 32768), (1, 0)])
def test_a_prompt_fills_several_blocks(block_size: int, max_model_len: int) -> None:
    prompt = make_prompt(word_count(block_size, max_model_len), lambda n: n - 1)
    assert len(prompt.split()) >= (BLOCKS - 1) * block_size


@pytest.mark.parametrize("max_model_len", [100, 2048, 4096])
def test_a_prompt_fits_into_any_model(max_model_len: int) -> None:
    assert len(make_prompt(word_count(128, max_model_len), lambda n: 0).split()) <= max_model_len / 4 + 1


def test_a_prompt_is_random_first_and_known_at_its_end() -> None:
    numbers = iter(range(40))
    words = make_prompt(40, lambda n: next(numbers) % n).split()
    assert words[40:] == words[:20]
    assert len(set(words[:40])) == 40
