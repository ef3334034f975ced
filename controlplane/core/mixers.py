"""Attention layers of each architecture that caches keys and values, read from its config.json. Pure.

Sources: the configuration and modelling code of transformers 5.19 and, for what is cached, vLLM 0.32. Layers with a state
are in `statemixers`.
"""

from __future__ import annotations

from typing import NamedTuple

from controlplane.core.family import Reading
from controlplane.core.layerkinds import layer_kinds, llama4_kinds
from controlplane.core.shapes import Attention, Kind

_WINDOW_FIELD = {"sliding": "sliding_window", "chunked": "attention_chunk_size"}


class Heads(NamedTuple):
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int


def plain(reading: Reading) -> list[Attention | None]:
    """The same heads in every layer, full or windowed."""
    heads = read_heads(reading)
    return [attend(reading, layer, kind, heads) for layer, kind in enumerate(layer_kinds(reading))]


def gated(reading: Reading, layer: int) -> Attention:
    """Qwen3-Next's full attention: the query projection also makes a gate of the same size."""
    return attend(reading, layer, "full", read_heads(reading), query_parts=2)


def sinks(reading: Reading) -> list[Attention | None]:
    """gpt-oss: one learned sink logit per head."""
    heads = read_heads(reading)
    return [attend(reading, layer, kind, heads, other=heads.heads) for layer, kind in enumerate(layer_kinds(reading))]


def shared(reading: Reading) -> list[Attention | None]:
    """Gemma 3n and 4: the last `num_kv_shared_layers` read the cache of the last earlier layer of their kind.

    Gemma 4's full layers may have heads of another size, and one projection for keys and values (`attention_k_eq_v`); both
    are cached all the same, because keys are then normed and rotated.
    """
    fields, kinds = reading.fields, layer_kinds(reading)
    if fields.get("use_bidirectional_attention") not in (None, False, "vision"):
        raise fields.refuse("use_bidirectional_attention", "attention in both directions is not supported")
    own = len(kinds) - fields.count_or_zero("num_kv_shared_layers")
    if own <= 0 or not set(kinds[own:]) <= set(kinds[:own]):
        raise fields.refuse("num_kv_shared_layers", "leaves no earlier layer of some kind to share")
    local, whole = read_heads(reading), _global_heads(reading)
    same = fields.flag("attention_k_eq_v", False)
    return [
        attend(
            reading,
            layer,
            kind,
            whole if kind == "full" else local,
            owns_cache=layer < own,
            value_projection=not (same and kind == "full"),
        )
        for layer, kind in enumerate(kinds)
    ]


def llama4(reading: Reading) -> list[Attention | None]:
    """Llama 4: layers with rotary positions see the tokens of their chunk, those without (every fourth) see all."""
    fields, heads = reading.fields, read_heads(reading)
    listed = fields.get("layer_types") is not None
    kinds = layer_kinds(reading, {"full", "chunked"}) if listed else llama4_kinds(reading)
    if fields.get("attention_chunk_size") is None:
        kinds = ["full"] * reading.layers
    return [attend(reading, layer, kind, heads) for layer, kind in enumerate(kinds)]


def mimo(reading: Reading) -> list[Attention | None]:
    """MiMo-V2: sliding layers (1 in `hybrid_layer_pattern`) with heads of their own, values narrower than keys, sinks."""
    fields = reading.fields
    full = read_heads(reading)._replace(value_dim=fields.count("v_head_dim"))
    names = ("num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim")
    sliding = Heads(*[fields.count(f"swa_{name}") for name in names])
    pattern = fields.items("hybrid_layer_pattern", reading.layers)
    if not pattern or any(type(mark) is not int or mark not in (0, 1) for mark in pattern):
        raise fields.refuse("hybrid_layer_pattern", "must list 0 (full) or 1 (sliding) for every layer")
    if fields.get("attention_chunk_size") not in (None, fields.get("sliding_window")):
        raise fields.refuse("attention_chunk_size", "differs from sliding_window, which is not understood")
    sink_fields = ("add_full_attention_sink_bias", "add_swa_attention_sink_bias")
    sinks_of = [fields.flag(name, False) for name in sink_fields]
    return [
        attend(
            reading,
            layer,
            "sliding" if mark else "full",
            sliding if mark else full,
            other=(sliding if mark else full).heads * sinks_of[mark],
        )
        for layer, mark in enumerate(pattern)
    ]


def latent(reading: Reading) -> list[Attention | None]:
    """DeepSeek's multi-head latent attention: one vector of kv_lora_rank + qk_rope_head_dim numbers per token and layer.

    A prefill unfolds the latents to whole heads. With an indexer (V3.2) attention multiplies the latents themselves, of
    `index_topk` tokens each, as vLLM's sparse kernels do.
    """
    fields, hidden = reading.fields, reading.hidden
    heads = fields.count("num_attention_heads")
    rank, rope, nope = (fields.count(name) for name in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim"))
    value, query_rank = fields.count("v_head_dim"), fields.count_or_zero("q_lora_rank")
    query = heads * (nope + rope)
    query_weights = query_rank * (hidden + query) if query_rank else hidden * query
    weights = query_weights + hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden
    other = query_rank + rank
    if fields.flag("attention_bias", False):
        other += query_rank + rank + rope + hidden
    if not set(fields.items("layer_types")) <= {"full_attention", "indexed_attention"}:
        raise fields.refuse("layer_types", "names layers that are not known of this architecture")
    dims = {"key_dim": nope + rope, "value_dim": value}
    if fields.get("index_topk") is not None:
        topk, width, chosen_by = (fields.count(name) for name in ("index_topk", "index_head_dim", "index_n_heads"))
        if not query_rank:
            raise fields.refuse("q_lora_rank", "is missing; the indexer needs it")
        weights += query_rank * chosen_by * width + hidden * (width + chosen_by)
        other += 2 * width
        dims = {"key_dim": rank + rope, "value_dim": rank, "sparse_tokens": topk, "indexer_heads": chosen_by}
        # vLLM's DeepseekV32IndexerCache: one fp8 number per dimension, one float32 scale per 128 of them.
        dims |= {"indexer_dim": width, "indexer_bytes": width + 4 * -(-width // 128)}
    modules = [f"self_attn.{name}" for name in ("q_b_proj", "kv_b_proj", "o_proj")]
    return [
        Attention(
            "latent",
            1,
            heads,
            1,
            kv_elements=rank + rope,
            cached_layers=1,
            weights=weights,
            other=other,
            weight_bytes=reading.stored(layer, *modules),
            **dims,
        )
        for layer in range(reading.layers)
    ]


def falcon(reading: Reading) -> list[Attention | None]:
    """Falcon: `num_kv_heads` in the new decoder, one KV head with `multi_query`, else one per head."""
    fields = reading.fields
    heads = fields.count("num_attention_heads")
    kv_heads = heads
    if fields.flag("new_decoder_architecture", False):
        kv_heads = fields.count("num_kv_heads")
    elif fields.flag("multi_query", True):
        kv_heads = 1
    dim = head_dim(reading, heads)
    bias = (heads + 2 * kv_heads) * dim + reading.hidden if fields.flag("bias", False) else 0
    new, parallel = fields.flag("new_decoder_architecture", False), fields.flag("parallel_attn", True)
    norms = fields.count("num_ln_in_parallel_attn", default=2) if new else 1 if parallel else 2
    each = Heads(heads, kv_heads, dim, dim)
    other = bias + 2 * norms * reading.hidden
    return [attend(reading, layer, "full", each, other=other) for layer in range(reading.layers)]


def attend(
    reading: Reading,
    layer: int,
    kind: Kind,
    heads: Heads,
    *,
    owns_cache: bool = True,
    value_projection: bool = True,
    query_parts: int = 1,
    other: int = 0,
) -> Attention:
    """One layer with these heads. `other`: parameters besides what the family says about biases and norms."""
    fields, family, hidden = reading.fields, reading.family, reading.hidden
    query, key, value = heads.heads * heads.key_dim, heads.kv_heads * heads.key_dim, heads.kv_heads * heads.value_dim
    if not owns_cache:
        key = value = 0
    made = query * query_parts + key + (value if value_projection else 0)
    output = heads.heads * heads.value_dim
    if family.bias or fields.flag("attention_bias", False):
        other += made + (hidden if family.output_bias else 0)
    if family.qk_norm and (not family.qk_norm_switch or fields.flag(family.qk_norm_switch, False)):
        other += _norm_weights(family.qk_norm, heads, owns_cache)
    return Attention(
        kind,
        1,
        heads.heads,
        heads.kv_heads,
        heads.key_dim,
        heads.value_dim,
        heads.key_dim + heads.value_dim,
        window=fields.count(_WINDOW_FIELD[kind]) if kind in _WINDOW_FIELD else 0,
        cached_layers=int(owns_cache),
        weights=hidden * (made + output),
        other=other,
        weight_bytes=reading.stored(layer, *(f"{family.mixer_module}.{name}" for name in ("q_proj", "o_proj"))),
    )


def read_heads(reading: Reading) -> Heads:
    fields, family = reading.fields, reading.family
    heads = fields.count(family.heads)
    kv_heads = heads if family.kv_heads is None else fields.count(family.kv_heads)
    if heads % kv_heads:
        raise fields.refuse(family.kv_heads or family.heads, f"{kv_heads} does not divide {heads} attention heads")
    dim = head_dim(reading, heads)
    return Heads(heads, kv_heads, dim, dim)


def head_dim(reading: Reading, heads: int) -> int:
    fields, hidden = reading.fields, reading.hidden
    name = next((name for name in ("head_dim", "attention_head_dim") if fields.get(name) is not None), "head_dim")
    if fields.get(name) is not None or reading.family.head_dim_required:
        return fields.count(name)
    if hidden % heads:
        raise fields.refuse(name, f"is missing, and {hidden} hidden over {heads} heads is no whole number")
    return hidden // heads


def _global_heads(reading: Reading) -> Heads:
    fields, local = reading.fields, read_heads(reading)
    dim = fields.count("global_head_dim", default=local.key_dim)
    kv_heads = local.kv_heads
    if fields.flag("attention_k_eq_v", False):
        kv_heads = fields.count("num_global_key_value_heads", default=kv_heads)
    return Heads(local.heads, kv_heads, dim, dim)


def _norm_weights(kind: str, heads: Heads, owns_cache: bool) -> int:
    if kind == "dim":
        return heads.key_dim * (1 + owns_cache)
    return (heads.heads + heads.kv_heads * owns_cache) * heads.key_dim
