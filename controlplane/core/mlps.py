"""MLP layers of each architecture, dense or mixtures of experts, read from its config.json. Pure.

Sources: the modelling code of transformers 5.19; the totals were checked against the models it builds.
"""

from __future__ import annotations

from controlplane.core.family import Reading
from controlplane.core.shapes import Mlp
from controlplane.core.statemixers import nemotron_layers


def dense(reading: Reading) -> list[Mlp | None]:
    """One MLP of the same width in every layer."""
    width = reading.fields.count(reading.family.intermediate)
    return [dense_layer(reading, layer, width) for layer in range(reading.layers)]


def sparse(reading: Reading) -> list[Mlp | None]:
    """Mixtures of experts in all layers but those that `decoder_sparse_step` and `mlp_only_layers` make dense."""
    fields = reading.fields
    every = fields.count("decoder_sparse_step", default=1)
    kept = set(map(str, fields.items("mlp_only_layers")))
    return [
        expert_layer(reading, layer)
        if (layer + 1) % every == 0 and str(layer) not in kept
        else dense_layer(reading, layer, fields.count(reading.family.intermediate))
        for layer in range(reading.layers)
    ]


def deepseek(reading: Reading) -> list[Mlp | None]:
    """The first `first_k_dense_replace` layers dense, then experts every `moe_layer_freq` layers and shared ones."""
    fields = reading.fields
    first, every = fields.count_or_zero("first_k_dense_replace"), fields.count("moe_layer_freq", default=1)
    if not fields.get("n_routed_experts"):
        return dense(reading)
    shared = fields.count_or_zero("n_shared_experts") * fields.count("moe_intermediate_size")
    correction = fields.count("n_routed_experts") if fields.get("topk_method") == "noaux_tc" else 0
    return [
        expert_layer(reading, layer, shared=shared, other=correction)
        if layer >= first and layer % every == 0
        else dense_layer(reading, layer, fields.count("intermediate_size"))
        for layer in range(reading.layers)
    ]


def mimo(reading: Reading) -> list[Mlp | None]:
    """MiMo-V2: `moe_layer_freq` lists 1 for layers with experts."""
    fields = reading.fields
    marks = fields.items("moe_layer_freq", reading.layers)
    if not marks or any(type(mark) is not int or mark not in (0, 1) for mark in marks):
        raise fields.refuse("moe_layer_freq", "must list 0 (dense) or 1 (experts) for every layer")
    shared = fields.count_or_zero("n_shared_experts") * fields.count("moe_intermediate_size")
    correction = fields.count("n_routed_experts")
    return [
        expert_layer(reading, layer, shared=shared, other=correction)
        if mark
        else dense_layer(reading, layer, fields.count("intermediate_size"))
        for layer, mark in enumerate(marks)
    ]


def llama4(reading: Reading) -> list[Mlp | None]:
    """Llama 4: experts and one shared expert every `interleave_moe_layer_step` layers, wider dense MLPs between."""
    fields = reading.fields
    every = fields.count("interleave_moe_layer_step", default=1)
    width = fields.count("intermediate_size")
    return [
        expert_layer(reading, layer, shared=width)
        if (layer + 1) % every == 0
        else dense_layer(reading, layer, fields.count("intermediate_size_mlp"))
        for layer in range(reading.layers)
    ]


def gpt_oss(reading: Reading) -> list[Mlp | None]:
    """gpt-oss: experts in every layer, all with biases."""
    experts, width = reading.fields.count("num_local_experts"), reading.fields.count("intermediate_size")
    bias = 2 * width + reading.hidden
    return [expert_layer(reading, layer, other=experts, expert_other=bias) for layer in range(reading.layers)]


def gemma4(reading: Reading) -> list[Mlp | None]:
    """Gemma 3n and 4: a dense MLP in every layer, with `enable_moe_block` experts beside it; per-layer inputs."""
    fields, hidden = reading.fields, reading.hidden
    per_layer = fields.count_or_zero("hidden_size_per_layer_input")
    own = reading.layers - fields.count_or_zero("num_kv_shared_layers")
    wide = fields.flag("use_double_wide_mlp", False)
    experts = fields.flag("enable_moe_block", False)
    widths = _widths(reading)
    extra = 2 * hidden * per_layer + _gemma3n_weights(reading)
    other = (hidden if per_layer else 0) + _gemma3n_other(reading)
    layers: list[Mlp | None] = []
    for layer, width in enumerate(widths):
        wider = width * (2 if wide and 0 < own <= layer else 1)
        dense_one = dense_layer(reading, layer, wider, extra=extra, other=other)
        layers.append(_beside(reading, layer, dense_one) if experts else dense_one)
    return layers


def _beside(reading: Reading, layer: int, always: Mlp) -> Mlp:
    """Experts beside a dense MLP; the router scales its input and every expert, three more norms."""
    fields, hidden = reading.fields, reading.hidden
    experts = fields.count("num_experts")
    routed = expert_layer(reading, layer, other=hidden + experts + 3 * hidden)
    return Mlp(
        1,
        always.always,
        always.width + routed.width,
        routed.router,
        routed.expert,
        routed.experts,
        routed.chosen,
        always.other + routed.other,
        routed.expert_other,
        always.always_bytes,
        routed.expert_bytes,
    )


def granite(reading: Reading) -> list[Mlp | None]:
    """Granite 4.0 H: a shared MLP in every layer, and experts unless there are none (the dense sizes)."""
    fields = reading.fields
    shared = fields.count("shared_intermediate_size")
    if not fields.count_or_zero("num_local_experts"):
        return [dense_layer(reading, layer, shared, module="shared_mlp") for layer in range(reading.layers)]
    return [expert_layer(reading, layer, shared=shared, shared_module="shared_mlp") for layer in range(reading.layers)]


def nemotron_h(reading: Reading) -> list[Mlp | None]:
    """Nemotron-H: whole layers that are an MLP (`-`) or experts (`E`), without gate."""
    fields = reading.fields
    if fields.get("moe_latent_size"):
        raise fields.refuse("moe_latent_size", "experts in a latent space are not supported yet")
    layers: list[Mlp | None] = []
    for layer, name in enumerate(nemotron_layers(reading)):
        if name == "mlp":
            layers.append(dense_layer(reading, layer, fields.count("intermediate_size")))
        elif name == "moe":
            shared = fields.count("moe_shared_expert_intermediate_size")
            layers.append(expert_layer(reading, layer, shared=shared, other=fields.count("n_routed_experts")))
        else:
            layers.append(None)
    return layers


def jamba(reading: Reading) -> list[Mlp | None]:
    """Jamba: experts in one layer of every `expert_layer_period`, else dense."""
    fields = reading.fields
    every, at = fields.count("expert_layer_period"), fields.count_or_zero("expert_layer_offset")
    return [
        expert_layer(reading, layer)
        if layer % every == at and fields.count("num_experts") > 1
        else dense_layer(reading, layer, fields.count("intermediate_size"))
        for layer in range(reading.layers)
    ]


def fourfold(reading: Reading) -> list[Mlp | None]:
    """Falcon and BLOOM: four times the hidden size, unless Falcon's `ffn_hidden_size` says otherwise."""
    hidden = reading.hidden
    width = reading.fields.count("ffn_hidden_size", default=4 * hidden)
    other = width + hidden if reading.fields.flag("bias", False) else 0
    return [dense_layer(reading, layer, width, other=other) for layer in range(reading.layers)]


def dense_layer(
    reading: Reading, layer: int, width: int, *, extra: int = 0, other: int = 0, module: str | None = None
) -> Mlp:
    """A dense MLP. `extra`: weights of other matrices that every token passes."""
    family, hidden = reading.family, reading.hidden
    matrices = 3 if family.gated else 2
    if family.bias == "all" or reading.fields.flag("mlp_bias", False):
        other += (matrices - 1) * width + hidden
    return Mlp(
        1,
        matrices * hidden * width + extra,
        width,
        other=other,
        always_bytes=reading.stored(layer, *_modules(module or family.mlp_module)),
    )


def expert_layer(
    reading: Reading,
    layer: int,
    *,
    shared: int | None = None,
    other: int = 0,
    expert_other: int = 0,
    shared_module: str = "",
) -> Mlp:
    """A mixture of experts. `shared`: width of what every token passes, by default as the family's field says."""
    fields, family, hidden = reading.fields, reading.family, reading.hidden
    experts, width = fields.count(family.experts), fields.count(family.expert_intermediate)
    chosen = fields.count(family.chosen)
    if chosen > experts:
        raise fields.refuse(family.chosen, f"{chosen} is more than the {experts} experts there are")
    gate = 0
    if shared is None:
        shared = fields.count(family.shared_intermediate) if family.shared_intermediate else 0
        gate = hidden if shared else 0  # Qwen weighs its shared expert by one more row
    matrices = 3 if family.gated else 2
    module = family.mlp_module
    return Mlp(
        1,
        always=matrices * hidden * shared,
        width=chosen * width + shared,
        router=hidden * experts + gate,
        expert=matrices * hidden * width,
        experts=experts,
        chosen=chosen,
        other=other,
        expert_other=expert_other,
        always_bytes=reading.stored(layer, *_modules(shared_module or f"{module}.shared_experts")),
        expert_bytes=reading.stored(layer, *_modules(f"{module}.experts.0"), expert=True),
    )


def _modules(module: str) -> tuple[str, ...]:
    return tuple(f"{module}.{name}" for name in ("up_proj", "down_proj"))


def _widths(reading: Reading) -> list[int]:
    """Gemma 3n may list a width per layer."""
    fields = reading.fields
    if not isinstance(fields.get("intermediate_size"), list):
        return [fields.count("intermediate_size")] * reading.layers
    widths = fields.items("intermediate_size", reading.layers)
    if any(type(width) is not int or width < 1 for width in widths):
        raise fields.refuse("intermediate_size", "must be a positive whole number for every layer")
    return widths


def _gemma3n_weights(reading: Reading) -> int:
    """Learned augmented residuals (LAuReL) and alternating updates (AltUp) of Gemma 3n, per layer."""
    fields, hidden = reading.fields, reading.hidden
    rank, inputs = fields.count_or_zero("laurel_rank"), fields.count_or_zero("altup_num_inputs")
    return 2 * hidden * rank + inputs * inputs + inputs**3 + hidden * inputs


def _gemma3n_other(reading: Reading) -> int:
    fields, hidden = reading.fields, reading.hidden
    return hidden * (bool(fields.get("laurel_rank")) + 2 * bool(fields.get("altup_num_inputs")))
