"""What attention costs: FLOPs of new tokens, KV bytes read in a decode step. Pure; windows and shared caches respected."""

from __future__ import annotations

import math
from typing import NamedTuple

from controlplane.core.configfields import ConfigRefused, dtype_bytes
from controlplane.core.shapes import Attention, Shape

PACKED_LATENT = "fp8_ds_mla"
"""vLLM's fp8 layout of DeepSeek's latent: 512 fp8 numbers, four float32 scales, 64 numbers of rotary key in bf16."""
PACKED_LATENT_ELEMENTS, PACKED_LATENT_BYTES = 576, 656
STATE_FLOPS = 6.0
"""Per number of a recurrent state and token: a multiply-add each for decay, update and read-out."""


class ReadLine(NamedTuple):
    """Bytes that one GPU reads in a decode step: base + per_token x sum of contexts, while that is below `until_context`."""

    base_bytes: float
    bytes_per_token: float
    until_context: float


def attention_flops(shape: Shape, tokens: float, past: float) -> float:
    """FLOPs, in the whole engine, of attention for a sequence's next `tokens` after `past` others (QK and PV products).

    A full causal layer: 2 x heads x (key_dim + value_dim) x tokens x (past + tokens / 2). A token of a windowed or sparse
    layer sees at most its window; an indexer compares it with all tokens before. States: STATE_FLOPS per number and token.
    Not counted: unfolding the latents of `past` again in each chunk of a prefill.
    """
    return sum(_flops(group, tokens, past) for group in shape.attention)


def kv_read_bytes(shape: Shape, tensor_parallel: int, dtype: str | None, sequences: int, context_sum: float) -> float:
    """Bytes of KV cache and state that one GPU reads (and for states writes) in a step of `sequences` decodes.

    `context_sum` is the sum of their contexts in tokens; windowed layers are taken at the mean context, chunked ones as if
    all sequences were at the end of a chunk.
    """
    line = kv_read_line(shape, tensor_parallel, dtype, sequences, context_sum)
    return line.base_bytes + line.bytes_per_token * context_sum


def kv_read_line(shape: Shape, tensor_parallel: int, dtype: str | None, sequences: int, context_sum: float) -> ReadLine:
    """`kv_read_bytes` as the line that it is between two windows: the same for every sum below `until_context`."""
    base, slope, until = 0.0, 0.0, math.inf
    for group in shape.attention:
        token = group.layers * heads_per_gpu(group, tensor_parallel) * head_token_bytes(shape, group, dtype)
        base += sequences * 2 * state_bytes(shape, group) / tensor_parallel
        slope += group.layers * group.indexer_bytes
        seen_by_all = group.sees * sequences if group.sees else math.inf
        if context_sum < seen_by_all:
            slope += token
            until = min(until, seen_by_all)
        else:
            base += token * seen_by_all
    return ReadLine(base, slope, until)


def kv_element_bytes(shape: Shape, dtype: str | None = None) -> int:
    """Bytes of one number in the KV cache; None and "auto": as the checkpoint says. Raises ConfigRefused if unknown."""
    return shape.cache_bytes if dtype in (None, "auto") else dtype_bytes(dtype, "kv dtype")


def head_token_bytes(shape: Shape, group: Attention, dtype: str | None) -> int:
    """Bytes that one token takes in one KV head (or latent) of one caching layer. Raises ConfigRefused for a wrong type."""
    if dtype != PACKED_LATENT:
        return group.kv_elements * kv_element_bytes(shape, dtype)
    if group.kind != "latent" or group.kv_elements != PACKED_LATENT_ELEMENTS:
        raise ConfigRefused("kv dtype", f"{PACKED_LATENT} is only for latents of 512 + 64 numbers, as DeepSeek's; use fp8")
    return PACKED_LATENT_BYTES


def heads_per_gpu(group: Attention, tensor_parallel: int) -> int:
    """KV heads that each GPU holds: divided, and copied once there are more GPUs than heads, as the one latent always is."""
    return -(-group.kv_heads // tensor_parallel)


def state_bytes(shape: Shape, group: Attention) -> int:
    """Recurrent and convolution state of one request in all layers of the group."""
    layer = group.state_elements * group.state_element_bytes + group.conv_elements * shape.activation_bytes
    return group.layers * layer


def _flops(group: Attention, tokens: float, past: float) -> float:
    if group.kind == "state":
        return STATE_FLOPS * group.layers * group.state_elements * tokens
    pairs = _pairs(group, past + tokens) - _pairs(group, past)
    flops = 2.0 * group.heads * (group.key_dim + group.value_dim) * pairs
    indexer = 2.0 * group.indexer_heads * group.indexer_dim * tokens * (past + tokens / 2)
    return group.layers * (flops + indexer)


def _pairs(group: Attention, length: float) -> float:
    """Pairs of a token and one that it sees, in a sequence of `length` tokens (half of a square where nothing limits)."""
    limit = group.sees
    if not limit or length <= limit:
        return length * length / 2
    if group.kind == "chunked":
        chunks, rest = divmod(length, limit)
        return chunks * limit * limit / 2 + rest * rest / 2
    return limit * limit / 2 + (length - limit) * limit
