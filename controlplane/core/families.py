"""The architectures that can be read, by `model_type`. Pure data.

A row says only what the architecture itself defines; transformers 5.19 is the source, and each row's parameter total was
compared with the model that it builds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from controlplane.core import mixers, mlps, statemixers
from controlplane.core.configfields import MAX_LAYERS
from controlplane.core.family import Extras, Family, Reading


def _learned_positions(reading: Reading) -> Extras:
    fields, hidden = reading.fields, reading.hidden
    if fields.count("word_embed_proj_dim", default=hidden) != hidden:
        raise fields.refuse("word_embed_proj_dim", f"differs from hidden_size {hidden}, which is not supported")
    return Extras(embedding=(fields.count("max_position_embeddings") + 2) * hidden)


def _per_layer_inputs(reading: Reading) -> Extras:
    """Per-layer embeddings of Gemma 3n and 4, and the projections between Gemma 3n's alternating updates."""
    fields, hidden = reading.fields, reading.hidden
    width = reading.layers * fields.count_or_zero("hidden_size_per_layer_input")
    if not width:
        return Extras()
    updates = fields.count_or_zero("altup_num_inputs")
    return Extras(
        embedding=fields.count("vocab_size_per_layer_input") * width,
        weights=hidden * width + (2 * (updates - 1) * hidden * hidden if updates else 0),
        other=width // reading.layers,
    )


def _norm_of_embedding(reading: Reading) -> Extras:
    return Extras(other=2 * reading.hidden)


_WINDOW = frozenset({"sliding_window", "layer_types"})
_SHARED = _WINDOW | {
    "num_kv_shared_layers",
    "attention_k_eq_v",
    "global_head_dim",
    "num_global_key_value_heads",
    "use_bidirectional_attention",
}
_LATENT = frozenset({"kv_lora_rank", "v_head_dim", "layer_types"})
_DELTA = _WINDOW | {"linear_num_value_heads", "full_attention_interval"}

_LLAMA = Family(mixers.plain, mlps.dense, understands=_WINDOW)
_MISTRAL = Family(mixers.plain, mlps.dense, windows="all", understands=_WINDOW)
_QWEN2 = Family(
    mixers.plain,
    mlps.dense,
    bias="attention",
    output_bias=False,
    windows="after",
    window_switch="use_sliding_window",
    understands=_WINDOW,
)
_QWEN3 = Family(
    mixers.plain,
    mlps.dense,
    head_dim_required=True,
    qk_norm="dim",
    windows="after",
    window_switch="use_sliding_window",
    understands=_WINDOW,
)
_QWEN3_MOE = Family(
    mixers.plain,
    mlps.sparse,
    head_dim_required=True,
    qk_norm="dim",
    window_switch="use_sliding_window",
    experts="num_experts",
    understands=_WINDOW,
)
_GEMMA2 = Family(
    mixers.plain,
    mlps.dense,
    head_dim_required=True,
    tied_by_default=True,
    norms=4,
    windows="period",
    period=("", 2),
    understands=_WINDOW,
)
_GEMMA3 = Family(
    mixers.plain,
    mlps.dense,
    head_dim_required=True,
    tied_by_default=True,
    norms=4,
    qk_norm="dim",
    windows="period",
    period=("sliding_window_pattern", 6),
    understands=_WINDOW,
    # Published configs leave out what equals transformers' own defaults of the class.
    defaults={"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262_208},
)
_GEMMA3N = Family(
    mixers.shared,
    mlps.gemma4,
    head_dim_required=True,
    tied_by_default=True,
    norms=4,
    qk_norm="dim",
    windows="period",
    required=("layer_types", "sliding_window", "num_kv_shared_layers", "hidden_size_per_layer_input", "laurel_rank"),
    understands=_SHARED,
    extras=_per_layer_inputs,
)
_GEMMA4 = Family(
    mixers.shared,
    mlps.gemma4,
    head_dim_required=True,
    tied_by_default=True,
    norms=4,
    qk_norm="dim",
    experts="num_experts",
    chosen="top_k_experts",
    windows="period",
    required=("layer_types", "sliding_window", "global_head_dim", "hidden_size_per_layer_input"),
    understands=_SHARED,
    extras=_per_layer_inputs,
)
_COHERE = Family(
    mixers.plain,
    mlps.dense,
    tied_by_default=True,
    norms=1,
    qk_norm="heads",
    qk_norm_switch="use_qk_norm",
    understands=_WINDOW,
)
_COHERE2 = Family(
    mixers.plain,
    mlps.dense,
    tied_by_default=True,
    norms=1,
    windows="period",
    period=("sliding_window_pattern", 4),
    understands=_WINDOW,
)
_QWEN3_NEXT = Family(
    statemixers.qwen3_next,
    mlps.sparse,
    head_dim_required=True,
    qk_norm="dim",
    experts="num_experts",
    shared_intermediate="shared_expert_intermediate_size",
    understands=_DELTA,
    required=("linear_num_value_heads",),
)
_DEEPSEEK = Family(
    mixers.latent, mlps.deepseek, experts="n_routed_experts", understands=_LATENT, required=("qk_rope_head_dim",)
)
_DEEPSEEK_V32 = Family(
    mixers.latent,
    mlps.deepseek,
    experts="n_routed_experts",
    understands=_LATENT | {"index_topk"},
    required=("index_topk",),
)

FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA,
    "granite": _LLAMA,
    "mistral": _MISTRAL,
    "ministral3": _MISTRAL,
    "phi3": _MISTRAL,
    "qwen2": _QWEN2,
    "qwen2_vl": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen3": _QWEN3,
    "qwen3_vl_text": _QWEN3,
    "gemma": Family(mixers.plain, mlps.dense, head_dim_required=True, tied_by_default=True, understands=_WINDOW),
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA3,
    "gemma3n_text": _GEMMA3N,
    "gemma4_text": _GEMMA4,
    "cohere": _COHERE,
    "cohere2": _COHERE2,
    "olmo2": Family(mixers.plain, mlps.dense, qk_norm="whole", understands=_WINDOW),
    "starcoder2": Family(
        mixers.plain,
        mlps.dense,
        gated=False,
        tied_by_default=True,
        bias="all",
        norm_bias=True,
        windows="all",
        understands=_WINDOW,
    ),
    "gpt_neox": Family(
        mixers.plain, mlps.dense, kv_heads=None, gated=False, bias="all", norm_bias=True, understands=_WINDOW
    ),
    "opt": Family(
        mixers.plain,
        mlps.dense,
        kv_heads=None,
        intermediate="ffn_dim",
        gated=False,
        tied_by_default=True,
        bias="all",
        norm_bias=True,
        understands=_WINDOW,
        extras=_learned_positions,
    ),
    "bloom": Family(
        mixers.plain,
        mlps.fourfold,
        heads="n_head",
        kv_heads=None,
        gated=False,
        tied_by_default=True,
        bias="all",
        norm_bias=True,
        root="transformer.h",
        mixer_module="self_attention",
        understands=_WINDOW,
        count_layers=lambda fields: fields.count("n_layer", most=MAX_LAYERS),
        extras=_norm_of_embedding,
    ),
    "falcon": Family(
        mixers.falcon,
        mlps.fourfold,
        gated=False,
        tied_by_default=True,
        norms=0,
        norm_bias=True,
        root="transformer.h",
        mixer_module="self_attention",
    ),
    "mixtral": Family(
        mixers.plain,
        mlps.sparse,
        windows="all",
        experts="num_local_experts",
        expert_intermediate="intermediate_size",
        mlp_module="block_sparse_moe",
        understands=_WINDOW,
    ),
    "qwen2_moe": Family(
        mixers.plain,
        mlps.sparse,
        bias="attention",
        output_bias=False,
        window_switch="use_sliding_window",
        experts="num_experts",
        shared_intermediate="shared_expert_intermediate_size",
        understands=_WINDOW,
    ),
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_vl_moe_text": _QWEN3_MOE,
    "glm4_moe": Family(
        mixers.plain,
        mlps.deepseek,
        experts="n_routed_experts",
        output_bias=False,
        qk_norm="dim",
        qk_norm_switch="use_qk_norm",
        understands=_WINDOW,
    ),
    "gpt_oss": Family(
        mixers.sinks,
        mlps.gpt_oss,
        head_dim_required=True,
        bias="all",
        windows="period",
        period=("", 2),
        experts="num_local_experts",
        expert_intermediate="intermediate_size",
        understands=_WINDOW,
    ),
    "llama4_text": Family(
        mixers.llama4,
        mlps.llama4,
        experts="num_local_experts",
        expert_intermediate="intermediate_size",
        mlp_module="feed_forward",
        understands=frozenset({"attention_chunk_size", "layer_types"}),
        required=("attention_chunk_size",),
    ),
    "mimo_v2_flash": Family(
        mixers.mimo,
        mlps.mimo,
        head_dim_required=True,
        experts="n_routed_experts",
        understands=frozenset(
            {"sliding_window", "hybrid_layer_pattern", "attention_chunk_size", "v_head_dim", "swa_head_dim"}
        ),
        required=("sliding_window", "hybrid_layer_pattern", "swa_head_dim"),
    ),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
    "deepseek_v32": _DEEPSEEK_V32,
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_5_moe_text": _QWEN3_NEXT,
    "qwen3_5_text": replace(_QWEN3_NEXT, mlps=mlps.dense, experts="", shared_intermediate=""),
    "granitemoehybrid": Family(
        statemixers.granite,
        mlps.granite,
        experts="num_local_experts",
        expert_intermediate="intermediate_size",
        mlp_module="block_sparse_moe",
        understands=frozenset({"layer_types", "mamba_d_state"}),
        required=("layer_types", "mamba_d_state"),
    ),
    "nemotron_h": Family(
        statemixers.nemotron_h,
        mlps.nemotron_h,
        gated=False,
        norms=1,
        head_dim_required=True,
        experts="n_routed_experts",
        root="backbone.layers",
        mixer_module="mixer",
        mlp_module="mixer",
        understands=frozenset({"hybrid_override_pattern", "layers_block_type", "ssm_state_size"}),
        required=("ssm_state_size",),
        count_layers=statemixers.count_nemotron_layers,
    ),
    "jamba": Family(
        statemixers.jamba,
        mlps.jamba,
        experts="num_experts",
        expert_intermediate="intermediate_size",
        mlp_module="feed_forward",
        understands=frozenset({"mamba_d_state"}),
        required=("mamba_d_state", "attn_layer_period"),
    ),
}

KV_FIELDS = frozenset(
    {
        *_SHARED,
        *_DELTA,
        "kv_lora_rank",
        "v_head_dim",
        "index_topk",
        "attention_chunk_size",
        "hybrid_override_pattern",
        "hybrid_layer_pattern",
        "layers_block_type",
        "swa_head_dim",
        "ssm_state_size",
        "mamba_d_state",
        "block_configs",
        "per_layer_config",
        "cross_attention_layers",
        "compress_ratios",
        "linear_attn_config",
        "attn_type_list",
        "rswa_window",
        "sliding_window_list",
    }
)
"""Fields that change the KV cache. One that an architecture is not known to use means that it is not understood."""
