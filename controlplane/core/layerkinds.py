"""How each layer sees the tokens before it: from `layer_types`, or from an architecture's rule. Pure."""

from __future__ import annotations

from collections.abc import Set

from controlplane.core.configfields import Fields
from controlplane.core.family import Reading
from controlplane.core.shapes import Kind

KINDS: dict[str, Kind] = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "state",
    "mamba": "state",
}
"""The names of `layer_types` and `layers_block_type`, in transformers 4 and 5."""


def layer_kinds(reading: Reading, known: Set[Kind] = frozenset({"full", "sliding"})) -> list[Kind]:
    """How each layer sees the tokens before, from `layer_types` or the architecture's rule, of those that are `known` of it.
    A window as long as the model's context is none."""
    fields, family = reading.fields, reading.family
    kinds = [_kind(fields, name) for name in fields.items("layer_types", reading.layers)]
    if kinds:
        known = known - {"sliding"} if family.windows == "none" else known
        if not set(kinds) <= known or (family.windows == "all" and len(set(kinds)) > 1):
            raise fields.refuse("layer_types", "mixes layers in a way that is not known of this architecture")
        if family.window_switch and not fields.flag(family.window_switch, False) and "sliding" in kinds:
            raise fields.refuse("layer_types", f"names sliding layers, but {family.window_switch} is off")
    return ["full" if kind == "sliding" and _covers_everything(fields) else kind for kind in kinds or _by_rule(reading)]


def llama4_kinds(reading: Reading) -> list[Kind]:
    """Layers with rotary positions are chunked, those without (`no_rope_layers` 0, or every fourth) see everything."""
    fields, layers = reading.fields, reading.layers
    rotary = fields.items("no_rope_layers")
    if not rotary:
        every = fields.count("no_rope_layer_interval", default=4)
        return ["chunked" if (layer + 1) % every else "full" for layer in range(layers)]
    if len(rotary) != layers or any(type(mark) is not int or mark not in (0, 1) for mark in rotary):
        raise fields.refuse("no_rope_layers", "must list 1 (rotary positions, chunked) or 0 (none, full) for every layer")
    return ["chunked" if mark else "full" for mark in rotary]


def _by_rule(reading: Reading) -> list[Kind]:
    fields, family, layers = reading.fields, reading.family, reading.layers
    off = family.window_switch and not fields.flag(family.window_switch, False)
    if fields.get("sliding_window") is None or off:
        if family.windows == "period":
            fields.count("sliding_window")
        return ["full"] * layers
    if family.windows == "none":
        if not _covers_everything(fields):
            raise fields.refuse("sliding_window", "this architecture is not known to have attention windows")
        return ["full"] * layers
    if family.windows == "all":
        return ["sliding"] * layers
    if family.windows == "after":
        first = fields.count_or_zero("max_window_layers")
        return ["sliding" if layer >= first else "full" for layer in range(layers)]
    name, own = family.period
    period = fields.count(name, default=own) if name else own
    return ["sliding" if (layer + 1) % period else "full" for layer in range(layers)]


def _kind(fields: Fields, name: object) -> Kind:
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise fields.refuse("layer_types", f"{name!r:.60} is not known (known: {', '.join(KINDS)})")
    return kind


def _covers_everything(fields: Fields) -> bool:
    positions = fields.get("max_position_embeddings")
    return positions is not None and fields.count("sliding_window") >= fields.count("max_position_embeddings")
