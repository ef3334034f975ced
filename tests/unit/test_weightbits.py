"""Bytes of quantised weights: what each method stores, which modules it leaves alone, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.core import kvsize
from controlplane.core.modelconfig import ConfigRefused, read_shape
from controlplane.core.weightbits import read_storage
from tests.unit.model_configs import config, shape

INT4_GROUPS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}
FP8_CHANNEL = {"num_bits": 8, "type": "float", "strategy": "channel"}


def scheme(weights: dict[str, Any], inputs: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    group = {"weights": weights, "input_activations": inputs, "targets": ["Linear"]}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, **more}


@pytest.mark.parametrize(
    ("quantisation", "per_weight", "compute_bits"),
    [
        (None, 2, 16),
        ({"quant_method": "fp8"}, 1, 8),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 1 + 4 / 16384, 8),
        ({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]}, 1, 8),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 0.5 + 2.5 / 128, 16),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}, 0.5 + 2.5 / 32, 16),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 1, 16),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 0.5 + 4 / 64, 16),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}, 0.515869140625, 16),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 1, 16),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 1, 8),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 0.5 + 1 / 16, 8),
        (scheme(INT4_GROUPS), 0.5 + 2 / 128, 16),
        (scheme(INT4_GROUPS | {"symmetric": False}), 0.5 + 2.5 / 128, 16),
        (scheme(FP8_CHANNEL, {"num_bits": 8, "type": "float", "dynamic": True}), 1, 8),
        (scheme(FP8_CHANNEL), 1, 16),
        (scheme({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}), 1 + 4 / 16384, 16),
        (scheme({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}), 0.5625, 16),
    ],
)
def test_a_weight_takes_its_bits_and_a_share_of_its_groups_scales(
    quantisation: dict[str, Any] | None, per_weight: float, compute_bits: int
) -> None:
    model = read_shape(config("llama-3.1-8b") | {"quantization_config": quantisation})
    assert model.weight_bytes == pytest.approx(per_weight)
    assert model.compute_bits == compute_bits
    counts = kvsize.parameters(model)
    plain = counts.embedding + counts.head + counts.other
    assert kvsize.weights_bytes(model) == pytest.approx(counts.linear * per_weight + 2 * plain, rel=1e-9)


@pytest.mark.parametrize(
    ("pattern", "of_layer"),
    [
        ("model.layers.3.self_attn.q_proj", 3),
        ("model.layers.3.self_attn", 3),
        ("model.layers.3", 3),
        ("model.layers.*.self_attn", None),
        ("self_attn", None),
        ("model.layers.3.*.q_proj", 3),
        ("re:model\\.layers\\.3\\..*q_proj$", 3),
        ("re:.*self_attn.*", None),
        ("re:.*\\.(self_attn|mlp)\\.q_proj$", None),
    ],
)
def test_modules_that_are_left_alone_are_found_by_name_place_or_pattern(pattern: str, of_layer: int | None) -> None:
    storage = read_storage({"quant_method": "fp8", "ignored_layers": [pattern]}, 2)
    for layer in (3, 33):
        expected = 2 if of_layer in (None, layer) else 1
        assert storage.of(f"model.layers.{layer}.self_attn.q_proj") == expected
    assert storage.of("model.layers.3.mlp.gate_proj") == (2 if pattern == "model.layers.3" else 1)
    assert storage.of("model.layers.4.mlp.gate", "model.layers.4.mlp.up_proj") == 1


def test_a_layer_that_is_left_alone_takes_its_plain_size() -> None:
    skipped = ["model.layers.0", "model.layers.31"]
    whole = kvsize.weights_bytes(read_shape(config("llama-3.1-8b") | {"quantization_config": {"quant_method": "fp8"}}))
    part = {"quant_method": "fp8", "modules_to_not_convert": skipped}
    model = read_shape(config("llama-3.1-8b") | {"quantization_config": part})
    layer = kvsize.parameters(model).linear // 32
    assert kvsize.weights_bytes(model) - whole == 2 * layer
    assert len(model.attention) == len(model.mlp) == 2
    assert kvsize.kv_bytes_of_shape(model) == 131_072


@pytest.mark.parametrize(("name", "total_size"), [("gpt-oss-120b", 65_248_815_744), ("mixtral-8x7b-v0.1", 93_405_585_408)])
def test_weights_take_what_the_published_checkpoint_takes(name: str, total_size: int) -> None:
    assert kvsize.weights_bytes(shape(name)) == total_size


def test_only_the_experts_of_mxfp4_are_quantised() -> None:
    model = shape("gpt-oss-120b")
    assert {group.weight_bytes for group in model.attention} == {2}
    assert {group.expert_bytes for group in model.mlp} == {0.53125}
    stored = kvsize.linear_bytes(model)
    assert stored.experts == 36 * 128 * 3 * 2880 * 2880 * 0.53125


def test_a_wrapper_may_hold_the_quantisation_and_patterns_pick_the_experts() -> None:
    ignored = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]
    quantised = scheme(INT4_GROUPS | {"group_size": 32}, ignore=ignored)
    inner = config("kimi-k2")
    wrapped = read_shape({"model_type": "kimi_k25", "text_config": inner, "quantization_config": quantised})
    assert wrapped == read_shape({"text_config": inner | {"quantization_config": quantised}})
    assert {group.weight_bytes for group in wrapped.attention} == {2}
    assert {group.always_bytes for group in wrapped.mlp} == {2}
    assert {group.expert_bytes for group in wrapped.mlp if group.experts} == {0.5625}
    counts = kvsize.parameters(wrapped)
    assert kvsize.weights_bytes(wrapped) == counts.expert_linear * 0.5625 + (counts.total - counts.expert_linear) * 2


@pytest.mark.parametrize(
    ("more", "kv_bytes"),
    [
        ({}, 2),
        ({"kv_cache_scheme": None, "kv_cache_quant_algo": None}, 2),
        ({"kv_cache_quant_algo": "FP8"}, 1),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}, 1),
    ],
)
def test_a_checkpoint_may_ask_for_an_fp8_cache(more: dict[str, Any], kv_bytes: int) -> None:
    quantised = {"quant_method": "modelopt", "quant_algo": "FP8", **more}
    model = read_shape(config("llama-3.1-8b") | {"quantization_config": quantised})
    assert kvsize.kv_bytes_of_shape(model) == kvsize.kv_bytes_of_shape(model, "auto") == 65_536 * kv_bytes
    assert kvsize.kv_bytes_of_shape(model, "bf16") == 131_072


@pytest.mark.parametrize(
    ("quantisation", "field"),
    [
        ("fp8", ""),
        ({}, ".quant_method"),
        ({"quant_method": "aqlm"}, ".quant_method"),
        ({"quant_method": "fp8", "weight_block_size": 128}, ".weight_block_size"),
        ({"quant_method": "fp8", "weight_block_size": [128, 0]}, ".weight_block_size"),
        ({"quant_method": "awq"}, ".bits"),
        ({"quant_method": "awq", "bits": 5, "group_size": 128}, ".bits"),
        ({"quant_method": "awq", "bits": True, "group_size": 128}, ".bits"),
        ({"quant_method": "awq", "bits": 4}, ".group_size"),
        ({"quant_method": "gptq", "bits": 4, "group_size": float("nan")}, ".group_size"),
        ({"quant_method": "bitsandbytes"}, ".load_in_4bit"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, ".quant_algo"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "NVFP4"}, ".kv_cache_quant_algo"),
        ({"quant_method": "compressed-tensors"}, ".config_groups"),
        (scheme(INT4_GROUPS | {"group_size": None}), ".config_groups.group_0.weights.group_size"),
        ({"quant_method": "fp8", "ignored_layers": "lm_head"}, ".ignored_layers"),
        ({"quant_method": "fp8", "ignore": ["re:(a*)*$"]}, ".ignore"),
        ({"quant_method": "fp8", "ignore": ["re:(a+)+$"]}, ".ignore"),
        ({"quant_method": "fp8", "ignore": [f"re:.*a{number}" for number in range(65)]}, ""),
        ({"quant_method": "fp8", "ignore": ["re:(a"]}, ".ignore"),
        ({"quant_method": "fp8", "ignore": ["re:a|.*b"]}, ".ignore"),
    ],
)
def test_what_cannot_be_read_is_refused_by_field(quantisation: Any, field: str) -> None:
    with pytest.raises(ConfigRefused) as refused:
        read_shape(config("llama-3.1-8b") | {"quantization_config": quantisation})
    assert refused.value.field == f"quantization_config{field}"
