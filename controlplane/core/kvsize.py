"""Sizes of a model computed from its config.json: KV cache, weights, parameters. Pure; all sizes in bytes.

KV bytes per token are what all GPUs of an engine hold together; with more GPUs than KV heads each GPU holds a copy of a
head, which `kv_bytes_per_token_per_gpu` counts and the transfer size does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.core.modelconfig import ConfigRefused, Shape, dtype_bytes, read_shape

__all__ = [
    "ConfigRefused",
    "Parameters",
    "kv_bytes_of_shape",
    "kv_bytes_per_token",
    "kv_bytes_per_token_per_gpu",
    "kv_element_bytes",
    "parameters",
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
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * kv_element_bytes(shape, dtype)


def kv_bytes_per_token_per_gpu(shape: Shape, tensor_parallel: int, dtype: str | None = None) -> int:
    """KV-cache bytes that one token takes on one GPU: heads are split, and copied once there are more GPUs than heads."""
    heads = max(1, -(-shape.kv_heads // tensor_parallel))
    return 2 * shape.layers * heads * shape.head_dim * kv_element_bytes(shape, dtype)


def kv_element_bytes(shape: Shape, dtype: str | None = None) -> int:
    """Bytes of one number in the KV cache. Raises ConfigRefused for an unknown data type."""
    return shape.activation_bytes if dtype in (None, "auto") else dtype_bytes(dtype, "kv dtype")


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
