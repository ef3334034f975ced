"""Sizes from config.json: known models, and refusals that name the field."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.core.kvsize import ConfigRefused, kv_bytes_per_token, parameters, weights_bytes
from controlplane.core.modelconfig import read_shape

LLAMA_70B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
LLAMA_8B = LLAMA_70B | {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
QWEN3_32B = LLAMA_70B | {
    "model_type": "qwen3",
    "hidden_size": 5120,
    "intermediate_size": 25600,
    "num_hidden_layers": 64,
    "head_dim": 128,
    "vocab_size": 151936,
    "sliding_window": None,
}
QWEN3_235B = QWEN3_32B | {
    "model_type": "qwen3_moe",
    "hidden_size": 4096,
    "num_hidden_layers": 94,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1536,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
MIXTRAL = LLAMA_8B | {
    "model_type": "mixtral",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
    "sliding_window": None,
}
OPT_66B = {
    "model_type": "opt",
    "hidden_size": 9216,
    "ffn_dim": 36864,
    "num_hidden_layers": 64,
    "num_attention_heads": 72,
    "vocab_size": 50272,
    "max_position_embeddings": 2048,
    "torch_dtype": "float16",
}


@pytest.mark.parametrize(
    ("config", "dtype", "expected"),
    [
        (LLAMA_70B, None, 327_680),
        (LLAMA_70B, "fp8", 163_840),
        (LLAMA_70B, "float32", 655_360),
        (LLAMA_8B, "auto", 131_072),
        (QWEN3_32B, None, 262_144),
        (QWEN3_235B, None, 192_512),
        (MIXTRAL, None, 131_072),
        (OPT_66B, None, 2_359_296),
        ({"model_type": "llava", "text_config": LLAMA_8B}, None, 131_072),
        (
            {"torch_dtype": "bfloat16", "text_config": {k: v for k, v in LLAMA_8B.items() if k != "torch_dtype"}},
            None,
            131_072,
        ),
        (LLAMA_8B | {"head_dim": 256}, None, 262_144),
        (QWEN3_32B | {"use_sliding_window": False, "sliding_window": 4096}, None, 262_144),
    ],
)
def test_kv_bytes_per_token_are_those_of_known_models(config: dict[str, Any], dtype: str | None, expected: int) -> None:
    assert kv_bytes_per_token(config, dtype) == expected


@pytest.mark.parametrize(
    ("config", "total"),
    [(LLAMA_8B, 8_030_261_248), (LLAMA_70B, 70_553_706_496), (MIXTRAL, 46_702_792_704), (QWEN3_235B, 235_093_634_560)],
)
def test_parameter_counts_are_exact(config: dict[str, Any], total: int) -> None:
    assert parameters(read_shape(config)).total == total


def test_a_token_of_a_mixture_of_experts_uses_a_part_of_the_parameters() -> None:
    counts = parameters(read_shape(MIXTRAL))
    assert counts.active / 1e9 == pytest.approx(12.9, abs=0.1)


def test_fp8_weights_take_one_byte_in_the_layers_only() -> None:
    fp8 = weights_bytes(read_shape(LLAMA_70B | {"quantization_config": {"quant_method": "fp8"}}))
    assert 70.5e9 < fp8 < 75e9 < weights_bytes(read_shape(LLAMA_70B)) == 2 * 70_553_706_496


@pytest.mark.parametrize("field", sorted(set(LLAMA_70B) - {"tie_word_embeddings", "max_position_embeddings"}))
def test_a_missing_field_is_named(field: str) -> None:
    with pytest.raises(ConfigRefused) as refused:
        kv_bytes_per_token({k: v for k, v in LLAMA_70B.items() if k != field})
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"kv_lora_rank": 512}, "kv_lora_rank"),
        ({"model_type": "deepseek_v3", "kv_lora_rank": 512}, "qk_rope_head_dim"),
        ({"hybrid_override_pattern": "M-M*"}, "hybrid_override_pattern"),
        ({"model_type": "somebody_new"}, "model_type"),
        ({"sliding_window": 4096}, "sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"layer_types": "full"}, "layer_types"),
        ({"attention_chunk_size": 8192}, "attention_chunk_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": -3}, "num_hidden_layers"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"num_hidden_layers": "80"}, "num_hidden_layers"),
        ({"num_hidden_layers": float("nan")}, "num_hidden_layers"),
        ({"num_key_value_heads": 7}, "num_key_value_heads"),
        ({"torch_dtype": "int3"}, "torch_dtype"),
        ({"v_head_dim": 64}, "v_head_dim"),
        ({"text_config": 5}, "text_config"),
        ({"text_config": {"model_type": "llama"}}, "text_config.vocab_size"),
        ({"quantization_config": {"quant_method": "aqlm"}}, "quantization_config.quant_method"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config.bits"),
    ],
)
def test_what_is_not_understood_is_refused_by_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigRefused) as refused:
        kv_bytes_per_token(LLAMA_70B | change)
    assert refused.value.field == field


def test_an_unknown_kv_dtype_is_refused() -> None:
    with pytest.raises(ConfigRefused, match="int1"):
        kv_bytes_per_token(LLAMA_70B, "int1")


def test_a_document_that_is_no_object_is_refused() -> None:
    with pytest.raises(ConfigRefused):
        kv_bytes_per_token([1, 2])  # type: ignore[arg-type]
