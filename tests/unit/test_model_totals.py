"""Numbers of parameters against the models that transformers 5.19.0 builds from the same configs, and published totals."""

from __future__ import annotations

import pytest

from controlplane.core import kvsize
from controlplane.core.attention import attention_flops
from tests.unit.model_configs import NAMES, shape

TOTALS = {
    "bloom-176b": 176_247_271_424,
    "command-r-v01": 34_980_831_232,
    "command-r7b": 8_028_033_024,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_404_352,
    "deepseek-v3.2": 671_877_929_216,
    "falcon-40b": 41_303_293_952,
    "falcon-7b": 6_921_720_704,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-27b": 27_009_346_304,
    "gemma-3-4b": 3_880_263_168,
    "gemma-3n-e4b": 6_835_235_568,
    "gemma-4-26b-a4b": 25_233_141_760,
    "gemma-4-shared": 8_878_590_976,
    "gemma-7b": 8_537_680_896,
    "glm-4.7": 352_797_814_784,
    "gpt-oss-120b": 116_829_156_672,
    "granite-4-h-micro": 3_191_396_096,
    "granite-4.0-h-small": 32_207_337_984,
    "jamba-mini": 51_570_323_328,
    "llama-2-70b": 68_976_648_192,
    "llama-2-7b": 6_738_415_616,
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "llama-4-maverick": 400_711_848_960,
    "llama-4-scout-17b-16e-instruct": 107_769_861_120,
    "mimo-v2-flash": 308_778_768_832,
    "mistral-7b-v0.1": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "mixtral-8x7b-v0.1": 46_702_792_704,
    "nemotron-3-nano-30b-a3b": 31_577_937_344,
    "nemotron-h-56b-base-8k": 56_324_350_464,
    "olmo2-7b": 7_298_617_344,
    "opt-66b": 65_719_701_504,
    "phi-4": 14_659_507_200,
    "pythia-12b": 11_846_072_320,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-32b": 32_762_123_264,
    "qwen3-8b": 8_190_735_360,
    "qwen3-next-80b-a3b": 79_674_391_296,
    "qwen3.5-27b": 26_895_998_464,
    "qwen3.5-397b-a17b": 396_346_350_336,
    "starcoder2-15b": 15_957_889_024,
    "tiny-llama": 3_410_176,
}
WITH_ROUTER_CORRECTION = {"deepseek-v3", "deepseek-v3.2", "mimo-v2-flash", "nemotron-3-nano-30b-a3b"}
"""Checkpoints hold one number per expert and layer that transformers keeps outside its parameters."""


@pytest.mark.parametrize("name", sorted(TOTALS))
def test_totals_equal_those_of_the_built_model(name: str) -> None:
    model = shape(name)
    correction = model.moe_layers * model.experts if name in WITH_ROUTER_CORRECTION else 0
    assert kvsize.parameters(model).total == TOTALS[name] + correction


@pytest.mark.parametrize("name", NAMES)
def test_every_config_is_read(name: str) -> None:
    model = shape(name)
    assert sum(group.layers for group in model.attention) <= model.layers
    assert kvsize.kv_bytes_of_shape(model) > 0 < kvsize.weights_bytes(model)


@pytest.mark.parametrize(
    ("name", "total_b", "active_b"),
    # As their publishers say; of multimodal models the language model, of gpt-oss the active ones with its embedding.
    [
        ("deepseek-v3", 671, 37.5),
        ("kimi-k2", 1026, 32.9),
        ("mixtral-8x7b-v0.1", 46.7, 12.9),
        ("qwen3-235b-a22b", 235, 22.2),
        ("llama-4-scout-17b-16e-instruct", 107.8, 17.2),
        ("mimo-v2-flash", 309, 15.4),
        ("gpt-oss-120b", 116.8, 5.7),
        ("granite-4.0-h-small", 32.2, 8.8),
        ("nemotron-3-nano-30b-a3b", 31.6, 3.6),
        ("glm-4.7", 353, 33.6),
        ("qwen3.5-397b-a17b", 396, 17.0),
        ("llama-3.1-405b", 405.9, 405.9),
    ],
)
def test_active_parameters_are_those_of_the_chosen_experts(name: str, total_b: float, active_b: float) -> None:
    counts = kvsize.parameters(shape(name))
    assert counts.total / 1e9 == pytest.approx(total_b, rel=0.005)
    assert counts.active / 1e9 == pytest.approx(active_b, rel=0.03)


def test_flops_per_token_are_two_per_weight_passed_and_attention() -> None:
    llama = shape("llama-3.1-8b")
    counts = kvsize.parameters(llama)
    assert kvsize.flops_per_token(llama) == 2 * (counts.linear + counts.head) + attention_flops(llama, 1, 0)
    assert kvsize.flops_per_token(llama, 1000) - kvsize.flops_per_token(llama) == 4 * 32 * 128 * 32 * 1000
    mixtral = shape("mixtral-8x7b-v0.1")
    assert kvsize.flops_per_token(mixtral) == pytest.approx(2 * 12.75e9, rel=0.01)
