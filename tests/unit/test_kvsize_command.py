"""`manage.py kvsize`: figures for people and programs, and refusals that say what to do."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from controlplane.physics.sizes import size_document
from tests.unit.model_configs import FOLDER, NAMES, config


def kvsize(*words: str) -> str:
    out = StringIO()
    call_command("kvsize", *words, stdout=out)
    return out.getvalue()


def document(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(kvsize(*words, "--json"))
    return found


def test_programs_get_stable_keys() -> None:
    found = document("--config", "llama-3.1-70b", "--dtype", "bf16", "--tokens", "4096")
    assert {
        "bytes_per_token": 327_680,
        "fixed_bytes_per_request": 0,
        "bytes": 1_342_177_280,
        "reserved_bytes_per_token": 327_680,
        "weights_bytes": 141_107_412_992,
        "parameters": 70_553_706_496,
        "active_parameters": 70_553_706_496,
        "flops_per_token": 139_004_739_584,
    }.items() <= found.items()
    assert "per_gpu" not in found


def test_a_gpu_of_a_tensor_parallel_group_holds_its_share() -> None:
    found = document("--config", "deepseek-v3.2", "--dtype", "fp8_ds_mla", "--tp", "8")
    assert found["bytes_per_token"] == found["per_gpu"]["bytes_per_token"] == 40_016
    assert found["reserved_bytes_per_token"] == found["per_gpu"]["reserved_bytes_per_token"] == 48_068
    assert found["per_gpu"]["weights_bytes"] == -(-found["weights_bytes"] // 8)
    assert document("--config", "llama-3.1-70b", "--tp", "4")["per_gpu"]["bytes_per_token"] == 81_920


def test_a_file_is_read_as_well_as_a_name() -> None:
    found = document("--config", str(FOLDER / "gemma-2-27b.json"), "--tokens", "10000")
    assert (found["bytes_per_token"], found["fixed_bytes_per_request"]) == (188_416, 771_751_936)
    assert found["bytes"] == 188_416 * 10_000 + 771_751_936 == found["transfer_bytes"]
    assert (found["reserved_bytes_per_token"], found["reserved_bytes"]) == (376_832, 3_768_320_000)
    assert [(each["kind"], each["layers"], each["window_tokens"]) for each in found["layers"]] == [
        ("sliding", 23, 4096),
        ("full", 23, 0),
    ]


def test_people_see_units_and_layers() -> None:
    table = kvsize("--config", "llama-3.1-70b", "--tokens", "4096", "--tp", "4")
    assert "GB = 10⁹ bytes, GiB = 2³⁰ bytes" in table
    assert "1,342,177,280 B        1.342 GB        1.250 GiB" in table
    assert "80 layers full: 327,680 B per token" in table
    assert "on each of 4 GPUs" in table
    hybrid = kvsize("--config", "nemotron-h-56b-base-8k")
    assert "54 layers with a state: 912,605,184 B per request" in hybrid
    assert "25 layers sliding, window 1,024 tokens" in kvsize("--config", "gemma-4-26b-a4b")
    shared = kvsize("--config", str(FOLDER / "gemma-3n-e4b.json"))
    assert "3 layers full: read the cache of earlier ones" in shared


@pytest.mark.parametrize("name", NAMES)
def test_every_model_has_a_document_that_is_json(name: str) -> None:
    found = size_document(config(name), tokens=100_000)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["bytes"] <= found["transfer_bytes"] <= found["reserved_bytes"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--tokens", "0"), "tokens must be a whole number from 1 to 2,147,483,648, got 0"),
        (("--tokens=-5",), "tokens must be a whole number"),
        (("--tokens", "nan"), "tokens must be a whole number"),
        (("--tokens", "1.5"), "tokens must be a whole number"),
        (("--tokens", "9" * 30), "tokens must be a whole number"),
        (("--tp", "0"), "tp must be a whole number"),
        (("--tp", "3"), "cannot be split over tp 3; degrees that can: 1, 2, 4, 8"),
        (("--dtype", "int3"), "kv dtype: unknown data type 'int3' (known: bf16"),
        (("--dtype", "fp8_ds_mla"), "only for latents of 512 + 64 numbers"),
    ],
)
def test_a_question_that_cannot_be_answered_says_what_to_change(words: tuple[str, ...], problem: str) -> None:
    with pytest.raises(CommandError) as refused:
        kvsize("--config", "llama-3.1-70b", *words)
    assert problem in str(refused.value)


def test_a_config_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for text, problem in (
        ("{", "is not JSON"),
        ("[]", "expected a JSON object"),
        ('{"model_type": "mamba"}', "model_type: architecture 'mamba' is not known (known: bloom, cohere"),
        ('{"model_type": "llama", "torch_dtype": "bfloat16"}', "vocab_size: is missing"),
    ):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(CommandError) as refused:
            kvsize("--config", str(tmp_path / "config.json"))
        assert problem in str(refused.value)
    with pytest.raises(CommandError, match=r"cannot read .*give a file or one of: .*llama-3\.1-70b"):
        kvsize("--config", str(tmp_path / "nosuch.json"))
