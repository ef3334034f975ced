"""Sizes of a model's KV cache computed from its config.json. Pure; all sizes in bytes, of the whole engine unless said.

Two ways to count. *Ideal* is what the architecture needs: a layer with a window keeps the window's tokens, a state has a
fixed size. *Reserved* is what an engine sets aside per token when every attention layer keeps every token. vLLM 0.32 does so
where its hybrid KV cache manager is off: on a CPU, with chunked attention, with KV connectors that do not support it. Where
it is on (GPU with NixlConnector, by default) layers with a window free what lies before it (`reserved_bytes_hybrid`). So
`reserved_bytes_per_token` is the upper bound to plan capacity on.

More GPUs than KV heads hold copies of a head, which the per-GPU figures count and a transfer does not. A latent (MLA) is one
vector for keys and values together, which every GPU of the group holds whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from controlplane.core.attention import (
    PACKED_LATENT,
    attention_flops,
    head_token_bytes,
    heads_per_gpu,
    kv_element_bytes,
    kv_read_bytes,
    kv_read_line,
    state_bytes,
)
from controlplane.core.configfields import ConfigRefused
from controlplane.core.modelconfig import read_shape
from controlplane.core.modelsize import (
    Parameters,
    active_parameters,
    flops_per_token,
    linear_bytes,
    parameters,
    weights_bytes,
)
from controlplane.core.shapes import Attention, Shape

__all__ = [
    "MAX_TOKENS",
    "PACKED_LATENT",
    "ConfigRefused",
    "KvSize",
    "Parameters",
    "active_parameters",
    "attention_flops",
    "checked_tokens",
    "fixed_bytes_of_shape",
    "fixed_bytes_per_request",
    "flops_per_token",
    "ideal_bytes",
    "indexer_bytes_per_token",
    "kv_bytes_of_shape",
    "kv_bytes_per_token",
    "kv_bytes_per_token_per_gpu",
    "kv_element_bytes",
    "kv_read_bytes",
    "kv_read_line",
    "linear_bytes",
    "parameters",
    "reserved_bytes",
    "reserved_bytes_hybrid",
    "reserved_bytes_per_token",
    "reserved_bytes_per_token_per_gpu",
    "state_bytes",
    "state_bytes_per_request_per_gpu",
    "token_bytes",
    "transfer_bytes",
    "transfer_bytes_per_token",
    "transfer_fixed_bytes",
    "transfer_size",
    "weights_bytes",
]

MAX_TOKENS = 1 << 31


class KvSize(NamedTuple):
    """Bytes that a transfer moves: per token, once per request, and per token of the last `window_tokens` of the prompt."""

    per_token: int
    fixed: int = 0
    window_per_token: int = 0
    window_tokens: int = 0

    def bytes(self, tokens: int) -> int:
        return self.per_token * tokens + self.fixed + self.window_per_token * min(tokens, self.window_tokens)


def kv_bytes_per_token(config: Mapping[str, Any], dtype: str | None = None) -> int:
    """`kv_bytes_of_shape` of a config.json. `dtype` is the KV cache's (None or "auto": the model's own).

    Llama-3.1-70B in bf16: 327,680. Raises ConfigRefused naming the field that is missing or not supported.
    """
    return kv_bytes_of_shape(read_shape(config), dtype)


def kv_bytes_of_shape(shape: Shape, dtype: str | None = None) -> int:
    """Bytes of keys and values by which a request grows with each token, once it is longer than every window.

    A model whose layers all have a window stops growing: for it, what a token takes until then. An indexer's keys are apart
    (`indexer_bytes_per_token`). Raises ConfigRefused for an unknown data type.
    """
    return sum(token_bytes(shape, group, dtype) for group in _growing(shape))


def kv_bytes_per_token_per_gpu(shape: Shape, tensor_parallel: int, dtype: str | None = None) -> int:
    """`kv_bytes_of_shape` on one GPU: heads are split, and copied once there are more GPUs than heads."""
    return sum(token_bytes(shape, group, dtype, tensor_parallel) for group in _growing(shape))


def fixed_bytes_per_request(config: Mapping[str, Any], dtype: str | None = None) -> int:
    """`fixed_bytes_of_shape` of a config.json."""
    return fixed_bytes_of_shape(read_shape(config), dtype)


def fixed_bytes_of_shape(shape: Shape, dtype: str | None = None) -> int:
    """What a request longer than every window takes besides `kv_bytes_of_shape` per token: full windows and states.

    0 where all layers have a window (see `kv_bytes_of_shape`); `ideal_bytes` caps.
    """
    growing = _growing(shape)
    windows = sum(token_bytes(shape, group, dtype) * group.window for group in shape.attention if group not in growing)
    return windows + _states(shape)


def indexer_bytes_per_token(shape: Shape) -> int:
    """Keys of a sparse-attention indexer (DeepSeek-V3.2), which a request keeps besides its latents."""
    return sum(group.layers * group.indexer_bytes for group in shape.attention)


def ideal_bytes(shape: Shape, dtype: str | None, tokens: int, tensor_parallel: int = 1) -> int:
    """Keys, values and states that a request of `tokens` needs: windows cap, states are whole from the first token.

    Beyond the windows `kv_bytes_of_shape` x tokens + `fixed_bytes_of_shape`. An indexer's keys are not in it. With
    `tensor_parallel`: on one of so many GPUs. Raises ValueError for a count that is none.
    """
    tokens = checked_tokens(tokens)
    kept = (
        token_bytes(shape, group, dtype, tensor_parallel) * min(tokens, group.window or tokens) for group in shape.attention
    )
    return sum(kept) + state_bytes_per_request_per_gpu(shape, tensor_parallel)


def reserved_bytes_per_token(shape: Shape, dtype: str | None = None) -> int:
    """What an engine sets aside per token when every attention layer keeps it (see above), an indexer's keys included."""
    return sum(token_bytes(shape, group, dtype) for group in shape.attention) + indexer_bytes_per_token(shape)


def reserved_bytes_per_token_per_gpu(shape: Shape, tensor_parallel: int, dtype: str | None = None) -> int:
    """`reserved_bytes_per_token` on one GPU; latents and the indexer's keys are not divided."""
    tokens = sum(token_bytes(shape, group, dtype, tensor_parallel) for group in shape.attention)
    return tokens + indexer_bytes_per_token(shape)


def reserved_bytes(shape: Shape, dtype: str | None, tokens: int) -> int:
    """What an engine sets aside for a request of `tokens`: `reserved_bytes_per_token` each, and its states."""
    return reserved_bytes_per_token(shape, dtype) * checked_tokens(tokens) + _states(shape)


def reserved_bytes_hybrid(
    shape: Shape, dtype: str | None, tokens: int, block_size: int = 16, tokens_in_flight: int = 0
) -> int:
    """What vLLM holds for a request of `tokens` when its hybrid KV cache manager frees what windows have passed.

    Whole blocks; of a sliding layer at most those of window - 1 + `tokens_in_flight` (a prompt's tokens being computed) and
    one more. Chunked layers keep everything. Not counted: padding that makes blocks of unlike layers equal.
    """
    blocks = -(-checked_tokens(tokens) // block_size)
    held = 0
    for group in shape.attention:
        most = -(-(group.window - 1 + tokens_in_flight) // block_size) + 1 if group.kind == "sliding" else blocks
        held += (token_bytes(shape, group, dtype) + group.layers * group.indexer_bytes) * block_size * min(blocks, most)
    return held + _states(shape)


def state_bytes_per_request_per_gpu(shape: Shape, tensor_parallel: int) -> int:
    """Recurrent and convolution states of a request on one GPU: tensor parallelism divides their heads."""
    return -(-_states(shape) // tensor_parallel)


def transfer_bytes(shape: Shape, dtype: str | None, tokens: int) -> int:
    """What a KV transfer of a prompt of `tokens` moves, once, whatever the tensor parallelism.

    As vLLM's NixlConnector does it: a sliding layer's window only, states whole, an indexer's keys too. Chunked layers are
    moved whole, because vLLM keeps them whole.
    """
    tokens = checked_tokens(tokens)
    moved = (
        token_bytes(shape, group, dtype) * (min(tokens, group.window) if group.kind == "sliding" else tokens)
        for group in shape.attention
    )
    return sum(moved) + indexer_bytes_per_token(shape) * tokens + _states(shape)


def transfer_size(shape: Shape, dtype: str | None = None) -> KvSize:
    """`transfer_bytes` as few numbers, for routers and records: the same for every prompt, if all windows are one size.

    With windows of several sizes all are taken as long as the longest, an upper bound.
    """
    sliding = [group for group in shape.attention if group.kind == "sliding"]
    rest = sum(token_bytes(shape, group, dtype) for group in shape.attention if group.kind != "sliding")
    return KvSize(
        per_token=rest + indexer_bytes_per_token(shape),
        fixed=_states(shape),
        window_per_token=sum(token_bytes(shape, group, dtype) for group in sliding),
        window_tokens=max((group.window for group in sliding), default=0),
    )


def transfer_bytes_per_token(shape: Shape, dtype: str | None = None) -> int:
    """The part of `transfer_bytes` that grows with each token of a prompt longer than every window.

    With `transfer_fixed_bytes` it is exact beyond the windows. Where every layer slides: what a token takes until then.
    """
    kept = [group for group in shape.attention if group.kind != "sliding"] or shape.attention
    return sum(token_bytes(shape, group, dtype) for group in kept) + indexer_bytes_per_token(shape)


def transfer_fixed_bytes(shape: Shape, dtype: str | None = None) -> int:
    """The part of `transfer_bytes` that every prompt longer than the windows has: full sliding windows and states."""
    sliding = [group for group in shape.attention if group.kind == "sliding"]
    if len(sliding) == len(shape.attention):
        return 0
    return sum(token_bytes(shape, group, dtype) * group.window for group in sliding) + _states(shape)


def checked_tokens(tokens: object) -> int:
    """A count of tokens from outside. Raises ValueError unless it is a whole number from 1 to MAX_TOKENS."""
    if isinstance(tokens, bool) or not isinstance(tokens, int) or not 1 <= tokens <= MAX_TOKENS:
        raise ValueError(f"tokens must be a whole number from 1 to {MAX_TOKENS:,}, got {tokens!r:.60}")
    return tokens


def _growing(shape: Shape) -> Iterable[Attention]:
    """Groups that keep every token; all, if every layer that keeps tokens has a window."""
    return [group for group in shape.attention if not group.window and group.kv_heads] or shape.attention


def token_bytes(shape: Shape, group: Attention, dtype: str | None, tensor_parallel: int = 1) -> int:
    """What one token takes in all caching layers of the group, with `tensor_parallel` on one of so many GPUs."""
    if not group.kv_heads:
        return 0
    return group.cached_layers * heads_per_gpu(group, tensor_parallel) * head_token_bytes(shape, group, dtype)


def _states(shape: Shape) -> int:
    return sum(state_bytes(shape, group) for group in shape.attention)
