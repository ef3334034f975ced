"""`manage.py forecast` answers with a table, a document or a page, and refuses what cannot be in one line."""

from __future__ import annotations

import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from controlplane.core.forecast import ForecastRefused
from controlplane.physics.asked import ForecastRequest
from controlplane.physics.catalog import read_config
from controlplane.physics.forecasting import forecast
from controlplane.physics.traffic import Drawn
from controlplane.physics.workload import Distribution

TRACES = Path(__file__).parents[1] / "data" / "traces"
SHORT = ("--input", "500", "--output", "20", "--rate", "4", "--seconds", "10", "--seeds", "2")
SMALL = ("--model", "qwen3-8b", "--gpus", "4", "--tp", "1", *SHORT)
STABLE = {
    "tokens_per_second_per_gpu",
    "requests_per_second",
    "ttft_ms",
    "itl_ms",
    "goodput",
    "gpus",
    "tensor_activity",
    "dram_activity",
    "effective_gpus",
    "transfer_share",
    "cost_per_million_tokens",
    "guesses",
    "interval",
    "refused",
}


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command("forecast", *arguments, stdout=out)
    return out.getvalue()


def document(*arguments: str) -> dict[str, Any]:
    found = json.loads(run(*arguments, "--json"), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert isinstance(found, dict)
    return found


def refusal(*arguments: str) -> str:
    with pytest.raises(CommandError) as refused:
        run(*arguments)
    text = str(refused.value)
    assert "\n" not in text
    assert len(text) < 700
    return text


def test_the_default_compares_every_mode_on_the_same_gpus() -> None:
    found = document(*SMALL)
    assert [layout["mode"] for layout in found["layouts"]] == ["monolithic", "disaggregated", "conditional"]
    assert {layout["gpus"] for layout in found["layouts"]} == {4}
    assert found["winner"]["layout"] == found["layout"] in {layout["layout"] for layout in found["layouts"]}
    assert len(found["winner"]["others"]) == 2
    assert found["layouts"][1]["search"]["simulated"] >= 2, "the split was found by simulating"


def test_the_document_has_the_keys_that_programs_rely_on() -> None:
    found = document(*SMALL, "--mode", "monolithic")
    assert found.keys() >= STABLE
    assert found["ttft_ms"].keys() == found["itl_ms"].keys() == {"p50", "p90", "p99"}
    assert found["requests_per_second"] == pytest.approx(4, rel=0.5)
    assert found["tokens_per_second_per_gpu"] == pytest.approx(found["requests_per_second"] * 20 / 4, rel=0.3)
    for pool in found["pools"]:
        low, high = found["interval"]["busy_share"][pool["role"]]
        assert low <= pool["busy_share"] <= high
    low, high = found["interval"]["ttft_ms"]["p99"]
    assert low <= found["ttft_ms"]["p99"] <= high
    assert found["winner"] is None
    assert found["served"] + found["unfinished"] + sum(found["refused"].values()) == found["arrived"]


def test_fixed_layouts_are_taken_as_they_are_and_compared_by_cost() -> None:
    texts = ["agg:4xTP1@h100-sxm", "agg:4xTP1@l4", "disagg:1xTP1@h100-sxm+3xTP1@l40s"]
    found = document("--model", "qwen3-0.6b", *SHORT, *(word for text in texts for word in ("--layout", text)))
    assert [layout["layout"] for layout in found["layouts"]] == texts
    assert found["layout"] == "agg:4xTP1@l4", "the cheapest that keeps up with a small load"
    assert found["layouts"][1]["guesses"], "an L4's efficiencies are borrowed"
    assert [layout["cost_per_hour"] for layout in found["layouts"]] == [12.0, 2.8, 6.6]


def test_pools_of_two_kinds_are_compared_with_each_kind_alone() -> None:
    found = document(*SMALL, "--prefill-gpu", "h100-sxm", "--decode-gpu", "h200-sxm", "--seeds", "1")
    kinds = [
        (layout["mode"], sorted({pool["text"].split("@")[1] for pool in layout["pools"]})) for layout in found["layouts"]
    ]
    assert kinds == [
        ("monolithic", ["h100-sxm"]),
        ("monolithic", ["h200-sxm"]),
        ("disaggregated", ["h100-sxm"]),
        ("disaggregated", ["h200-sxm"]),
        ("disaggregated", ["h100-sxm", "h200-sxm"]),
        ("conditional", ["h100-sxm", "h200-sxm"]),
    ]


def test_a_degree_that_nobody_gave_is_searched() -> None:
    found = document("--model", "llama-3.1-70b", "--gpus", "16", *SHORT, "--mode", "disaggregated")
    assert all("TP1@" not in pool["text"] for pool in found["pools"]), "70B does not fit on one GPU"


def test_a_price_that_was_given_replaces_the_guess() -> None:
    found = document(*SMALL, "--mode", "monolithic", "--price", "h100-sxm=2.00")
    assert found["cost_per_hour"] == 8.0
    assert found["inputs"]["gpus"]["h100-sxm"]["price_basis"] == "given"
    assert "list price" not in run(*SMALL, "--mode", "monolithic", "--price", "h100-sxm=2.00")
    assert "list price" in run(*SMALL, "--mode", "monolithic")


@pytest.mark.parametrize(
    ("name", "requests"), [("azure2023_conv.csv", 200), ("mooncake_conversation.jsonl", 150), ("twinpool.jsonl", 60)]
)
def test_every_kind_of_trace_is_forecast(name: str, requests: int) -> None:
    found = document("--model", "qwen3-8b", "--layout", "disagg:2xTP1+2xTP1", "--trace", str(TRACES / name))
    assert found["arrived"] == requests
    assert found["inputs"]["traffic"]["name"] == name
    assert found["interval"] is None, "a record is one sample"
    hits = found["pools"][0]["cached_share"]
    assert hits > 0 if name != "azure2023_conv.csv" else hits == 0


def test_answers_of_one_token_have_no_gaps(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"at_s": 0, "prompt_tokens": 9, "output_tokens": 1}\n' * 3)
    words = ("--trace", str(trace), "--model", "llama-3.1-8b", "--gpus", "2", "--tp", "1")
    assert document(*words)["itl_ms"]["p50"] is None
    assert "TTFT" in run(*words)


def test_a_trace_can_be_cut_and_hastened() -> None:
    trace = ("--model", "qwen3-8b", "--layout", "agg:4xTP1", "--trace", str(TRACES / "mooncake_conversation.jsonl"))
    assert document(*trace, "--limit", "20")["arrived"] == 20
    assert document(*trace, "--scale-rate", "3")["inputs"]["traffic"]["seconds"] == pytest.approx(18)
    assert 0 < document(*trace, "--seconds", "9")["arrived"] < 60


def test_the_steady_rate_agrees_with_the_search_and_p99_is_stricter() -> None:
    asked = ("--model", "llama-3.1-8b", "--input", "1000", "--output", "100", "--seeds", "1", "--slo-itl", "20")
    steady = document(*asked, "--layout", "agg:1xTP1", "--saturate")
    assert steady["requests_per_second"] > 0
    assert steady["tokens_per_second_per_gpu"] == pytest.approx(steady["requests_per_second"] * 100, rel=1e-4)
    strict = document(*asked, "--layout", "agg:1xTP1", "--saturate", "p99")
    assert 0 < strict["requests_per_second"] < steady["requests_per_second"]
    assert strict["ttft_ms"]["p99"] <= 2000
    assert strict["itl_ms"]["p99"] <= 20 * 1.001


@pytest.mark.parametrize("how", ["steady", "p99"])
def test_a_layout_that_never_keeps_the_slo_saturates_at_nothing(how: str) -> None:
    asked = ("--model", "qwen3-0.6b", "--layout", "agg:1xTP1", "--input", "20", "--output", "2", "--slo-itl", "0.01")
    found = document(*asked, "--seeds", "1", "--saturate", how)
    assert found["requests_per_second"] == 0
    assert found["cost_per_million_tokens"] is None
    assert found["ttft_ms"]["p50"] > 0, "what a request alone sees"
    assert any("the limit of ITL" in note or "TPOT over" in note for note in found["layouts"][0]["notes"])


def test_no_layout_is_best_where_none_keeps_the_slo() -> None:
    asked = (*SMALL[:2], "--layout", "agg:1xTP1", "--layout", "agg:2xTP1", *SHORT, "--saturate", "--slo-itl", "0.01")
    assert "no layout serves requests within the SLO" in run(*asked)


def test_a_held_prefix_shortens_prefill() -> None:
    asked = ("--model", "qwen3-8b", "--layout", "agg:4xTP1", *SHORT[2:], "--input", "4000")
    assert document(*asked, "--prefix-cached", "3500")["ttft_ms"]["p50"] < document(*asked)["ttft_ms"]["p50"] / 2


def test_overload_is_said_where_it_is() -> None:
    found = document(
        "--model",
        "qwen3-8b",
        "--layout",
        "agg:1xTP1",
        "--input",
        "4000",
        "--output",
        "50",
        "--rate",
        "40",
        "--seconds",
        "30",
    )
    assert any("overloaded" in note for note in found["layouts"][0]["notes"])
    assert found["requests_per_second"] < 30


def test_requests_that_no_engine_takes_are_counted_with_the_reason(tmp_path: Path) -> None:
    trace = tmp_path / "long.jsonl"
    trace.write_text(
        '{"at_s": 0, "prompt_tokens": 1900000, "output_tokens": 2}\n'
        + '{"at_s": 0, "prompt_tokens": 9, "output_tokens": 2}\n' * 99
    )
    found = document("--model", "qwen3-8b", "--layout", "agg:1xTP1", "--trace", str(trace))
    assert (found["served"], list(found["refused"].values())) == (99, [1])
    assert any("1 of 100 requests are refused" in note for note in found["layouts"][0]["notes"])


def test_the_table_has_units_limits_and_footnotes() -> None:
    table = run(*SMALL, "--gpu", "l40s")
    for text in (
        "TTFT, p99 (limit 2 s)",
        "req/s",
        "tok/s",
        "US$/h",
        " ms",
        " %",
        "is chosen",
        "¹ guess: the efficiencies of l40s",
    ):
        assert text in table
    assert "\x1b" not in table, "no colors where nobody sees them"


def test_nothing_but_the_document_is_printed_with_json(capfd: pytest.CaptureFixture[str]) -> None:
    document(*SMALL, "--mode", "monolithic")
    assert capfd.readouterr().err == ""


BAD: list[tuple[tuple[str, ...], str]] = [
    (("--input", "0"), "input must be a whole number from 1 to 2,000,000, got 0"),
    (("--input", "-5"), "input must be"),
    (("--input", "nan"), "input must be a whole number from 1 to 2,000,000, got 'nan'"),
    (("--input", "1e30"), "input must be a whole number from 1 to 2,000,000, got '1e30'"),
    (("--rate", "fast"), "rate must be above 0 and at most 100,000 requests/s, got 'fast'"),
    (("--gpus", "1.5"), "gpus must be a whole number from 1 to 4,096, got '1.5'"),
    (("--output", "0"), "output must be"),
    (("--output", "99999999999"), "output must be"),
    (("--rate", "nan"), "rate must be above 0 and at most 100,000 requests/s, got nan"),
    (("--rate", "inf"), "rate must be above 0"),
    (("--rate", "0"), "rate must be above 0"),
    (("--rate", "90000"), "requests, more than the 100,000 that are simulated"),
    (("--seconds", "-1"), "seconds must be above 0"),
    (("--seconds", "nan"), "seconds must be above 0"),
    (("--seeds", "0"), "seeds must be a whole number from 1 to 30, got 0"),
    (("--seeds", "1000000"), "seeds must be"),
    (("--length-cv", "-1"), "length-cv must be from 0 to 10"),
    (("--arrival", "weekly"), "arrival must be one of poisson, constant, gamma"),
    (("--arrival", "gamma", "--cv", "0"), "cv must be above 0"),
    (("--gpus", "0"), "gpus must be a whole number from 1 to 4,096, got 0"),
    (("--gpus", "999999999"), "gpus must be"),
    (("--tp", "0"), "tp must be a whole number from 1 to 64, got 0"),
    (("--tp", "8"), "tp 8 needs 8 GPUs for one engine, there are 4"),
    (("--tp", "3"), "cannot be split over 3 GPUs"),
    (("--gpu", "h300"), "GPU kind 'h300' is not known (known: a100-sxm"),
    (("--decode-gpu", "tpu"), "GPU kind 'tpu' is not known"),
    (("--mode", "twin"), "mode must be one of monolithic, disaggregated, conditional, compare"),
    (("--slo-ttft", "0"), "slo-ttft must be above 0"),
    (("--slo-itl", "nan"), "slo-itl must be above 0"),
    (("--network-gbps", "0"), "network-gbps must be above 0"),
    (("--network-gbps", "inf"), "network-gbps must be above 0"),
    (("--prefix-cached", "-1"), "prefix-cached must be"),
    (("--prefix-cached", "500"), "prefix-cached must be less than the prompt (500 tokens on average), got 500"),
    (("--price", "h100-sxm"), "price must look like h100-sxm=2.50"),
    (("--price", "h100-sxm=free"), "price must look like"),
    (("--price", "h100-sxm=nan"), "price of h100-sxm must be above 0"),
    (("--price", "h300=1"), "GPU kind 'h300' is not known"),
    (("--dtype", "int3"), "dtype must be one of"),
    (("--kv-dtype", "int3"), "unknown data type 'int3'"),
    (("--saturate", "wildly"), "saturate must be one of steady, p99"),
    (("--layout", "agg:8xTP4", "--mode", "monolithic"), "give --mode or --layout, not both"),
    (("--layout", "agg:8TP4"), "character 6: expected 'x'"),
    (("--layout", "disagg:12xTP2"), "character 14: expected '+' and the decode pool"),
    (("--layout", "agg:8xTP1@h300"), "character 11: GPU kind 'h300' is not known"),
    (("--layout", "agg:1xTP1"), "give --layout or --gpus, --tp, not both"),
    (("--cv", "2"), "--cv belongs to --arrival gamma"),
    (("--limit", "5"), "--limit and --scale-rate belong to --trace"),
    (("--max-num-seqs", "0"), "max-num-seqs must be"),
    (("--max-num-batched-tokens", "64"), "max_num_batched_tokens (64) must not be below max_num_seqs"),
    (("--html", "/nowhere/at/all.html"), "there is no such folder"),
    (("--html", "/"), "is a folder"),
]


@pytest.mark.parametrize(("arguments", "problem"), BAD, ids=[" ".join(arguments)[:60] for arguments, _ in BAD])
def test_what_cannot_be_is_refused_in_one_line_with_the_remedy(arguments: tuple[str, ...], problem: str) -> None:
    assert problem in refusal(*SMALL, *arguments)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--model", "llama-3.1-70b", "--gpus", "1", *SHORT), "GB more than"),
        (("--model", "llama-3.1-70b", "--tp", "1", *SHORT), "GB more than"),
        (("--model", "llama-3.1-405b", "--layout", "agg:1xTP8@l4", *SHORT), "GB more than"),
        (("--model", "qwen3-8b", "--gpus", "1", *SHORT, "--mode", "disaggregated"), "there are 1"),
        (("--model", "qwen3-8b", "--layout", "agg:1xTP3", *SHORT), "cannot be split over 3 GPUs"),
        (("--model", "qwen3-8b", "--layout", "agg:4096xTP2", *SHORT), "has 8,192 GPUs, more than 4,096"),
        (("--model", "qwen3-8b", *("--layout", "agg:1xTP1") * 9, *SHORT), "at most 8 layouts"),
        (("--model", "no-such-model", *SHORT), "give a file or one of: "),
        (("--model", "tests", *SHORT), "Is a directory"),
        (("--model", "qwen3-8b", "--input", "5", "--output", "5"), "say what the traffic is: --trace FILE, or --input"),
        (
            (
                "--model",
                "qwen3-8b",
            ),
            "say what the traffic is",
        ),
        (
            ("--model", "qwen3-8b", "--input", "40000", "--output", "4000", "--rate", "1"),
            "44,000 tokens on average, more than the model's 40,960",
        ),
        (("--model", "qwen3-8b", "--trace", "/nowhere"), "cannot read it: No such file"),
        (("--model", "qwen3-8b", "--trace", str(TRACES / "README.md")), "line 1: is neither"),
        (
            ("--model", "qwen3-8b", "--trace", str(TRACES / "twinpool.jsonl"), "--rate", "2"),
            "give --trace or --rate, not both",
        ),
        (
            ("--model", "qwen3-8b", "--trace", str(TRACES / "twinpool.jsonl"), "--length-cv", "0.5", "--arrival", "gamma"),
            "give --trace or --length-cv, --arrival, not both",
        ),
        (("--model", "qwen3-8b", "--trace", str(TRACES / "twinpool.jsonl"), "--limit", "0"), "limit must be"),
        (("--model", "qwen3-8b", "--trace", str(TRACES / "twinpool.jsonl"), "--scale-rate", "nan"), "scale-rate must be"),
        (
            ("--model", "qwen3-8b", "--trace", str(TRACES / "twinpool.jsonl"), "--prefix-cached", "9"),
            "prefix-cached cannot be combined",
        ),
        (
            ("--model", "qwen3-8b", "--layout", "agg:1xTP1", "--input", "5", "--output", "1", "--saturate"),
            "answers of 2 tokens or more",
        ),
    ],
)
def test_questions_without_an_answer_are_refused(arguments: tuple[str, ...], problem: str) -> None:
    assert problem in refusal(*arguments)


@pytest.mark.parametrize("how", [(), ("--saturate",)])
def test_what_takes_too_long_is_refused_at_once(how: tuple[str, ...]) -> None:
    large = ("--gpus", "4096", "--rate", "300", "--seconds", "300", "--seeds", "5")
    assert re.search(
        r"this takes about \d+ minutes, more than the 10 allowed; use fewer seeds", refusal(*SMALL, *large, *how)
    )


def test_a_search_whose_time_is_over_ends() -> None:
    traffic = Drawn(Distribution(500, 20, rate=4.0, seconds=10.0))
    asked = ForecastRequest("m", read_config("qwen3-0.6b"), traffic, saturate="p99", most_seconds=0.001)
    with pytest.raises(ForecastRefused, match="this takes more than the"):
        forecast(asked)


def test_an_empty_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text("")
    assert "it is empty; a trace needs at least one request" in refusal(
        "--model", "qwen3-8b", "--trace", str(tmp_path / "empty.csv")
    )


def test_hostile_names_move_no_cursor(tmp_path: Path) -> None:
    trace = tmp_path / "\x1b[31mred\x1b]0;owned\x07.jsonl"
    trace.write_bytes((TRACES / "twinpool.jsonl").read_bytes())
    table = run("--model", "qwen3-8b", "--layout", "agg:1xTP1", "--trace", str(trace))
    assert "\x1b" not in table
    assert "\x07" not in table
    trace.write_text("bad\n")
    assert "\x1b" not in refusal("--model", "qwen3-8b", "--trace", str(trace))


def test_figures_are_finite() -> None:
    def numbers(value: object) -> list[float]:
        if isinstance(value, dict):
            return [number for each in value.values() for number in numbers(each)]
        if isinstance(value, list):
            return [number for each in value for number in numbers(each)]
        return [value] if isinstance(value, float) else []

    assert all(map(math.isfinite, numbers(document(*SMALL))))
