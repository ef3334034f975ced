"""How one architecture spells and fills its config.json: the row type of `families.FAMILIES`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from controlplane.core.configfields import MAX_LAYERS, Fields
from controlplane.core.shapes import Attention, Mlp
from controlplane.core.weightbits import Storage


class Extras(NamedTuple):
    """Weights outside the layers and the output head, besides the embedding and the last norm."""

    embedding: int = 0
    weights: int = 0
    other: int = 0


class Reading(NamedTuple):
    """What every builder needs: the config, its family, and how its weights are stored."""

    fields: Fields
    family: Family
    storage: Storage

    @property
    def layers(self) -> int:
        return self.family.count_layers(self.fields)

    @property
    def hidden(self) -> int:
        return self.fields.count(self.family.hidden)

    def stored(self, layer: int, *modules: str, expert: bool = False) -> float:
        """Mean bytes per weight of a layer's modules, e.g. `self_attn.q_proj`."""
        return self.storage.of(*(f"{self.family.root}.{layer}.{module}" for module in modules), expert=expert)


Windows = Literal["none", "all", "after", "period"]


def _no_extras(reading: Reading) -> Extras:
    return Extras()


def _named_layers(fields: Fields) -> int:
    return fields.count("num_hidden_layers", most=MAX_LAYERS)


@dataclass(frozen=True)
class Family:
    """How one `model_type` spells its fields and builds its layers. Defaults are those of Llama.

    `mixers` gives each layer's token mixing and `mlps` each layer's MLP, None where a layer has none. `kv_heads` None: one
    KV head per head, by definition of the architecture.
    """

    mixers: Callable[[Reading], list[Attention | None]]
    mlps: Callable[[Reading], list[Mlp | None]]
    hidden: str = "hidden_size"
    heads: str = "num_attention_heads"
    kv_heads: str | None = "num_key_value_heads"
    intermediate: str = "intermediate_size"
    gated: bool = True
    head_dim_required: bool = False
    """Its default in transformers is not hidden / heads, so a config without it cannot be read."""
    tied_by_default: bool = False
    windows: Windows = "none"
    """Layers that slide when `sliding_window` is set: none may; all; those after `max_window_layers`; all but every
    `period`th."""
    period: tuple[str, int] = ("", 0)
    """The field that may hold the period, and the architecture's own."""
    window_switch: str = ""
    """A flag without which `sliding_window` has no effect, by default off."""
    experts: str = ""
    chosen: str = "num_experts_per_tok"
    expert_intermediate: str = "moe_intermediate_size"
    shared_intermediate: str = ""
    qk_norm: Literal["", "dim", "heads", "whole"] = ""
    """Norms of queries and keys: one of head_dim for all heads; one of head_dim per head; one over all heads together."""
    qk_norm_switch: str = ""
    """A flag without which there are no such norms, by default off."""
    bias: Literal["", "attention", "all"] = ""
    """Projections that always have a bias; with `attention_bias` those of attention have one in any family."""
    output_bias: bool = True
    """Whether the biases of attention include the output projection's."""
    norms: int = 2
    """Norms of the hidden size, per layer."""
    norm_bias: bool = False
    root: str = "model.layers"
    mixer_module: str = "self_attn"
    mlp_module: str = "mlp"
    understands: frozenset[str] = frozenset()
    """Of the fields that change the KV cache, those that the builders read."""
    required: tuple[str, ...] = ()
    """Fields without which the builders would have to guess."""
    defaults: Mapping[str, int] = field(default_factory=dict)
    count_layers: Callable[[Fields], int] = _named_layers
    extras: Callable[[Reading], Extras] = _no_extras
