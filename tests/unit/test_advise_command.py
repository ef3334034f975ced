"""`manage.py advise` as somebody new runs it: the cases that everybody asks about, and the numbers that must be exact."""

from __future__ import annotations

import json
import random
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

MODEL = ["--config", "llama-3.1-70b", "--gpu", "h100-sxm"]
FAST = ["--network-gbps", "400", "--transport", "rdma"]


def run(*options: str) -> tuple[str, str]:
    """What it prints, and what it says beside."""
    out, err = StringIO(), StringIO()
    call_command("advise", *MODEL, *options, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def advice(*options: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*options, "--json")[0])
    return found


def failing(found: dict[str, Any]) -> list[str]:
    return [check["name"] for check in found["checks"] if check["state"] == "fail"]


def plain(sentence: str) -> bool:
    """One sentence: it begins like one and nothing but its end is an end."""
    return sentence[:1].isupper() | sentence[:1].isdigit() and sentence.endswith(".") and ". " not in sentence


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Questions about documents: prompts of 12,000 tokens on average, the longest of 42,000."""
    draw = random.Random(7)
    lines = [
        {
            "at_s": index * 0.2,
            "prompt_tokens": max(1000, round(draw.lognormvariate(9.25, 0.5))),
            "output_tokens": max(20, round(draw.lognormvariate(5.5, 0.5))),
        }
        for index in range(300)
    ]
    assert 11_500 < sum(line["prompt_tokens"] for line in lines) / len(lines) < 12_500
    file = tmp_path_factory.mktemp("traces") / "documents.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


@pytest.mark.parametrize("gpus", ["16", "64"])
@pytest.mark.parametrize("output", ["60", "100", "300", "1000"])
def test_prompts_of_210_tokens_stay_monolithic_and_the_sentence_says_why(gpus: str, output: str) -> None:
    found = advice("--gpus", gpus, *FAST, "--input", "210", "--output", output, "--seeds", "0")
    assert (found["verdict"], found["mode"]) == ("no", "monolithic")
    assert found["sentence"].startswith("Stay monolithic: ") and "210" in found["sentence"]
    assert plain(found["sentence"])


def test_so_many_requests_that_no_simulation_tells_a_highest_rate_are_answered_in_closed_form() -> None:
    text, beside = run("--gpus", "64", *FAST, "--input", "210", "--output", "120")
    assert text.startswith("Stay monolithic: prompts have 210 tokens, fewer than 512")
    assert beside.startswith("This is the closed form, not simulated: ") and beside.count("\n") == 1


def test_a_trace_of_documents_on_64_gpus_with_rdma_is_split_and_gains(documents: Path) -> None:
    found = advice("--gpus", "64", *FAST, "--trace", str(documents), "--limit", "200")
    assert found["verdict"] == "yes" and found["mode"] == "disaggregated" and failing(found) == []
    assert found["inputs"]["requests"] == 200 and found["inputs"]["seeds"] == 1
    assert found["gain"]["low"] > 0 and plain(found["gain"]["sentence"].replace("4.", "4,"))
    assert "requests within the targets" in found["sentence"]


@pytest.mark.parametrize(
    ("options", "check", "word"),
    [
        (["--gpus", "8", *FAST], "gpus", "GPUs"),
        (["--gpus", "64", "--network-gbps", "400", "--transport", "tcp"], "transport", "T"),
    ],
)
def test_with_eight_gpus_or_tcp_the_failing_check_is_named(
    documents: Path, options: list[str], check: str, word: str
) -> None:
    found = advice(*options, "--trace", str(documents), "--seeds", "0")
    assert failing(found) == [check] and found["verdict"] in ("no", "try_canary")
    assert word in found["sentence"]
    assert all(plain(each["sentence"].replace("3.", "3,")) for each in found["checks"])


def test_the_reference_numbers_are_printed_exactly() -> None:
    text, _ = run("--gpus", "64", *FAST, "--input", "4096", "--output", "640", "--seeds", "0")
    assert "KV 327,680 B per token; 4,096 tokens 1.342 GB: 107 ms at 100 Gb/s, 27 ms at 400 Gb/s" in text
    for threshold in ("70 % or more", "500 MB or less, or 100 Gb/s or more", "under 80 %", "16 or more", "RDMA"):
        assert f"(threshold: {threshold})" in text
    assert "(threshold: 512 in or more, or 100 out or more)" in text


def test_targets_that_no_mode_keeps_are_told_and_not_dressed_up_as_a_small_gain() -> None:
    found = advice("--gpus", "64", *FAST, "--input", "12000", "--output", "300", "--slo-ttft", "100", "--seeds", "0")
    assert found["verdict"] == "try_canary" and found["gain"]["ratio"] == 0
    assert "no mode keeps the targets" in found["sentence"] and plain(found["sentence"])


@pytest.mark.parametrize("limit", ["-1", "0", "many"])
def test_a_limit_that_cannot_be_is_refused_by_its_name(documents: Path, limit: str) -> None:
    with pytest.raises(CommandError, match=r"limit must be a whole number from 1 to 100,000"):
        run("--gpus", "64", *FAST, "--trace", str(documents), f"--limit={limit}", "--seeds", "0")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--trace", "x.csv", "--input", "9", "--output", "9"), "give --trace or --input, --output, not both"),
        (("--trace", "x.csv", "--output", "9"), "give --trace or --output, not both; a trace has its own lengths"),
        (("--input", "9", "--output", "9", "--limit", "3"), "--limit belongs to --trace"),
    ],
)
def test_options_that_would_not_be_looked_at_are_refused(options: tuple[str, ...], problem: str) -> None:
    with pytest.raises(CommandError, match=problem):
        run("--gpus", "64", *FAST, *options)


def test_a_canary_against_a_check_names_the_check() -> None:
    found = advice("--gpus", "64", *FAST, "--input", "8000", "--output", "300", "--prefix-hit", "0.99")
    assert (found["verdict"], failing(found)) == ("try_canary", ["prefix_hits"])
    assert "though this check fails: KV already on the decode side" in found["sentence"]
    assert plain(found["sentence"])
