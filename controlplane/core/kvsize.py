"""Sizes of a model computed from its config.json: KV cache, weights, parameters. Pure; all sizes in bytes.

KV bytes per token are what all GPUs of an engine hold together; with more GPUs than KV heads each GPU holds a copy of a
head, which `kv_bytes_per_token_per_gpu` counts and the transfer size does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.core.attention import attention_flops, heads_per_gpu, kv_read_bytes, kv_read_line, state_bytes
from controlplane.core.modelconfig import ConfigRefused, kv_element_bytes, read_shape
from controlplane.core.shapes import Shape

__all__ = [
    "ConfigRefused",
    "Parameters",
    "attention_flops",
    "ideal_bytes",
    "kv_bytes_of_shape",
    "kv_bytes_per_token",
    "kv_bytes_per_token_per_gpu",
    "kv_element_bytes",
    "kv_read_bytes",
    "kv_read_line",
    "parameters",
    "transfer_bytes",
    "weights_bytes",
]


@dataclass(frozen=True)
class Parameters:
    """Numbers of weights. `linear` are all matrices inside the layers, `linear_active` those that one token passes."""

    linear: int
    linear_active: int
    expert_linear: int
    """The part of `linear` that sits in experts of which a token passes only some."""
    embedding: int
    head: int
    """0 when tied to the embedding."""
    other: int
    """Norms and biases."""

    @property
    def total(self) -> int:
        return self.linear + self.embedding + self.head + self.other

    @property
    def active(self) -> int:
        """Parameters one token uses, embedding and head included."""
        return self.linear_active + self.embedding + self.head + self.other


def kv_bytes_per_token(config: Mapping[str, Any], dtype: str | None = None) -> int:
    """KV-cache bytes that one token takes in the whole engine. `dtype` is the KV cache's (None or "auto": the model's own).

    Llama-3.1-70B in bf16: 327,680. Raises ConfigRefused naming the field that is missing or not supported.
    """
    return kv_bytes_of_shape(read_shape(config), dtype)


def kv_bytes_of_shape(shape: Shape, dtype: str | None = None) -> int:
    """`kv_bytes_per_token` for a config that was read already."""
    elements = sum(each.cached_layers * each.kv_heads * each.kv_elements for each in shape.attention if not each.window)
    return elements * kv_element_bytes(shape, dtype)


def kv_bytes_per_token_per_gpu(shape: Shape, tensor_parallel: int, dtype: str | None = None) -> int:
    """KV-cache bytes that one token takes on one GPU: heads are split, and copied once there are more GPUs than heads."""
    groups = (each for each in shape.attention if not each.window)
    elements = sum(each.cached_layers * heads_per_gpu(each, tensor_parallel) * each.kv_elements for each in groups)
    return elements * kv_element_bytes(shape, dtype)


def ideal_bytes(shape: Shape, dtype: str | None, tokens: int) -> int:
    """KV cache and state that a request of `tokens` needs in the whole engine, if windowed layers keep their window only."""
    kept = (
        each.cached_layers * each.kv_heads * each.kv_elements * (min(tokens, each.window) if each.window else tokens)
        for each in shape.attention
    )
    return sum(kept) * kv_element_bytes(shape, dtype) + sum(state_bytes(shape, each) for each in shape.attention)


def transfer_bytes(shape: Shape, dtype: str | None, tokens: int) -> int:
    """What a KV transfer of a prompt of `tokens` moves, in bytes: what `ideal_bytes` counts, once, whatever the TP."""
    return ideal_bytes(shape, dtype, tokens)


def parameters(shape: Shape) -> Parameters:
    """Parameter counts of a dense or simple mixture-of-experts decoder."""
    matrices = 3 if shape.gated_mlp else 2
    query, key_value = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    attention = shape.layers * 2 * shape.hidden * (query + key_value)
    dense = (shape.layers - shape.moe_layers) * matrices * shape.hidden * shape.intermediate
    always = shape.moe_layers * shape.hidden * (shape.experts + matrices * shape.shared_intermediate)
    expert = shape.moe_layers * matrices * shape.hidden * shape.expert_intermediate
    norms = shape.hidden * (2 * shape.layers + 1) + (2 * shape.head_dim * shape.layers if shape.qk_norm else 0)
    biases = shape.layers * (query + 2 * key_value) if shape.attention_bias else 0
    embedding = shape.vocab * shape.hidden
    return Parameters(
        linear=attention + dense + always + expert * shape.experts,
        linear_active=attention + dense + always + expert * shape.experts_per_token,
        expert_linear=expert * shape.experts,
        embedding=embedding,
        head=0 if shape.tied_head else embedding,
        other=norms + biases,
    )


def weights_bytes(shape: Shape) -> int:
    """Bytes of all weights in the whole engine, before any copy that tensor parallelism makes."""
    counts = parameters(shape)
    rest = counts.embedding + counts.head + counts.other
    return round(counts.linear * shape.weight_bytes) + rest * shape.activation_bytes
