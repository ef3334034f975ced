"""The advisor: reference numbers, the five checks and the rule for short prompts, and what they come to."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from controlplane.core.advisor import Advice, Measured, ModeForecast, Situation, Verdict, advise
from controlplane.core.advisor_checks import all_checks, transfer_s
from controlplane.core.kvsize import kv_bytes_per_token
from controlplane.core.protocol import Slo
from controlplane.physics.advising import AdviceRequest, advise_offline
from controlplane.physics.catalog import read_config

RAG = Situation(
    prompt_tokens=Measured(12_000, 5_000, 1800.0, 9_000.0, "recorded"),
    output_tokens=Measured(300, 5_000, 1800.0, 200.0, "recorded"),
    decode_share=Measured(0.9, 5_000, 1800.0, 0.1, "recorded"),
    kv_bytes_per_request=Measured(12_000 * 327_680, 5_000, 1800.0, source="recorded"),
    prefix_hits=Measured(0.12, 5_000, 1800.0, 0.3, "recorded"),
    gpus=64,
    network_gbps=400.0,
)


def forecasts(whole: float, split: float, per_request: float = 0.0) -> list[ModeForecast]:
    return [
        ModeForecast("monolithic", "agg:16xTP4@h100-sxm", whole, whole, whole),
        ModeForecast("disaggregated", "disagg:8xTP4@h100-sxm+8xTP4@h100-sxm", split, split, split),
        ModeForecast("conditional", "cond:8xTP4@h100-sxm+8xTP4@h100-sxm", per_request, per_request, per_request),
    ]


def states(situation: Situation) -> dict[str, str]:
    return {check.name: check.state for check in all_checks(situation)}


def failing(advice: Advice) -> list[str]:
    return [check.name for check in advice.checks if check.state == "fail"]


def test_the_reference_sizes_and_times_of_a_transfer_are_exact() -> None:
    per_token = kv_bytes_per_token(read_config("llama-3.1-70b"))
    size = per_token * 4096
    assert per_token == 327_680
    assert round(size / 1e9, 3) == 1.342
    assert round(transfer_s(size, 100) * 1e3) == 107
    assert round(transfer_s(size, 400) * 1e3) == 27


@pytest.mark.parametrize(
    ("change", "check", "state"),
    [
        ({"decode_share": Measured(0.70)}, "decode_share", "pass"),
        ({"decode_share": Measured(0.699)}, "decode_share", "fail"),
        ({"kv_bytes_per_request": Measured(500e6), "network_gbps": 99.0}, "kv_network", "pass"),
        ({"kv_bytes_per_request": Measured(500e6 + 1), "network_gbps": 99.0}, "kv_network", "fail"),
        ({"kv_bytes_per_request": Measured(500e6 + 1), "network_gbps": 100.0}, "kv_network", "pass"),
        ({"prefix_hits": Measured(0.799)}, "prefix_hits", "pass"),
        ({"prefix_hits": Measured(0.80)}, "prefix_hits", "fail"),
        ({"gpus": 16}, "gpus", "pass"),
        ({"gpus": 15}, "gpus", "fail"),
        ({"transport": "tcp"}, "transport", "fail"),
        ({"prompt_tokens": Measured(511), "output_tokens": Measured(99)}, "short_prompts", "fail"),
        ({"prompt_tokens": Measured(512), "output_tokens": Measured(99)}, "short_prompts", "pass"),
        ({"prompt_tokens": Measured(511), "output_tokens": Measured(100)}, "short_prompts", "pass"),
    ],
)
def test_every_threshold_is_where_the_design_has_it(change: dict[str, object], check: str, state: str) -> None:
    assert states(replace(RAG, **change))[check] == state  # type: ignore[arg-type]


def test_checks_one_four_and_five_good_mean_disaggregate() -> None:
    held = replace(RAG, prefix_hits=Measured(0.9), network_gbps=50.0)
    assert (advise(RAG).verdict, advise(RAG).mode) == ("yes", "disaggregated")
    assert (advise(held).verdict, advise(held).mode) == ("yes", "conditional"), "checks 2 and 3 only warn"


@pytest.mark.parametrize("change", [{"gpus": 8}, {"transport": "tcp"}, {"decode_share": Measured(0.5)}])
def test_one_of_the_three_failing_means_no_and_is_named(change: dict[str, object]) -> None:
    advice = advise(replace(RAG, **change), forecasts(5.0, 4.0))  # type: ignore[arg-type]
    assert advice.verdict == "no"
    assert advice.mode == "monolithic"
    reason = next(check.sentence for check in advice.checks if check.state == "fail")
    assert reason[1:].rstrip(".") in advice.sentence


def test_short_prompts_win_over_all_checks_and_any_forecast() -> None:
    short = replace(RAG, prompt_tokens=Measured(210, 5_000), output_tokens=Measured(60, 5_000))
    advice = advise(short, forecasts(1.0, 9.0))
    assert advice.verdict == "no"
    assert "210 prompt and 60 output tokens" in advice.sentence


@pytest.mark.parametrize(
    ("change", "whole", "split", "verdict"),
    [
        ({}, 5.0, 8.0, "yes"),
        ({}, 8.0, 5.0, "try_canary"),
        ({}, 5.0, 5.1, "try_canary"),
        ({"gpus": 8}, 5.0, 8.0, "try_canary"),
        ({"gpus": 8}, 5.0, 5.1, "no"),
        ({"prompt_tokens": Measured(300)}, 8.0, 5.0, "no"),
        ({}, 0.0, 5.0, "yes"),
    ],
)
def test_checks_and_forecast_that_disagree_call_for_a_canary(
    change: dict[str, object], whole: float, split: float, verdict: Verdict
) -> None:
    assert advise(replace(RAG, **change), forecasts(whole, split)).verdict == verdict  # type: ignore[arg-type]


def test_the_gain_has_an_interval_that_holds_the_models_own_error() -> None:
    gain = advise(RAG, forecasts(5.0, 8.0)).gain
    assert gain is not None
    assert gain.ratio == pytest.approx(0.6)
    assert gain.low < gain.ratio < gain.high
    endless = advise(RAG, forecasts(0.0, 8.0)).gain
    assert endless is not None
    assert math.isinf(endless.ratio)


@pytest.mark.parametrize("few", [Measured(None), Measured(0.9, 20)])
def test_without_enough_requests_it_says_so_instead_of_guessing(few: Measured) -> None:
    assert advise(replace(RAG, decode_share=few)).verdict == "not_enough_data"
    assert advise(replace(RAG, decode_share=few, transport="tcp")).verdict == "no", "no traffic changes that"


def test_every_check_tells_value_threshold_window_samples_and_confidence_in_one_sentence() -> None:
    for check in advise(RAG).checks:
        assert check.sentence.endswith(".")
        assert ". " not in check.sentence
        assert check.value_text and check.threshold_text and check.source
    measured = {check.name: check for check in advise(RAG).checks}["decode_share"]
    assert (measured.window_s, measured.samples) == (1800.0, 5_000)
    assert measured.confidence == pytest.approx(1.0)
    near = {check.name: check for check in advise(replace(RAG, decode_share=Measured(0.705, 400, 600.0, 0.2))).checks}
    assert 0.6 < (near["decode_share"].confidence or 0) < 0.75


def test_what_would_change_the_verdict_is_the_nearest_value_that_does() -> None:
    found = {flip.input: flip for flip in advise(RAG).flips}
    assert found["GPUs"].value == 15
    assert found["transport"].value == "tcp"
    assert found["decode share"].value == pytest.approx(0.7, abs=0.002)
    assert {flip.verdict for flip in found.values()} == {"no"}
    for name, value in (("gpus", 15), ("transport", "tcp")):
        assert advise(replace(RAG, **{name: value})).verdict == "no"  # type: ignore[arg-type]
    assert {flip.input: flip.value for flip in advise(replace(RAG, gpus=4)).flips}["GPUs"] == 16


def asked(**more: object) -> AdviceRequest:
    given = {"input": 12_000, "output": 300, "gpus": 64, "network_gbps": 400.0, "seeds": 0}
    return AdviceRequest("llama-3.1-70b", read_config("llama-3.1-70b"), gpu="h100-sxm", **(given | more))  # type: ignore[arg-type]


def test_long_documents_on_64_gpus_with_rdma_gain_by_the_forecast_too() -> None:
    advice = advise_offline(asked())
    assert (advice.verdict, advice.mode) == ("yes", "disaggregated")
    assert advice.gain is not None
    assert advice.gain.low > 0.2
    assert {flip.input for flip in advice.flips} >= {"GPUs", "transport", "network"}
    assert {flip.input for flip in advice.flips} >= {"TTFT target", "ITL target", "GPU"}


@pytest.mark.parametrize("name", ["TTFT target", "ITL target"])
def test_the_value_that_changes_the_verdict_does_so_when_it_is_asked_about(name: str) -> None:
    flip = {each.input: each for each in advise_offline(asked()).flips}[name]
    assert isinstance(flip.value, float)
    slo = Slo(ttft_ms=flip.value) if name == "TTFT target" else Slo(itl_ms=flip.value)
    assert advise_offline(asked(slo=slo)).verdict == flip.verdict


def test_a_kind_of_gpu_that_cannot_hold_the_model_is_not_told_as_a_remedy() -> None:
    large = AdviceRequest(
        "llama-3.1-405b", read_config("llama-3.1-405b"), 16, "h200-sxm", 400.0, input=4096, output=300, seeds=0
    )
    assert "l4" not in {flip.value for flip in advise_offline(large).flips}


def test_prompts_of_210_tokens_stay_monolithic_however_long_the_answers() -> None:
    for output in (60, 300):
        advice = advise_offline(asked(input=210, output=output))
        assert (advice.verdict, advice.mode) == ("no", "monolithic")
        assert "210" in advice.sentence


def test_eight_gpus_or_tcp_name_the_failing_check() -> None:
    assert failing(advise_offline(asked(gpus=8))) == ["gpus"]
    over_tcp = advise_offline(asked(transport="tcp"))
    assert failing(over_tcp) == ["transport"]
    assert over_tcp.verdict != "yes"
    assert "Transport" in over_tcp.sentence or "TCP" in over_tcp.sentence


def test_the_command_prints_verdict_checks_and_gain_as_json() -> None:
    out = StringIO()
    options = ["--gpus", "16", "--network-gbps", "100", "--input", "4096", "--output", "300", "--seeds", "1", "--json"]
    call_command("advise", "--config", "llama-3.1-8b", "--gpu", "h100-sxm", "--transport", "rdma", *options, stdout=out)
    found = json.loads(out.getvalue())
    assert found["verdict"] in ("yes", "try_canary")
    assert [check["name"] for check in found["checks"][:5]] == [
        "decode_share",
        "kv_network",
        "prefix_hits",
        "gpus",
        "transport",
    ]
    assert {each["mode"] for each in found["forecasts"]} == {"monolithic", "disaggregated", "conditional"}
    assert found["gain"]["ratio"] is not None


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ([], "give --input and --output, or a --trace"),
        (["--input", "100", "--output", "50", "--transport", "pigeon"], "transport must be one of rdma, tcp"),
        (["--input", "100", "--output", "50", "--prefix-hit", "1.5"], "prefix-hit must be from 0 to 0.99"),
        (["--trace", "missing.csv"], "cannot read it"),
    ],
)
def test_the_command_refuses_in_one_line_with_the_remedy(options: list[str], problem: str) -> None:
    with pytest.raises(CommandError, match=problem):
        call_command("advise", "--config", "llama-3.1-8b", "--gpus", "16", "--network-gbps", "100", *options)
