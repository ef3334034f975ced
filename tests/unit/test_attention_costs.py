"""FLOPs of attention against sums over tokens, and KV bytes read in a decode step."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from controlplane.core.attention import attention_flops, kv_read_bytes, kv_read_line
from controlplane.core.shapes import Attention, Shape
from tests.unit.model_configs import NAMES, shape

LLAMA = shape("llama-3.1-70b")


def alone(group: Attention) -> Shape:
    return replace(LLAMA, attention=(group,))


def seen(group: Attention, position: float) -> float:
    """Tokens that a token at this place of the sequence sees, taken at its middle."""
    if group.kind == "chunked":
        return position % group.window
    return min(position, group.sees) if group.sees else position


@pytest.mark.parametrize("past", [0, 3, 64, 65, 200])
@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 300])
@pytest.mark.parametrize(
    "group",
    [
        Attention("full", 3, 4, 2, 16, 16, 32),
        Attention("full", 3, 4, 2, 24, 16, 40),
        Attention("sliding", 2, 4, 2, 16, 16, 32, window=64),
        Attention("chunked", 2, 4, 2, 16, 16, 32, window=64),
        Attention("latent", 2, 8, 1, 24, 16, 40, sparse_tokens=64),
    ],
    ids=lambda group: f"{group.kind}{group.sees}",
)
def test_flops_are_the_sum_over_the_tokens_that_each_token_sees(group: Attention, tokens: int, past: int) -> None:
    pairs = sum(seen(group, past + index + 0.5) for index in range(tokens))
    expected = 2 * group.layers * group.heads * (group.key_dim + group.value_dim) * pairs
    # At a window's edge half a token is seen more or less.
    assert attention_flops(alone(group), tokens, past) == pytest.approx(
        expected, rel=1e-9, abs=expected * 0.02 if group.sees else 0
    )


def test_a_full_causal_layer_costs_the_textbook_formula() -> None:
    assert attention_flops(LLAMA, 4096, 1000) == 4 * 64 * 128 * 80 * 4096 * (1000 + 2048)


def test_an_indexer_looks_at_every_token_though_attention_does_not() -> None:
    v3, v32 = shape("deepseek-v3"), shape("deepseek-v3.2")
    short, long = (attention_flops(v32, 1, past) for past in (100_000, 200_000))
    assert long - short == pytest.approx(61 * 2 * 64 * 128 * 100_000)
    assert attention_flops(v3, 1, 200_000) > long


def test_chunked_prefills_add_up_to_the_whole() -> None:
    for name in NAMES:
        model = shape(name)
        whole = attention_flops(model, 30_000, 0)
        assert attention_flops(model, 10_000, 0) + attention_flops(model, 20_000, 10_000) == pytest.approx(whole)


def test_a_state_costs_the_same_for_every_token() -> None:
    state = alone(Attention("state", 4, 8, state_elements=1000, state_element_bytes=2))
    assert attention_flops(state, 10, 0) == attention_flops(state, 10, 10_000) == 6 * 4 * 1000 * 10


def test_decode_reads_windows_latents_and_states_as_they_are_kept() -> None:
    assert kv_read_bytes(LLAMA, 4, None, 8, 8000) == 8000 * 327_680 / 4
    assert kv_read_bytes(shape("deepseek-v3"), 8, "fp8", 2, 1000) == 1000 * 35_136
    gemma = shape("gemma-2-27b")
    assert kv_read_bytes(gemma, 1, None, 2, 2 * 3000) == 6000 * 376_832
    assert kv_read_bytes(gemma, 1, None, 2, 2 * 6000) == (12_000 + 8192) * 188_416
    hybrid = shape("qwen3-next-80b-a3b")
    assert kv_read_bytes(hybrid, 2, None, 3, 0) == 3 * 2 * 77_266_944 / 2
    # Layers that share a cache read it all the same.
    shared = shape("gemma-3n-e4b")
    assert kv_read_bytes(shared, 1, None, 1, 100) == 35 * 2 * 2 * 256 * 2 * 100
    sparse = shape("deepseek-v3.2")
    assert kv_read_bytes(sparse, 8, None, 1, 100_000) == 2048 * 70_272 + 100_000 * 8052


@pytest.mark.parametrize("name", NAMES)
def test_the_line_holds_until_its_end_and_reading_never_falls_with_context(name: str) -> None:
    model, sequences = shape(name), 3
    sums = [0, 1, 100, 3 * 128, 3 * 128 + 1, 3 * 1024 + 1, 3 * 4096, 3 * 8192, 3 * 50_000]
    read = [kv_read_bytes(model, 1, None, sequences, context) for context in sums]
    assert read == sorted(read)
    for context in sums:
        line = kv_read_line(model, 1, None, sequences, context)
        last = math.nextafter(line.until_context, 0) if math.isfinite(line.until_context) else 1e9
        at_end = line.base_bytes + line.bytes_per_token * last
        assert at_end == pytest.approx(kv_read_bytes(model, 1, None, sequences, last))
