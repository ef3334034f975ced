"""KV bytes per token and per request of public models, against the reference table."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controlplane.core import kvsize
from controlplane.physics.catalog import DATA
from tests.unit.model_configs import config, shape

ROWS: list[dict[str, Any]] = json.loads((DATA / "kv_bytes_per_token.json").read_text(encoding="utf-8"))
CONFIG_OF = {
    "Llama-2-7b-hf": "llama-2-7b",
    "Llama-2-70b-hf": "llama-2-70b",
    "DeepSeek-V3/R1": "deepseek-v3",
    "Qwen3-Next-80B-A3B": "qwen3-next-80b-a3b",
    "Command-R v01 (35B)": "command-r-v01",
}


@pytest.mark.parametrize("row", ROWS, ids=[row["model"] for row in ROWS])
def test_every_row_of_the_reference_agrees(row: dict[str, Any]) -> None:
    document = config(CONFIG_OF.get(row["model"], row["model"].lower()))
    assert kvsize.kv_bytes_per_token(document, "fp16") == row["bytes_per_token_fp16"]
    assert kvsize.kv_bytes_per_token(document, "fp8") == row["bytes_per_token_fp8"]
    assert kvsize.fixed_bytes_per_request(document, "fp16") == row["per_request_fixed_bytes_fp16"]


@pytest.mark.parametrize(
    ("name", "reserved"), [("gemma-2-27b", 376_832), ("gpt-oss-120b", 73_728), ("deepseek-v3.2", 78_324)]
)
def test_engines_reserve_what_the_references_notes_say(name: str, reserved: int) -> None:
    assert kvsize.reserved_bytes_per_token(shape(name), "fp16") == reserved


def test_an_engine_that_frees_windows_holds_whole_blocks_and_one_more() -> None:
    gemma = shape("gemma-2-27b")
    full, window = 188_416 * 10_000, 188_416 * 4112
    assert kvsize.reserved_bytes_hybrid(gemma, None, 10_000) == full + window
    assert kvsize.reserved_bytes_hybrid(gemma, None, 10_000, tokens_in_flight=1 << 20) == 376_832 * 10_000
    assert kvsize.reserved_bytes_hybrid(gemma, None, 1) == 376_832 * 16
    assert kvsize.reserved_bytes_hybrid(gemma, None, 129, block_size=128) == 376_832 * 256
    llama4 = shape("llama-4-maverick")
    assert kvsize.reserved_bytes_hybrid(llama4, None, 32_000) == kvsize.reserved_bytes(llama4, None, 32_000)
    assert kvsize.reserved_bytes_hybrid(shape("deepseek-v3.2"), None, 16) == 16 * 78_324
    assert kvsize.reserved_bytes_hybrid(shape("granite-4.0-h-small"), None, 16) == 16 * 16_384 + 77_322_240


def test_a_window_in_every_layer_caps_a_request() -> None:
    mistral = shape("mistral-7b-v0.1")
    assert kvsize.ideal_bytes(mistral, None, 4096) == kvsize.ideal_bytes(mistral, None, 1_000_000) == 536_870_912
    assert kvsize.reserved_bytes(mistral, None, 8192) == 2 * 536_870_912


def test_packed_latents_take_656_bytes_per_layer_and_other_models_refuse_them() -> None:
    v3, v32 = shape("deepseek-v3"), shape("deepseek-v3.2")
    assert kvsize.kv_bytes_of_shape(v3, "fp8_ds_mla") == 40_016
    assert kvsize.reserved_bytes_per_token(v32, "fp8_ds_mla") == 48_068
    assert kvsize.indexer_bytes_per_token(v32) == 8_052
    with pytest.raises(kvsize.ConfigRefused, match="only for latents of 512"):
        kvsize.kv_bytes_of_shape(shape("llama-3.1-8b"), "fp8_ds_mla")


def test_a_latent_is_whole_on_every_gpu_and_heads_are_divided_then_copied() -> None:
    deepseek, llama = shape("deepseek-v3.2"), shape("llama-3.1-405b")
    for degree in (1, 8, 64):
        assert kvsize.kv_bytes_per_token_per_gpu(deepseek, degree) == 70_272
        assert kvsize.reserved_bytes_per_token_per_gpu(deepseek, degree) == 78_324
    assert [kvsize.kv_bytes_per_token_per_gpu(llama, degree) for degree in (1, 2, 8, 16)] == [
        516_096,
        258_048,
        64_512,
        64_512,
    ]


CASES: list[tuple[str, int, int]] = [
    # name, bytes per token, fixed bytes per request, both in the model's own type
    ("gemma-3-27b", 10 * 2 * 16 * 128 * 2, 52 * 2 * 16 * 128 * 2 * 1024),
    ("gemma-3-4b", 5 * 2 * 4 * 256 * 2, 29 * 2 * 4 * 256 * 2 * 1024),
    ("gemma-3n-e4b", 4 * 2 * 2 * 256 * 2, 16 * 2 * 2 * 256 * 2 * 512),
    ("gemma-4-26b-a4b", 5 * 2 * 2 * 512 * 2, 25 * 2 * 8 * 256 * 2 * 1024),
    ("gemma-4-shared", 4 * 2 * 2 * 512 * 2, 20 * 2 * 2 * 256 * 2 * 512),
    ("mimo-v2-flash", 9 * 4 * (192 + 128) * 2, 39 * 8 * (192 + 128) * 2 * 128),
    ("llama-4-scout-17b-16e-instruct", 12 * 2 * 8 * 128 * 2, 36 * 2 * 8 * 128 * 2 * 8192),
    ("command-r7b", 8 * 2 * 8 * 128 * 2, 24 * 2 * 8 * 128 * 2 * 4096),
    ("kimi-k2", 70_272, 0),
    ("deepseek-v2-lite", 27 * 576 * 2, 0),
    ("falcon-7b", 32 * 2 * 64 * 2, 0),
    ("jamba-mini", 4 * 2 * 8 * 128 * 2, 28 * (8192 * 16 + 3 * 8192) * 2),
    ("nemotron-h-56b-base-8k", 10 * 2 * 8 * 128 * 2, 54 * (256 * 64 * 256 * 4 + 3 * (16384 + 2 * 8 * 256) * 2)),
    ("nemotron-3-nano-30b-a3b", 6 * 2 * 2 * 128 * 2, 23 * (64 * 64 * 128 * 4 + 3 * (4096 + 2 * 8 * 128) * 2)),
    ("qwen3.5-397b-a17b", 15 * 2 * 2 * 256 * 2, 45 * (64 * 128 * 128 * 4 + 3 * (2 * 2048 + 8192) * 2)),
]


@pytest.mark.parametrize(("name", "per_token", "fixed"), CASES)
def test_kinds_of_layers_are_counted_by_their_own_heads_and_windows(name: str, per_token: int, fixed: int) -> None:
    model = shape(name)
    assert (kvsize.kv_bytes_of_shape(model), kvsize.fixed_bytes_of_shape(model)) == (per_token, fixed)


def test_a_transfer_moves_windows_only_but_chunked_layers_whole() -> None:
    gemma, llama4, nemotron = shape("gemma-2-27b"), shape("llama-4-maverick"), shape("nemotron-h-56b-base-8k")
    assert kvsize.transfer_bytes(gemma, None, 10_000) == 188_416 * (10_000 + 4096)
    assert kvsize.transfer_bytes(llama4, None, 10_000) == 196_608 * 10_000 > kvsize.ideal_bytes(llama4, None, 10_000)
    assert kvsize.transfer_bytes(nemotron, "fp8", 1) == 20_480 + 912_605_184
    assert kvsize.transfer_bytes(shape("deepseek-v3.2"), None, 10) == 783_240
    assert kvsize.transfer_bytes(shape("llama-3.1-70b"), None, 4096) == 1_342_177_280


def test_states_are_divided_over_gpus() -> None:
    model = shape("granite-4.0-h-small")
    assert kvsize.state_bytes_per_request_per_gpu(model, 4) * 4 == 77_322_240
    assert kvsize.ideal_bytes(model, None, 1000, 4) * 4 == kvsize.ideal_bytes(model, None, 1000)
