"""What sizes and speed of a decoder depend on: groups of layers that mix tokens or process one in the same way. Pure.

Counts are of the whole model unless they say "per layer". Tensor parallelism never changes a Shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["full", "sliding", "chunked", "latent", "state"]
"""How a layer sees the tokens before: all of them; the last `window`; those since the last multiple of `window`; all of them
through one compressed vector per token (MLA); or a state of fixed size (Mamba, linear attention)."""


@dataclass(frozen=True)
class Attention:
    """Layers that mix tokens in one way."""

    kind: Kind
    layers: int
    heads: int = 0
    """Query heads; for "state" the heads of the recurrence. Tensor parallelism must divide them."""
    kv_heads: int = 0
    """Heads whose keys and values are cached; 1 for a latent, which every GPU of a tensor-parallel group holds whole."""
    key_dim: int = 0
    value_dim: int = 0
    """Sizes of a head's key and value as attention multiplies them: of a latent unfolded, unless it is sparse."""
    kv_elements: int = 0
    """Numbers cached per token, caching layer and KV head."""
    window: int = 0
    """Tokens that a sliding or chunked layer sees at most; 0 for the other kinds."""
    cached_layers: int = 0
    """Layers that keep a cache of their own: fewer than `layers` when later layers read that of an earlier one."""
    sparse_tokens: int = 0
    """Tokens that an indexer chooses for each token to see, 0 without one. All tokens stay cached."""
    indexer_heads: int = 0
    indexer_dim: int = 0
    indexer_bytes: int = 0
    """Keys of the indexer in the cache, per token and layer: fp8 with one float32 scale, whatever the KV type."""
    state_elements: int = 0
    """Recurrent state per request and layer, in numbers."""
    state_element_bytes: int = 0
    conv_elements: int = 0
    """Convolution state per request and layer, in numbers of the activations' type."""
    weights: int = 0
    """Weights of the matrices, per layer."""
    other: int = 0
    """Norms, biases, convolution and the like, per layer."""
    weight_bytes: float = 2.0
    """Bytes per weight of the matrices, scales of quantised groups included."""

    @property
    def sees(self) -> int:
        """Tokens that a token attends to at most, 0 for all before it. Sparse layers keep those that they do not see."""
        return self.window or self.sparse_tokens


@dataclass(frozen=True)
class Mlp:
    """Layers that process each token by itself in one way. All but `layers` is per layer."""

    layers: int
    always: int
    """Weights that every token passes: a dense MLP, shared experts."""
    width: int
    """Intermediate values that one token makes."""
    router: int = 0
    """Weights that choose experts; never quantised."""
    expert: int = 0
    """Weights of one routed expert."""
    experts: int = 0
    chosen: int = 0
    """Experts that one token passes."""
    other: int = 0
    """Norms and biases outside the experts."""
    expert_other: int = 0
    """Biases of one expert."""
    always_bytes: float = 2.0
    expert_bytes: float = 2.0
    """Bytes per weight, scales of quantised groups included."""


@dataclass(frozen=True)
class Shape:
    """What the sizes and the speed of a decoder depend on. Counts are whole-model, not per GPU.

    `heads`, `kv_heads`, `head_dim` are those of the first attention that is no state; where kinds differ, see `attention`.
    """

    model_type: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    """Width of a dense MLP layer; 0 if every layer is a mixture of experts."""
    vocab: int
    tied_head: bool
    """The output head is the embedding matrix."""
    gated_mlp: bool
    """Three matrices per MLP instead of two."""
    weight_bytes: float
    """Bytes per weight of the linear layers, their mean."""
    activation_bytes: int
    """Bytes per element of activations, embeddings and (unless told otherwise) the KV cache."""
    max_positions: int = 0
    """0: the config does not say."""
    moe_layers: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0
    """Width of the expert that every token passes, 0 without one."""
    attention: tuple[Attention, ...] = ()
    """Every layer that mixes tokens, by kind; their `layers` may sum to less than `layers`."""
    mlp: tuple[Mlp, ...] = ()
    cache_bytes: int = 2
    """Bytes per number in a KV cache of type "auto": what a quantised checkpoint asks for, else the activations'."""
    compute_bits: int = 16
    """Bits of the numbers that linear layers multiply: 8 when a checkpoint quantises weights and activations."""
    embedding: int = 0
    """Weights looked up per token: the embedding, learned positions, per-layer embeddings."""
    extra_weights: int = 0
    """Matrices outside the layers, besides the output head."""
    extra_other: int = 0
    """Norms outside the layers."""

    def degrees(self, most: int = 64) -> list[int]:
        """The tensor-parallel degrees up to `most` over which it splits."""
        return [degree for degree in range(1, most + 1) if self.splits_over(degree)]

    def splits_over(self, tensor_parallel: int) -> bool:
        """Whether this many GPUs get equal numbers of heads of every kind, and whole KV heads or copies of one."""
        return all(
            group.heads % tensor_parallel == 0
            and (not group.kv_heads or group.kv_heads % tensor_parallel == 0 or tensor_parallel % group.kv_heads == 0)
            for group in self.attention
        )
