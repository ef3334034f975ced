"""A model's shape, read strictly from its Hugging Face `config.json`. Pure.

Never guesses: an architecture without a row in FAMILIES, a missing field or a feature that changes the KV cache in a way
not yet described here is refused with ConfigRefused, which names the field. Only what an architecture itself defines (OPT
has one KV head per head) is filled in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.core.shapes import Attention, Shape

DTYPE_BYTES: Mapping[str, int] = {
    "float32": 4,
    "fp32": 4,
    "float16": 2,
    "fp16": 2,
    "half": 2,
    "bfloat16": 2,
    "bf16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "float8_e4m3fn": 1,
}


__all__ = [
    "DTYPE_BYTES",
    "FAMILIES",
    "ConfigRefused",
    "Shape",
    "dtype_bytes",
    "kv_element_bytes",
    "read_shape",
]


class ConfigRefused(ValueError):
    """A config.json cannot be used. `field` is the path of the missing or unusable field, e.g. `text_config.head_dim`."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"model config: {field}: {problem}")
        self.field = field
        self.problem = problem


@dataclass(frozen=True)
class _Family:
    """How one `model_type` spells its fields. `kv_heads` None: one KV head per head, by definition of the architecture."""

    layers: str = "num_hidden_layers"
    hidden: str = "hidden_size"
    heads: str = "num_attention_heads"
    kv_heads: str | None = "num_key_value_heads"
    intermediate: str = "intermediate_size"
    gated: bool = True
    head_dim_required: bool = False
    """Its default in transformers is not hidden / heads, so a config without it cannot be read."""
    tied_by_default: bool = False
    experts: str = ""
    expert_intermediate: str = ""
    shared_intermediate: str = ""
    qk_norm: bool = False
    qkv_bias: bool = False


FAMILIES: Mapping[str, _Family] = {
    "llama": _Family(),
    "mistral": _Family(),
    "qwen2": _Family(qkv_bias=True),
    "qwen3": _Family(head_dim_required=True, qk_norm=True),
    "phi3": _Family(),
    "granite": _Family(),
    "gemma": _Family(head_dim_required=True, tied_by_default=True),
    "cohere": _Family(tied_by_default=True),
    "starcoder2": _Family(gated=False, tied_by_default=True),
    "gpt_neox": _Family(kv_heads=None, gated=False),
    "opt": _Family(kv_heads=None, intermediate="ffn_dim", gated=False, tied_by_default=True),
    "mixtral": _Family(experts="num_local_experts", expert_intermediate="intermediate_size"),
    "qwen2_moe": _Family(
        experts="num_experts",
        expert_intermediate="moe_intermediate_size",
        shared_intermediate="shared_expert_intermediate_size",
        qkv_bias=True,
    ),
    "qwen3_moe": _Family(
        experts="num_experts", expert_intermediate="moe_intermediate_size", head_dim_required=True, qk_norm=True
    ),
}

_NOT_YET: Mapping[str, str] = {
    "kv_lora_rank": "multi-head latent attention (MLA) is not supported yet",
    "index_topk": "sparse-attention indexers are not supported yet",
    "attention_chunk_size": "chunked attention is not supported yet",
    "num_kv_shared_layers": "KV sharing across layers is not supported yet",
    "hybrid_override_pattern": "hybrid Mamba models are not supported yet",
    "hybrid_layer_pattern": "alternating attention layers are not supported yet",
    "ssm_state_size": "Mamba state is not supported yet",
    "mamba_d_state": "Mamba state is not supported yet",
    "linear_num_value_heads": "linear attention is not supported yet",
}
"""Fields that change the size of the KV cache. Null and 0 mean: not used."""


def read_shape(config: Mapping[str, Any]) -> Shape:
    """The shape of the language model in `config` (a parsed config.json, also inside a multimodal `text_config`).

    Raises ConfigRefused naming the field that is missing, malformed or not supported.
    """
    return _Reader(config).shape()


class _Reader:
    def __init__(self, config: Mapping[str, Any]) -> None:
        if not isinstance(config, Mapping):
            raise ConfigRefused("document", f"expected a JSON object, got {type(config).__name__}")
        inner = config.get("text_config")
        if inner is not None and not isinstance(inner, Mapping):
            raise ConfigRefused("text_config", f"expected an object, got {type(inner).__name__}")
        self.outer = config
        self.prefix = "" if inner is None else "text_config."
        self.config: Mapping[str, Any] = config if inner is None else inner

    def shape(self) -> Shape:
        model_type, family = self._family()
        self._refuse_unsupported()
        hidden, heads = self._count(family.hidden), self._count(family.heads)
        layers = self._count(family.layers)
        moe_layers = self._moe_layers(layers) if family.experts else 0
        kv_heads, head_dim = self._kv_heads(family, heads), self._head_dim(family, hidden, heads)
        full = Attention("full", layers, heads, kv_heads, head_dim, head_dim, 2 * head_dim, cached_layers=layers)
        return Shape(
            model_type=model_type,
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            intermediate=self._count(family.intermediate) if moe_layers < layers else 0,
            vocab=self._count("vocab_size"),
            tied_head=self._flag("tie_word_embeddings", family.tied_by_default),
            gated_mlp=family.gated,
            weight_bytes=self._weight_bytes(),
            activation_bytes=self._activation_bytes(),
            max_positions=self._count("max_position_embeddings", default=0),
            moe_layers=moe_layers,
            experts=self._count(family.experts) if family.experts else 0,
            experts_per_token=self._experts_per_token(family),
            expert_intermediate=self._count(family.expert_intermediate) if family.experts else 0,
            shared_intermediate=self._count(family.shared_intermediate) if family.shared_intermediate else 0,
            qk_norm=family.qk_norm,
            attention_bias=family.qkv_bias or self._flag("attention_bias", False),
            attention=(full,),
        )

    def _family(self) -> tuple[str, _Family]:
        model_type = self._get("model_type")
        if not isinstance(model_type, str):
            raise self._refuse("model_type", "is missing; without it the architecture is not known")
        family = FAMILIES.get(model_type)
        if family is None:
            for field, problem in _NOT_YET.items():
                if self._get(field):
                    raise self._refuse(field, problem)
            known = ", ".join(sorted(FAMILIES))
            raise self._refuse("model_type", f"architecture {model_type[:60]!r} is not known (known: {known})")
        return model_type, family

    def _refuse_unsupported(self) -> None:
        for field, problem in _NOT_YET.items():
            if self._get(field):
                raise self._refuse(field, problem)
        layer_types = self._get("layer_types")
        if layer_types is not None and any(kind != "full_attention" for kind in self._list("layer_types")):
            raise self._refuse("layer_types", "only full attention in every layer is supported yet")
        window = self._get("sliding_window")
        if window is None or self._get("use_sliding_window") is False:
            return
        if self._count("sliding_window") < self._count("max_position_embeddings"):
            raise self._refuse("sliding_window", "attention windows are not supported yet")

    def _kv_heads(self, family: _Family, heads: int) -> int:
        if family.kv_heads is None:
            return heads
        kv_heads = self._count(family.kv_heads)
        if heads % kv_heads:
            raise self._refuse(family.kv_heads, f"{kv_heads} does not divide {heads} attention heads")
        return kv_heads

    def _head_dim(self, family: _Family, hidden: int, heads: int) -> int:
        if self._get("head_dim") is not None or family.head_dim_required:
            head_dim = self._count("head_dim")
        elif hidden % heads:
            raise self._refuse("head_dim", f"is missing, and {hidden} hidden over {heads} heads is no whole number")
        else:
            head_dim = hidden // heads
        value_dim = self._get("v_head_dim")
        if value_dim is not None and value_dim != head_dim:
            raise self._refuse("v_head_dim", "keys and values of different size are not supported yet")
        return head_dim

    def _moe_layers(self, layers: int) -> int:
        every = self._count("decoder_sparse_step", default=1)
        dense = set(self._list("mlp_only_layers"))
        return sum(1 for index in range(layers) if (index + 1) % every == 0 and index not in dense)

    def _experts_per_token(self, family: _Family) -> int:
        if not family.experts:
            return 0
        chosen, experts = self._count("num_experts_per_tok"), self._count(family.experts)
        if chosen > experts:
            raise self._refuse("num_experts_per_tok", f"{chosen} is more than the {experts} experts there are")
        return chosen

    def _activation_bytes(self) -> int:
        for where in (self.config, self.outer):
            name = where.get("torch_dtype", where.get("dtype"))
            if name is not None:
                return dtype_bytes(name, f"{self.prefix if where is self.config else ''}torch_dtype")
        raise self._refuse("torch_dtype", "is missing; name the data type of the weights, e.g. bfloat16")

    def _weight_bytes(self) -> float:
        quantised = self.config.get("quantization_config", self.outer.get("quantization_config"))
        if quantised is None:
            return self._activation_bytes()
        method = quantised.get("quant_method") if isinstance(quantised, Mapping) else None
        if method != "fp8":
            raise self._refuse("quantization_config.quant_method", f"{str(method)[:40]!r} is not supported yet (only fp8)")
        return 1

    def _get(self, field: str) -> Any:
        return self.config.get(field)

    def _count(self, field: str, default: int | None = None) -> int:
        value = self._get(field)
        if value is None:
            if default is not None:
                return default
            raise self._refuse(field, "is missing")
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= 1 << 31:
            raise self._refuse(field, f"must be a positive whole number, got {value!r:.60}")
        return value

    def _flag(self, field: str, default: bool) -> bool:
        value = self._get(field)
        if value is None:
            value = self.outer.get(field)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._refuse(field, f"must be true or false, got {value!r:.60}")
        return value

    def _list(self, field: str) -> list[Any]:
        value = self._get(field)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self._refuse(field, f"must be a list, got {type(value).__name__}")
        return value

    def _refuse(self, field: str, problem: str) -> ConfigRefused:
        return ConfigRefused(self.prefix + field, problem)


def dtype_bytes(name: object, field: str = "dtype") -> int:
    """Bytes per element of a data type as transformers or vLLM spell it. Raises ConfigRefused naming `field`."""
    size = DTYPE_BYTES.get(name.removeprefix("torch.")) if isinstance(name, str) else None
    if size is None:
        raise ConfigRefused(field, f"unknown data type {name!r:.60} (known: {', '.join(sorted(DTYPE_BYTES))})")
    return size


def kv_element_bytes(shape: Shape, dtype: str | None = None) -> int:
    """Bytes of one number in the KV cache. Raises ConfigRefused for an unknown data type."""
    return shape.activation_bytes if dtype in (None, "auto") else dtype_bytes(dtype, "kv dtype")
