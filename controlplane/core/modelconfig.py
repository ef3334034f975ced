"""A model's shape, read strictly from its Hugging Face `config.json`. Pure.

Never guesses: an architecture without a row in FAMILIES, a missing field or one that changes the KV cache in a way that the
architecture is not known to use is refused with ConfigRefused, which names the field. Only what an architecture itself
defines (OPT has one KV head per head) is filled in. Of a multimodal model the language model alone is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from controlplane.core.configfields import DTYPE_BYTES, ConfigRefused, Fields, dtype_bytes
from controlplane.core.families import FAMILIES, KV_FIELDS
from controlplane.core.family import Family, Reading
from controlplane.core.shapes import Attention, Mlp, Shape
from controlplane.core.weightbits import BASE, read_storage

__all__ = ["DTYPE_BYTES", "FAMILIES", "ConfigRefused", "Shape", "dtype_bytes", "read_shape"]


def read_shape(config: Mapping[str, Any]) -> Shape:
    """The shape of the language model in `config` (a parsed config.json, also inside a multimodal `text_config`).

    Raises ConfigRefused naming the field that is missing, malformed or not supported.
    """
    fields = Fields(config)
    family = _family(fields)
    fields.defaults = family.defaults
    _refuse_what_is_not_understood(fields, family)
    plain = fields.dtype_bytes("torch_dtype")
    reading = Reading(fields, family, read_storage(fields.inherited(BASE), plain))
    vocab, hidden = fields.count("vocab_size"), fields.count(family.hidden)
    attention = _grouped_attention(family.mixers(reading))
    mlp = _grouped_mlp(family.mlps(reading))
    extras = family.extras(reading)
    norms = (family.norms * reading.layers + 1) * hidden * (2 if family.norm_bias else 1)
    first = next((group for group in attention if group.kind != "state"), None)
    if first is None:
        raise fields.refuse("num_hidden_layers", "there is no attention layer; models of states alone are not supported")
    routed = next((group for group in mlp if group.experts), None)
    matrices = 3 if family.gated else 2
    return Shape(
        model_type=fields.get("model_type"),
        layers=reading.layers,
        hidden=hidden,
        heads=first.heads,
        kv_heads=first.kv_heads,
        head_dim=first.key_dim,
        intermediate=max((group.width for group in mlp if not group.experts), default=0),
        vocab=vocab,
        tied_head=fields.flag("tie_word_embeddings", family.tied_by_default),
        gated_mlp=family.gated,
        weight_bytes=_mean_weight_bytes(attention, mlp),
        activation_bytes=plain,
        max_positions=fields.count("max_position_embeddings", default=0),
        moe_layers=sum(group.layers for group in mlp if group.experts),
        experts=routed.experts if routed else 0,
        experts_per_token=routed.chosen if routed else 0,
        expert_intermediate=routed.expert // (matrices * hidden) if routed else 0,
        shared_intermediate=routed.always // (matrices * hidden) if routed else 0,
        attention=attention,
        mlp=mlp,
        cache_bytes=reading.storage.cache_bytes or plain,
        compute_bits=reading.storage.compute_bits,
        embedding=vocab * hidden + extras.embedding,
        extra_weights=extras.weights,
        extra_other=norms + extras.other,
    )


def _family(fields: Fields) -> Family:
    model_type = fields.get("model_type")
    if not isinstance(model_type, str):
        raise fields.refuse("model_type", "is missing; without it the architecture is not known")
    family = FAMILIES.get(model_type)
    if family is None:
        known = ", ".join(sorted(FAMILIES))
        raise fields.refuse("model_type", f"architecture {model_type[:60]!r} is not known (known: {known})")
    return family


def _refuse_what_is_not_understood(fields: Fields, family: Family) -> None:
    for field in sorted(KV_FIELDS - family.understands):
        if fields.get(field):
            model_type = fields.get("model_type")
            raise fields.refuse(field, f"changes the KV cache in a way that {model_type} is not known to use")
    for field in family.required:
        if fields.config.get(field, []) == []:
            raise fields.refuse(field, "is missing")


def _grouped_attention(layers: Iterable[Attention | None]) -> tuple[Attention, ...]:
    """Equal layers as one group; those that share a cache with those that have the same of their own weights."""
    groups: dict[Attention, tuple[int, int]] = {}
    for layer in layers:
        if layer is not None:
            key = replace(layer, cached_layers=0)
            count, cached = groups.get(key, (0, 0))
            groups[key] = count + 1, cached + layer.cached_layers
    return tuple(replace(key, layers=count, cached_layers=cached) for key, (count, cached) in groups.items())


def _grouped_mlp(layers: Iterable[Mlp | None]) -> tuple[Mlp, ...]:
    counts: dict[Mlp, int] = {}
    for layer in layers:
        if layer is not None:
            counts[layer] = counts.get(layer, 0) + 1
    return tuple(replace(key, layers=count) for key, count in counts.items())


def _mean_weight_bytes(attention: tuple[Attention, ...], mlp: tuple[Mlp, ...]) -> float:
    parts = [(group.layers * group.weights, group.weight_bytes) for group in attention]
    parts += [(group.layers * group.always, group.always_bytes) for group in mlp]
    parts += [(group.layers * group.expert * group.experts, group.expert_bytes) for group in mlp]
    sizes = {size for count, size in parts if count}
    return sizes.pop() if len(sizes) == 1 else sum(count * size for count, size in parts) / sum(count for count, _ in parts)
