"""What sizes and speed of a decoder depend on: groups of layers that mix tokens in the same way. Pure; counts only.

Counts are of the whole model unless they say "per layer" or "per GPU". Tensor parallelism never changes a Shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["full", "sliding", "chunked", "latent", "state"]
"""How a layer sees the tokens before: all of them; the last `window`; those since the last multiple of `window`; all of them
through one compressed vector per token (MLA); or a state of fixed size (Mamba, linear attention)."""


@dataclass(frozen=True)
class Attention:
    """Layers that mix tokens in one way. A layer of kind "state" has no heads, only `state_*`."""

    kind: Kind
    layers: int
    heads: int = 0
    kv_heads: int = 0
    """Heads whose keys and values are cached; 1 for a latent, which every GPU of a tensor-parallel group holds whole."""
    key_dim: int = 0
    value_dim: int = 0
    """Sizes of a head's key and value as attention multiplies them; for a latent after it is unfolded."""
    kv_elements: int = 0
    """Numbers cached per token, caching layer and KV head."""
    window: int = 0
    """Tokens that a sliding or chunked layer sees at most; 0 for the other kinds."""
    cached_layers: int = 0
    """Layers that keep a cache of their own: fewer than `layers` when later layers read that of an earlier one."""
    state_elements: int = 0
    """Recurrent state per request and layer, in numbers."""
    state_element_bytes: int = 0
    conv_elements: int = 0
    """Convolution state per request and layer, in numbers of the activations' type."""

    @property
    def split(self) -> bool:
        """Whether tensor parallelism divides what this group caches."""
        return self.kind != "latent"


@dataclass(frozen=True)
class Shape:
    """What the sizes and the speed of a decoder depend on. Counts are whole-model, not per GPU.

    `heads`, `kv_heads` and `head_dim` describe the first kind of attention; where kinds differ, `attention` tells.
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
    """Bytes per weight of the linear layers."""
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
    qk_norm: bool = False
    attention_bias: bool = False
    attention: tuple[Attention, ...] = ()
    """Every layer that mixes tokens, by kind; their `layers` may sum to less than `layers`."""
