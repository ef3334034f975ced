"""What attention costs: FLOPs of new tokens, KV bytes read in a decode step. Pure; windows and shared caches respected."""

from __future__ import annotations

import math
from typing import NamedTuple

from controlplane.core.modelconfig import kv_element_bytes
from controlplane.core.shapes import Attention, Shape


class ReadLine(NamedTuple):
    """Bytes that one GPU reads in a decode step: base + per_token x sum of contexts, while that is below `until_context`."""

    base_bytes: float
    bytes_per_token: float
    until_context: float


def attention_flops(shape: Shape, tokens: float, past: float) -> float:
    """FLOPs, in the whole engine, of attention for a sequence's next `tokens` after `past` others (QK and PV products).

    A full causal layer: 2 x heads x (key_dim + value_dim) x tokens x (past + tokens / 2). A token of a windowed layer sees
    at most the window. The recurrence of state layers counts a multiply-add for decay, update and read-out of every number.
    """
    return sum(_flops(group, tokens, past) for group in shape.attention)


def kv_read_bytes(shape: Shape, tensor_parallel: int, dtype: str | None, sequences: int, context_sum: float) -> float:
    """Bytes of KV cache and state that one GPU reads (and for states writes) in a step of `sequences` decodes.

    `context_sum` is the sum of their contexts in tokens; windowed layers are taken at the mean context.
    """
    line = kv_read_line(shape, tensor_parallel, dtype, sequences, context_sum)
    return line.base_bytes + line.bytes_per_token * context_sum


def kv_read_line(shape: Shape, tensor_parallel: int, dtype: str | None, sequences: int, context_sum: float) -> ReadLine:
    """`kv_read_bytes` as the line that it is between two windows: the same for every sum below `until_context`."""
    element = kv_element_bytes(shape, dtype)
    base, slope, until = 0.0, 0.0, math.inf
    for group in shape.attention:
        token = group.layers * heads_per_gpu(group, tensor_parallel) * group.kv_elements * element
        base += sequences * 2 * state_bytes(shape, group) / tensor_parallel
        full_at = group.window * sequences if group.window else math.inf
        if context_sum < full_at:
            slope += token
            until = min(until, full_at)
        else:
            base += token * full_at
    return ReadLine(base, slope, until)


def heads_per_gpu(group: Attention, tensor_parallel: int) -> int:
    """KV heads (or the one latent) that each GPU holds: divided, and copied once there are more GPUs than heads."""
    return -(-group.kv_heads // tensor_parallel) if group.split else group.kv_heads


def state_bytes(shape: Shape, group: Attention) -> int:
    """Recurrent and convolution state of one request in all layers of the group."""
    layer = group.state_elements * group.state_element_bytes + group.conv_elements * shape.activation_bytes
    return group.layers * layer


def _flops(group: Attention, tokens: float, past: float) -> float:
    if group.kind == "state":
        return 6.0 * group.layers * group.state_elements * tokens
    pairs = _pairs(group, past + tokens) - _pairs(group, past)
    return 2.0 * group.layers * group.heads * (group.key_dim + group.value_dim) * pairs


def _pairs(group: Attention, length: float) -> float:
    """Pairs of a token and one that it sees, in a sequence of `length` tokens (half of a square where nothing limits)."""
    window = group.window
    if not window or length <= window:
        return length * length / 2
    if group.kind == "chunked":
        chunks, rest = divmod(length, window)
        return chunks * window * window / 2 + rest * rest / 2
    return window * window / 2 + (length - window) * window
