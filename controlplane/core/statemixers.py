"""Hybrid architectures: layers with a state of fixed size (Mamba, gated delta rule) among attention layers. Pure.

States as the reference code of transformers 5.19 keeps them. vLLM 0.32 keeps recurrent states in the activations' type
unless the config or its option `mamba_ssm_cache_dtype` says otherwise: a state of Qwen3-Next may then take half as much.
"""

from __future__ import annotations

from controlplane.core.configfields import MAX_LAYERS, Fields, dtype_bytes
from controlplane.core.family import Reading
from controlplane.core.layerkinds import KINDS, layer_kinds
from controlplane.core.mixers import attend, gated, read_heads
from controlplane.core.shapes import Attention

PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""Nemotron-H's `hybrid_override_pattern`, one sign per layer; every layer is one of the four."""
_NAMES = {"linear_attention": "mamba", "full_attention": "attention"} | {name: name for name in PATTERN.values()}
"""Its `layers_block_type`, which newer configs list instead."""


def qwen3_next(reading: Reading) -> list[Attention | None]:
    """Every fourth layer (`full_attention_interval`) full attention, the others gated delta rule."""
    fields = reading.fields
    if fields.get("layer_types") is None:
        every = fields.count("full_attention_interval", default=4)
        kinds = ["state" if (layer + 1) % every else "full" for layer in range(reading.layers)]
    else:
        kinds = list(layer_kinds(reading, {"full", "state"}))
    return [_delta(reading, layer) if kind == "state" else gated(reading, layer) for layer, kind in enumerate(kinds)]


def _delta(reading: Reading, layer: int) -> Attention:
    """The gated delta rule: one key_dim x value_dim matrix per value head, in float32 as the reference computes it."""
    fields, hidden = reading.fields, reading.hidden
    key_heads, value_heads = (fields.count(f"linear_num_{kind}_heads") for kind in ("key", "value"))
    key_dim, value_dim = (fields.count(f"linear_{kind}_head_dim") for kind in ("key", "value"))
    kernel = fields.count("linear_conv_kernel_dim")
    keys, values = key_heads * key_dim, value_heads * value_dim
    convolved = 2 * keys + values
    return Attention(
        "state",
        1,
        heads=key_heads,
        state_elements=value_heads * key_dim * value_dim,
        state_element_bytes=dtype_bytes(fields.get("mamba_ssm_dtype") or "float32", fields.prefix + "mamba_ssm_dtype"),
        conv_elements=(kernel - 1) * convolved,
        weights=hidden * (2 * keys + 2 * values + 2 * value_heads) + values * hidden,
        other=convolved * kernel + 2 * value_heads + value_dim,
        weight_bytes=reading.stored(layer, "linear_attn.in_proj_qkvz", "linear_attn.out_proj"),
    )


def granite(reading: Reading) -> list[Attention | None]:
    """Granite 4.0 H: `layer_types` names each layer mamba or attention. State in the activations' type."""
    fields, heads = reading.fields, read_heads(reading)
    names = fields.items("layer_types", reading.layers)
    kinds = [KINDS.get(str(name)) for name in names]
    if not names or not set(kinds) <= {"state", "full"}:
        raise fields.refuse("layer_types", "must name mamba or attention for every layer")
    own = fields.count("mamba_n_heads")
    width = fields.count("mamba_expand") * reading.hidden
    dim = width // own if fields.get("mamba_d_head") in (None, "auto") else fields.count("mamba_d_head")
    if dim * own != width:
        raise fields.refuse("mamba_d_head", f"times {own} heads is not mamba_expand x hidden_size = {width}")
    return [
        attend(reading, layer, "full", heads)
        if kind == "full"
        else _mamba2(
            reading,
            layer,
            own,
            dim,
            ("mamba_n_groups", "mamba_d_state", "mamba_d_conv"),
            state_bytes=fields.dtype_bytes("torch_dtype"),
            conv_bias=fields.flag("mamba_conv_bias", True),
            bias=fields.flag("mamba_proj_bias", False),
        )
        for layer, kind in enumerate(kinds)
    ]


def nemotron_h(reading: Reading) -> list[Attention | None]:
    """Nemotron-H: a pattern with one sign per layer. State in float32 unless `mamba_ssm_cache_dtype` says otherwise."""
    fields, heads = reading.fields, read_heads(reading)
    own, dim = fields.count("mamba_num_heads"), fields.count("mamba_head_dim")
    stored = dtype_bytes(fields.get("mamba_ssm_cache_dtype") or "float32", "mamba_ssm_cache_dtype")
    mixers: list[Attention | None] = []
    for layer, name in enumerate(nemotron_layers(reading)):
        if name == "attention":
            mixers.append(attend(reading, layer, "full", heads))
        elif name == "mamba":
            mixers.append(
                _mamba2(
                    reading,
                    layer,
                    own,
                    dim,
                    ("n_groups", "ssm_state_size", "conv_kernel"),
                    state_bytes=stored,
                    conv_bias=fields.flag("use_conv_bias", True),
                    bias=fields.flag("use_bias", False),
                )
            )
        else:
            mixers.append(None)
    return mixers


def nemotron_layers(reading: Reading) -> list[str]:
    """mamba, attention, mlp or moe for every layer."""
    names = _named_nemotron_layers(reading.fields)
    if len(names) != reading.layers:
        raise reading.fields.refuse("num_hidden_layers", f"is {reading.layers}, but {len(names)} layers are named")
    return names


def _named_nemotron_layers(fields: Fields) -> list[str]:
    pattern = fields.get("hybrid_override_pattern")
    if pattern is None and fields.get("layers_block_type") is not None:
        names = [_NAMES.get(str(name)) for name in fields.items("layers_block_type")]
        if None in names:
            raise fields.refuse("layers_block_type", f"names must be of {', '.join(_NAMES)}")
        return [name for name in names if name]
    if not isinstance(pattern, str):
        raise fields.refuse("hybrid_override_pattern", "is missing; it names each layer")
    if not pattern or not set(pattern) <= set(PATTERN):
        raise fields.refuse("hybrid_override_pattern", f"must be signs of {' '.join(PATTERN)}")
    return [PATTERN[sign] for sign in pattern]


def count_nemotron_layers(fields: Fields) -> int:
    """Newer configs give the list alone, older ones the pattern and its length, which must agree."""
    listed = fields.get("hybrid_override_pattern") or fields.items("layers_block_type")
    if not listed or fields.get("num_hidden_layers") not in (None, len(listed)):
        return fields.count("num_hidden_layers", most=MAX_LAYERS)
    return len(listed)


def jamba(reading: Reading) -> list[Attention | None]:
    """Jamba: one attention layer in every `attn_layer_period`, the others Mamba-1. State in the activations' type."""
    fields, heads = reading.fields, read_heads(reading)
    every, at = fields.count("attn_layer_period"), fields.count_or_zero("attn_layer_offset")
    return [
        attend(reading, layer, "full", heads) if layer % every == at else _mamba1(reading, layer)
        for layer in range(reading.layers)
    ]


def _mamba1(reading: Reading, layer: int) -> Attention:
    fields, hidden = reading.fields, reading.hidden
    width, state, kernel = fields.count("mamba_expand") * hidden, fields.count("mamba_d_state"), fields.count("mamba_d_conv")
    rank = -(-hidden // 16) if fields.get("mamba_dt_rank") in (None, "auto") else fields.count("mamba_dt_rank")
    bias = 2 * width + hidden if fields.flag("mamba_proj_bias", False) else 0
    conv_bias = width if fields.flag("mamba_conv_bias", True) else 0
    return Attention(
        "state",
        1,
        heads=width,
        state_elements=width * state,
        state_element_bytes=fields.dtype_bytes("torch_dtype"),
        conv_elements=(kernel - 1) * width,
        weights=2 * hidden * width + width * (rank + 2 * state) + rank * width + width * hidden,
        other=width * kernel + conv_bias + bias + width * (state + 2) + rank + 2 * state,
        weight_bytes=reading.stored(layer, "mamba.in_proj", "mamba.out_proj"),
    )


def _mamba2(
    reading: Reading,
    layer: int,
    heads: int,
    dim: int,
    names: tuple[str, str, str],
    *,
    state_bytes: int,
    conv_bias: bool,
    bias: bool,
) -> Attention:
    """Mamba-2: one dim x state matrix per head; a convolution over the values and the B and C of all groups."""
    hidden = reading.hidden
    groups, state, kernel = (reading.fields.count(name) for name in names)
    width = heads * dim
    convolved = width + 2 * groups * state
    made = width + convolved + heads
    module = reading.family.mixer_module if reading.family.mixer_module == "mixer" else "mamba"
    return Attention(
        "state",
        1,
        heads=heads,
        state_elements=heads * dim * state,
        state_element_bytes=state_bytes,
        conv_elements=(kernel - 1) * convolved,
        weights=hidden * made + width * hidden,
        other=convolved * (kernel + conv_bias) + 3 * heads + width + (made + hidden if bias else 0),
        weight_bytes=reading.stored(layer, f"{module}.in_proj", f"{module}.out_proj"),
    )
