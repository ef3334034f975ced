"""Reading architectures from config.json: their rules for layers, wrappers, and refusals that name the field."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.core.kvsize import fixed_bytes_of_shape, kv_bytes_of_shape
from controlplane.core.modelconfig import ConfigRefused, read_shape
from controlplane.core.shapes import Shape
from tests.unit.model_configs import config


def without(name: str, *fields: str) -> dict[str, Any]:
    return {key: value for key, value in config(name).items() if key not in fields}


def kinds(shape: Shape) -> dict[str, int]:
    counted: dict[str, int] = {}
    for group in shape.attention:
        counted[group.kind] = counted.get(group.kind, 0) + group.layers
    return counted


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama-3.1-70b", {"full": 80}),
        ("mistral-7b-v0.1", {"sliding": 32}),
        ("gemma-2-27b", {"sliding": 23, "full": 23}),
        ("gemma-3-27b", {"sliding": 52, "full": 10}),
        ("command-r7b", {"sliding": 24, "full": 8}),
        ("llama-4-maverick", {"chunked": 36, "full": 12}),
        ("deepseek-v3", {"latent": 61}),
        ("qwen3-next-80b-a3b", {"state": 36, "full": 12}),
        ("jamba-mini", {"state": 28, "full": 4}),
        ("nemotron-h-56b-base-8k", {"state": 54, "full": 10}),
    ],
)
def test_each_architecture_has_its_rule_of_layers(name: str, expected: dict[str, int]) -> None:
    assert kinds(read_shape(config(name))) == expected


@pytest.mark.parametrize(
    ("name", "layer_types"),
    [
        ("gemma-2-27b", ["sliding_attention", "full_attention"] * 23),
        ("command-r7b", (["sliding_attention"] * 3 + ["full_attention"]) * 8),
        ("llama-4-maverick", (["chunked_attention"] * 3 + ["full_attention"]) * 12),
        ("qwen3-next-80b-a3b", (["linear_attention"] * 3 + ["full_attention"]) * 12),
        ("llama-3.1-8b", ["full_attention"] * 32),
    ],
)
def test_layers_that_are_listed_are_those_of_the_rule(name: str, layer_types: list[str]) -> None:
    assert read_shape(config(name) | {"layer_types": layer_types}) == read_shape(config(name))


def test_windows_apply_where_the_config_switches_them_on() -> None:
    qwen = config("qwen2.5-7b") | {"sliding_window": 4096, "max_window_layers": 20}
    assert kinds(read_shape(qwen)) == {"full": 28}
    assert kinds(read_shape(qwen | {"use_sliding_window": True})) == {"full": 20, "sliding": 8}
    assert kinds(read_shape(config("phi-4") | {"sliding_window": 2047})) == {"sliding": 40}
    assert kinds(read_shape(config("phi-4") | {"sliding_window": 16384})) == {"full": 40}
    assert kinds(read_shape(config("llama-4-maverick") | {"attention_chunk_size": None})) == {"full": 48}
    rotary = [1, 1, 0, 1] * 12
    assert kinds(read_shape(config("llama-4-maverick") | {"no_rope_layers": rotary})) == {"chunked": 36, "full": 12}


def test_a_multimodal_wrapper_is_read_for_its_language_model() -> None:
    inner = config("mistral-7b-v0.3")
    wrapped = {"model_type": "mistral3", "torch_dtype": "bfloat16", "text_config": without("mistral-7b-v0.3", "torch_dtype")}
    assert read_shape(wrapped) == read_shape(inner)
    assert read_shape(wrapped | {"tie_word_embeddings": True}).tied_head is False
    with pytest.raises(ConfigRefused) as refused:
        read_shape({"torch_dtype": "bfloat16", "text_config": {"model_type": "llama"}})
    assert refused.value.field == "text_config.vocab_size"


def test_newer_configs_name_the_type_dtype_and_nemotrons_layers_as_a_list() -> None:
    qwen = without("qwen3-8b", "torch_dtype") | {"dtype": "bfloat16"}
    assert read_shape(qwen) == read_shape(config("qwen3-8b"))
    pattern = config("nemotron-3-nano-30b-a3b")["hybrid_override_pattern"]
    names = {"M": "linear_attention", "E": "moe", "*": "full_attention"}
    newer = without("nemotron-3-nano-30b-a3b", "hybrid_override_pattern", "num_hidden_layers")
    newer["layers_block_type"] = [names[sign] for sign in pattern]
    assert read_shape(newer) == read_shape(config("nemotron-3-nano-30b-a3b"))


def test_state_types_are_the_configs_own() -> None:
    half = read_shape(config("qwen3-next-80b-a3b") | {"mamba_ssm_dtype": "bfloat16"})
    assert fixed_bytes_of_shape(half) == 36 * (32 * 128 * 128 + 3 * 8192) * 2
    nemotron = read_shape(config("nemotron-h-56b-base-8k") | {"mamba_ssm_cache_dtype": "bfloat16"})
    assert fixed_bytes_of_shape(nemotron) == 54 * (256 * 64 * 256 + 3 * 20480) * 2


def test_the_kv_type_changes_keys_and_values_but_no_states() -> None:
    model = read_shape(config("granite-4.0-h-small"))
    assert kv_bytes_of_shape(model, "fp8") * 2 == kv_bytes_of_shape(model)
    assert fixed_bytes_of_shape(model, "fp8") == fixed_bytes_of_shape(model) == 77_322_240


def test_tensor_parallelism_must_divide_the_heads_of_every_kind() -> None:
    for name, fits, fails in (
        ("llama-3.1-70b", (1, 2, 8, 16, 64), (3, 6, 128)),
        ("phi-4", (1, 2, 5, 10, 20, 40), (4, 8)),
        ("qwen3-next-80b-a3b", (1, 2, 4, 8, 16), (3, 32)),
        ("deepseek-v3", (1, 8, 128), (3, 256)),
        ("mimo-v2-flash", (1, 4, 8, 64), (3,)),
        ("falcon-7b", (1, 71), (2, 8)),
    ):
        model = read_shape(config(name))
        assert all(model.splits_over(degree) for degree in fits)
        assert not any(model.splits_over(degree) for degree in fails)


KV_FIELDS: dict[str, Any] = {
    "kv_lora_rank": 512,
    "index_topk": 2048,
    "v_head_dim": 64,
    "attention_chunk_size": 8192,
    "num_kv_shared_layers": 4,
    "attention_k_eq_v": True,
    "global_head_dim": 512,
    "hybrid_override_pattern": "M-*-",
    "hybrid_layer_pattern": [0, 1],
    "layers_block_type": ["mamba"],
    "swa_head_dim": 64,
    "ssm_state_size": 128,
    "mamba_d_state": 16,
    "linear_num_value_heads": 32,
    "full_attention_interval": 4,
    "block_configs": [{}],
    "per_layer_config": {"0": {}},
    "cross_attention_layers": [3],
    "compress_ratios": [4],
    "linear_attn_config": {"kda_layers": [1]},
    "sliding_window": 4096,
    "layer_types": ["sliding_attention"] * 80,
}


@pytest.mark.parametrize("field", sorted(KV_FIELDS))
def test_a_field_that_changes_the_cache_is_refused_where_the_architecture_does_not_use_it(field: str) -> None:
    with pytest.raises(ConfigRefused) as refused:
        read_shape(config("llama-3.1-70b") | {field: KV_FIELDS[field]})
    assert refused.value.field == field
    assert read_shape(config("llama-3.1-70b") | {field: None}) == read_shape(config("llama-3.1-70b"))


REQUIRED = {
    "gpt-oss-120b": ["sliding_window", "head_dim", "num_local_experts", "num_experts_per_tok"],
    "gemma-2-27b": ["sliding_window", "head_dim", "num_key_value_heads"],
    "gemma-3-27b": [],
    "deepseek-v3": ["kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "moe_intermediate_size"],
    "deepseek-v3.2": ["index_topk", "index_head_dim", "index_n_heads", "q_lora_rank"],
    "mimo-v2-flash": [
        "hybrid_layer_pattern",
        "swa_head_dim",
        "swa_v_head_dim",
        "v_head_dim",
        "moe_layer_freq",
        "sliding_window",
    ],
    "llama-4-maverick": ["attention_chunk_size", "intermediate_size_mlp", "num_local_experts"],
    "qwen3-next-80b-a3b": ["linear_num_value_heads", "linear_conv_kernel_dim", "linear_key_head_dim", "head_dim"],
    "granite-4.0-h-small": [
        "layer_types",
        "mamba_n_heads",
        "mamba_d_state",
        "mamba_d_conv",
        "mamba_n_groups",
        "mamba_expand",
    ],
    "nemotron-h-56b-base-8k": ["hybrid_override_pattern", "ssm_state_size", "mamba_num_heads", "mamba_head_dim", "n_groups"],
    "jamba-mini": [
        "attn_layer_period",
        "mamba_d_state",
        "mamba_expand",
        "mamba_d_conv",
        "num_experts",
        "expert_layer_period",
    ],
    "gemma-4-shared": ["layer_types", "global_head_dim", "sliding_window", "vocab_size_per_layer_input"],
    "falcon-40b": ["num_kv_heads", "num_attention_heads"],
    "bloom-176b": ["n_head", "n_layer"],
    "opt-66b": ["ffn_dim", "max_position_embeddings"],
}


@pytest.mark.parametrize(("name", "field"), [(name, field) for name, fields in REQUIRED.items() for field in fields])
def test_what_an_architecture_needs_is_named_when_it_is_missing(name: str, field: str) -> None:
    with pytest.raises(ConfigRefused) as refused:
        read_shape(without(name, field))
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("name", "change", "field"),
    [
        ("gemma-2-27b", {"layer_types": ["full_attention"]}, "layer_types"),
        ("gemma-2-27b", {"layer_types": ["conv"] * 46}, "layer_types"),
        ("qwen3-235b-a22b", {"use_sliding_window": True, "sliding_window": 4096}, "sliding_window"),
        ("qwen2.5-7b", {"layer_types": ["sliding_attention"] * 28}, "layer_types"),
        ("mistral-7b-v0.1", {"layer_types": ["sliding_attention", "full_attention"] * 16}, "layer_types"),
        ("gemma-2-27b", {"layer_types": ["mamba", "full_attention"] * 23}, "layer_types"),
        ("llama-3.1-8b", {"layer_types": ["chunked_attention"] * 32}, "layer_types"),
        ("gemma-4-shared", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
        ("gemma-2-27b", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("mimo-v2-flash", {"hybrid_layer_pattern": [0, 2] * 24}, "hybrid_layer_pattern"),
        ("mimo-v2-flash", {"attention_chunk_size": 256}, "attention_chunk_size"),
        ("gemma-4-shared", {"layer_types": []}, "layer_types"),
        ("gemma-4-shared", {"num_kv_shared_layers": 42}, "num_kv_shared_layers"),
        ("gemma-4-shared", {"num_kv_shared_layers": 40}, "num_kv_shared_layers"),
        ("gemma-3n-e4b-inner", {"intermediate_size": [1, 2]}, "intermediate_size"),
        ("llama-4-maverick", {"no_rope_layers": [1, 0]}, "no_rope_layers"),
        ("deepseek-v3.2", {"q_lora_rank": None}, "q_lora_rank"),
        ("deepseek-v3", {"layer_types": ["sliding_attention"] * 61}, "layer_types"),
        ("nemotron-h-56b-base-8k", {"hybrid_override_pattern": "M*"}, "num_hidden_layers"),
        ("nemotron-h-56b-base-8k", {"hybrid_override_pattern": "X" * 118}, "hybrid_override_pattern"),
        ("nemotron-3-nano-30b-a3b", {"moe_latent_size": 1024}, "moe_latent_size"),
        ("granite-4.0-h-small", {"mamba_d_head": 32}, "mamba_d_head"),
        ("granite-4.0-h-small", {"layer_types": ["mamba"] * 40}, "num_hidden_layers"),
        ("mixtral-8x7b-v0.1", {"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ("opt-66b", {"word_embed_proj_dim": 512}, "word_embed_proj_dim"),
        ("llama-3.1-8b", {"num_hidden_layers": 1 << 30}, "num_hidden_layers"),
    ],
)
def test_contradictions_and_what_is_not_understood_are_refused(name: str, change: dict[str, Any], field: str) -> None:
    document = config("gemma-3n-e4b")["text_config"] | {"dtype": "bfloat16"} if name.endswith("-inner") else config(name)
    with pytest.raises(ConfigRefused) as refused:
        read_shape(document | change)
    assert refused.value.field == field


BAD_VALUES: list[Any] = [0, -1, True, 1.5, float("nan"), float("inf"), "12", [1], {"a": 1}, 1 << 70]


@pytest.mark.parametrize(
    "name", ["gemma-3n-e4b", "deepseek-v3.2", "mimo-v2-flash", "jamba-mini", "qwen3.5-397b-a17b", "phi-4"]
)
def test_a_bad_value_of_any_field_ends_in_nothing_but_a_refusal(name: str) -> None:
    document = config(name)
    inner = document.get("text_config", document)
    for field in inner:
        for value in BAD_VALUES:
            changed = {**inner, field: value}
            try:
                read_shape({**document, "text_config": changed} if inner is not document else changed)
            except ConfigRefused as refused:
                assert refused.field


LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize("field", sorted(LLAMA))
def test_a_missing_field_of_a_plain_model_is_named(field: str) -> None:
    with pytest.raises(ConfigRefused) as refused:
        read_shape({name: value for name, value in LLAMA.items() if name != field})
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model_type": "somebody_new"}, "model_type"),
        ({"model_type": 5}, "model_type"),
        ({"layer_types": "full"}, "layer_types"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": -3}, "num_hidden_layers"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"num_hidden_layers": "80"}, "num_hidden_layers"),
        ({"num_hidden_layers": float("nan")}, "num_hidden_layers"),
        ({"num_key_value_heads": 7}, "num_key_value_heads"),
        ({"num_attention_heads": 48, "num_key_value_heads": 48}, "head_dim"),
        ({"torch_dtype": "int3"}, "torch_dtype"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"text_config": 5}, "text_config"),
    ],
)
def test_a_wrong_value_is_refused_by_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigRefused) as refused:
        read_shape(LLAMA | change)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (None, 327_680),
        ("auto", 327_680),
        ("fp8", 163_840),
        ("fp8_e5m2", 163_840),
        ("float32", 655_360),
        ("torch.float16", 327_680),
    ],
)
def test_kv_types_have_their_sizes(dtype: str | None, expected: int) -> None:
    assert kv_bytes_of_shape(read_shape(LLAMA), dtype) == expected


@pytest.mark.parametrize("dtype", ["int1", "", 8, None, ["fp8"]])
def test_an_unknown_type_is_refused(dtype: Any) -> None:
    if dtype is not None:
        with pytest.raises(ConfigRefused, match="unknown data type"):
            kv_bytes_of_shape(read_shape(LLAMA), dtype)
    with pytest.raises(ConfigRefused):
        read_shape(LLAMA | {"torch_dtype": dtype})


@pytest.mark.parametrize("document", [[1, 2], "llama", None, 5])
def test_a_document_that_is_no_object_is_refused(document: Any) -> None:
    with pytest.raises(ConfigRefused) as refused:
        read_shape(document)
    assert refused.value.field == "document"
