"""What holds for the sizes of every model at every length."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core import kvsize
from controlplane.core.modelconfig import read_shape
from tests.unit.model_configs import NAMES, shape

SHAPES = {name: shape(name) for name in NAMES}
names = st.sampled_from(NAMES)
dtypes = st.sampled_from(["auto", "bf16", "fp8", "float32"])
lengths = st.integers(1, 2_000_000)


def longest_window(name: str) -> int:
    return max(group.window for group in SHAPES[name].attention)


@given(names, dtypes, lengths, lengths)
def test_ideal_bytes_are_linear_beyond_the_windows(name: str, dtype: str, tokens: int, more: int) -> None:
    model, start = SHAPES[name], longest_window(name) + tokens
    grown = kvsize.ideal_bytes(model, dtype, start + more) - kvsize.ideal_bytes(model, dtype, start)
    if all(group.window for group in model.attention):
        assert grown == 0
    else:
        assert grown == more * kvsize.kv_bytes_of_shape(model, dtype)
        total = kvsize.kv_bytes_of_shape(model, dtype) * start + kvsize.fixed_bytes_of_shape(model, dtype)
        assert kvsize.ideal_bytes(model, dtype, start) == total


@given(names, dtypes, lengths, lengths)
def test_bytes_never_fall_with_length_nor_exceed_what_is_reserved(name: str, dtype: str, one: int, other: int) -> None:
    model, (short, long) = SHAPES[name], sorted((one, other))
    for size in (kvsize.ideal_bytes, kvsize.reserved_bytes, kvsize.transfer_bytes):
        assert size(model, dtype, short) <= size(model, dtype, long)
    assert kvsize.ideal_bytes(model, dtype, long) <= kvsize.transfer_bytes(model, dtype, long)
    assert kvsize.transfer_bytes(model, dtype, long) <= kvsize.reserved_bytes(model, dtype, long)
    hybrid = kvsize.reserved_bytes_hybrid(model, dtype, long)
    assert kvsize.ideal_bytes(model, dtype, long) <= hybrid <= kvsize.reserved_bytes(model, dtype, long + 15)


@given(names, dtypes, lengths)
def test_the_parts_of_a_transfer_sum_up(name: str, dtype: str, tokens: int) -> None:
    model = SHAPES[name]
    assert kvsize.transfer_size(model, dtype).bytes(tokens) == kvsize.transfer_bytes(model, dtype, tokens)
    if tokens > longest_window(name) and not all(group.window for group in model.attention):
        parts = kvsize.transfer_bytes_per_token(model, dtype) * tokens + kvsize.transfer_fixed_bytes(model, dtype)
        assert kvsize.transfer_bytes(model, dtype, tokens) == parts


@given(names, lengths, st.sampled_from([1, 2, 4, 8, 16]))
def test_gpus_together_hold_no_less_than_the_engine(name: str, tokens: int, degree: int) -> None:
    model = SHAPES[name]
    whole = kvsize.ideal_bytes(model, None, tokens)
    each = kvsize.ideal_bytes(model, None, tokens, degree)
    assert whole <= each * degree
    assert each <= whole


@given(
    st.integers(1, 128),
    st.integers(1, 16),
    st.integers(1, 16),
    st.sampled_from([32, 64, 96, 128, 256]),
    st.integers(1, 1000),
)
def test_any_llama_takes_two_numbers_per_layer_head_and_dimension(
    layers: int, kv_heads: int, queries: int, head_dim: int, tokens: int
) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_hidden_layers": layers,
        "num_attention_heads": kv_heads * queries,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": 1000,
        "torch_dtype": "bfloat16",
    }
    assert kvsize.ideal_bytes(read_shape(config), None, tokens) == 2 * 2 * layers * kv_heads * head_dim * tokens


@pytest.mark.parametrize("tokens", [0, -1, True, False, 1.0, float("nan"), float("inf"), "4096", None, 1 << 40, [1]])
@pytest.mark.parametrize("size", [kvsize.ideal_bytes, kvsize.reserved_bytes, kvsize.transfer_bytes])
def test_a_count_of_tokens_that_is_none_is_refused(size: Any, tokens: Any) -> None:
    with pytest.raises(ValueError, match="tokens must be a whole number from 1 to"):
        size(SHAPES["llama-3.1-8b"], None, tokens)
