"""`manage.py phase`: figures for people and programs, and refusals that say what to do."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command


def phase(*words: str) -> str:
    out = StringIO()
    call_command("phase", "--config", "llama-3.1-70b", "--gpu", "h100-sxm", "--tp", "4", *words, stdout=out)
    return out.getvalue()


def document(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(phase(*words, "--json"))
    return found


def test_programs_get_stable_keys() -> None:
    found = document("--prefill", "4096")
    assert {"milliseconds", "tensor_activity", "tensor_peak", "dram_activity", "mfu", "basis", "guesses"} <= set(found)
    assert found["milliseconds"] == pytest.approx(264, rel=0.03)
    assert found["tensor_peak"] > found["tensor_activity"] > found["mfu"] > found["dram_activity"]
    assert (found["basis"], found["guesses"]) == ("calibrated", [])


def test_people_see_which_figures_are_a_guess_and_why() -> None:
    assert "guess" not in phase("--decode", "4200", "--batch", "32")
    table = phase("--decode", "4200", "--batch", "32", "--gpu", "l40s")
    assert "ms (guess)" in table
    assert "guess: the efficiencies of l40s are borrowed from h100-sxm" in table


def test_cached_tokens_shorten_a_prefill_but_not_its_attention() -> None:
    whole, rest, alone = (
        document("--prefill", "8192"),
        document("--prefill", "4096", "--past", "4096"),
        document("--prefill", "4096"),
    )
    assert whole["milliseconds"] > rest["milliseconds"] > alone["milliseconds"]


def test_fp8_weights_are_read_in_half_the_time_and_are_a_guess() -> None:
    plain, half = document("--decode", "100"), document("--decode", "100", "--dtype", "fp8")
    assert half["milliseconds"] < 0.7 * plain["milliseconds"]
    assert half["basis"] == "guess"
    assert document("--decode", "100", "--dtype", "bf16") == plain


def test_the_2023_stack_is_an_option() -> None:
    assert document("--decode", "576", "--stack", "2023")["milliseconds"] > 1.8 * document("--decode", "576")["milliseconds"]


def test_a_cache_that_does_not_fit_is_told_beside_the_time() -> None:
    assert document("--decode", "2048", "--batch", "16")["kv_missing_gb"] == 0
    assert document("--decode", "2048", "--batch", "256", "--tp", "2")["kv_missing_gb"] == pytest.approx(80.7, abs=0.5)
    assert "80.7 GB more per GPU" in phase("--decode", "2048", "--batch", "256", "--tp", "2")


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (("--decode", "0"), "context must be a whole number from 1 to 10,000,000, got 0"),
        (("--decode", "nan"), "context must be a whole number .* got 'nan'"),
        (("--prefill", "-5"), "tokens must be a whole number"),
        (("--prefill", "1e99"), "tokens must be a whole number"),
        (("--prefill", "9", "--batch", "0"), "batch must be a whole number from 1"),
        (("--prefill", "9", "--past", "-1"), "past must be a whole number from 0"),
        (("--prefill", "9", "--tp", "0"), "tp must be a whole number from 1"),
        (
            ("--prefill", "9", "--tp", "3"),
            r"64 attention heads \(8 KV heads\) cannot be split over 3 GPUs; degrees that can: 1, 2, 4, 8",
        ),
        (("--prefill", "9", "--tp", "1"), r"needs 14\d.\d GB on each of 1 h100-sxm .* 6\d.\d GB more than 90%"),
        (("--prefill", "9", "--gpu", "h900"), "GPU kind 'h900' is not known .*h100-sxm"),
        (("--prefill", "9", "--stack", "2022"), "stack must be one of current, 2023"),
        (("--prefill", "9", "--dtype", "int3"), "dtype must be one of auto, bf16, fp16, fp8"),
        (("--prefill", "9", "--kv-dtype", "int3"), "unknown data type 'int3'"),
        (("--prefill", "9", "--config", "no-such.json"), "cannot read 'no-such.json'"),
        (("--decode", "9", "--past", "4"), "count them in the context"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(words: tuple[str, ...], refusal: str) -> None:
    with pytest.raises(CommandError, match=refusal) as refused:
        phase(*words)
    assert "\n" not in str(refused.value)
