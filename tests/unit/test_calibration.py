"""A calibration finds an engine's constants in its metrics alone: here of simulated engines, whose constants are known."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from controlplane.core.calibration import (
    Calibration,
    CalibrationRefused,
    Constants,
    calibrated,
    calibration_document,
    read_calibration,
)
from controlplane.core.forecast import Arrival
from controlplane.core.gpus import gpu
from controlplane.core.modelconfig import read_shape
from controlplane.core.perf import PhaseModel
from controlplane.physics.calibration import CannotCalibrate, calibrate, errors
from controlplane.physics.enginemetrics import BadMetrics, EnginePage, read_engine_page, windows
from tests.simulated_engines import LLAMA_8B, spec
from tests.virtual_engines import VirtualFleet
from workers.engines.simulated.settings import settings_of

SHAPE = read_shape(LLAMA_8B)
HIDDEN = Constants(linear=0.5, attention=0.3, kv=0.4, step_s=2e-3, sequence_s=1e-4)


def load(seed: int, rate: float, seconds: float, prompt: tuple[int, int], answer: tuple[int, int]) -> list[Arrival]:
    chance, at_s, arrivals = random.Random(seed), 0.0, []
    while (at_s := at_s + chance.expovariate(rate)) < seconds:
        arrivals.append(Arrival(at_s, chance.randint(*prompt), chance.randint(*answer)))
    return arrivals


def scraped(arrivals: list[Arrival]) -> list[EnginePage]:
    """The metrics pages of an engine with the hidden constants, every second while it serves."""
    settings = settings_of(spec(args={"speed": 1.0, "max_model_len": 16384}), 0, "h", 1, 2)
    fleet = VirtualFleet(replace(settings, perf=PhaseModel(SHAPE, calibrated(gpu("h100-sxm"), HIDDEN), 1)))
    pages: list[EnginePage] = []

    def scrape() -> None:
        pages.append(read_engine_page(fleet.engines[0].metrics_page(), fleet.clock.time()))

    for second in range(int(arrivals[-1].at_s)):
        fleet.clock.call_at(second, scrape)
    fleet.serve(arrivals)
    return pages


@pytest.fixture(scope="module")
def pages() -> list[EnginePage]:
    return scraped(load(1, 2.0, 60.0, (100, 8000), (5, 200)))


@pytest.fixture(scope="module")
def found(pages: list[EnginePage]) -> Calibration:
    return calibrate([pages], SHAPE, "h100-sxm", 1)


def test_the_constants_come_out_of_the_metrics(found: Calibration) -> None:
    assert found.constants.linear == pytest.approx(HIDDEN.linear, rel=0.1)
    assert found.constants.attention == pytest.approx(HIDDEN.attention, rel=0.5)
    assert found.constants.step_s == pytest.approx(HIDDEN.step_s, rel=0.25)
    assert (found.model, found.gpu, found.block_size) == ("llama", "h100-sxm", 16)
    assert found.errors["itl"].median < 0.1 and found.errors["prefill"].median < 0.05


def test_many_decodes_tell_what_each_costs() -> None:
    found = calibrate([scraped(load(2, 3.0, 40.0, (500, 1500), (50, 400)))], SHAPE, "h100-sxm", 1)
    assert found.constants.kv == pytest.approx(HIDDEN.kv, rel=0.4)
    assert found.constants.sequence_s == pytest.approx(HIDDEN.sequence_s, rel=0.4)


def test_what_was_fitted_on_one_load_tells_another(found: Calibration) -> None:
    other = windows(scraped(load(2, 3.0, 40.0, (500, 1500), (50, 400))))
    missed = errors(found.phase_model(SHAPE), other)
    assert missed["itl"].median < 0.05 and missed["prefill"].median < 0.05


def test_what_a_load_does_not_tell_is_named_and_stays_near_the_table() -> None:
    found = calibrate([scraped(load(3, 0.5, 60.0, (20, 30), (100, 100)))], SHAPE, "h100-sxm", 1)
    assert "attention" in found.uncertain and "kv" in found.uncertain
    assert "step_s" not in found.uncertain


def test_a_calibration_is_the_same_after_it_was_written_and_read(found: Calibration) -> None:
    document = calibration_document(found)
    assert read_calibration(document) == found
    assert set(document["constants"]) == {"linear", "attention", "kv", "step_s", "sequence_s"}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"version": 2}, "version 2 is not known"),
        ({"gpu": "abacus"}, "'abacus' is not known"),
        ({"tensor_parallel": 0}, "tensor_parallel must be from 1 to 1024"),
        ({"constants": {"linear": 0, "attention": 1, "kv": 1, "step_s": 0, "sequence_s": 0}}, "linear must be from 1e-07"),
        ({"constants": {"linear": 1, "attention": 1, "kv": 1, "step_s": float("nan"), "sequence_s": 0}}, "step_s"),
        ({"constants": {"linear": 1, "attention": 1e-320, "kv": 1, "step_s": 0, "sequence_s": 0}}, "attention must be from"),
        ({"constants": {"linear": 1, "attention": 1, "kv": 1, "step_s": 0, "sequence_s": 1e308}}, "sequence_s must be from"),
        ({"errors": {"itl": {"median": -1.0, "p90": 1.0, "windows": 1}}}, "median and p90 must be 0 or more"),
        ({"model": "m" * 600}, "at most 512 characters"),
        ({"tensor_parallel": 10**30}, "tensor_parallel must be from"),
        ({"constants": None}, "constants"),
        ({"kv_tokens": 0}, "kv_tokens must be from 1"),
        ({"request_s": -1.0}, "request_s must be from 0"),
    ],
)
def test_a_document_that_cannot_be_is_refused_by_field(found: Calibration, change: dict[str, Any], problem: str) -> None:
    with pytest.raises(CalibrationRefused, match=problem):
        read_calibration(calibration_document(found) | change)


def test_pages_of_an_idle_engine_are_refused(pages: list[EnginePage]) -> None:
    with pytest.raises(CannotCalibrate, match="scrape while the engine serves"):
        calibrate([[pages[3], pages[3]]], SHAPE, "h100-sxm", 1)


def test_pages_in_the_wrong_order_are_refused(pages: list[EnginePage]) -> None:
    with pytest.raises(BadMetrics, match="went back between two pages"):
        calibrate([[pages[9], pages[3]]], SHAPE, "h100-sxm", 1)


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ("", "has no vllm:iteration_tokens_total"),
        ("vllm:num_requests_running{", "is no Prometheus sample"),
        ("vllm:num_requests_running 1.0.0", "has no number"),
        ("vllm:num_requests_running -1", "cannot be"),
        ("vllm:num_requests_running +Inf", "cannot be"),
        ("vllm:num_requests_running 1e300", "cannot be"),
        ('vllm:iteration_tokens_total_bucket{le="many"} 1', "has no bound"),
    ],
)
def test_a_page_that_is_no_engines_is_refused(page: str, problem: str) -> None:
    with pytest.raises(BadMetrics, match=problem):
        read_engine_page(page)


def test_a_cache_of_absurd_size_is_not_known() -> None:
    settings = settings_of(spec(), 0, "h", 1, 2)
    page = VirtualFleet(settings).engines[0].metrics_page().replace('num_gpu_blocks="', 'num_gpu_blocks="' + "9" * 5000)
    assert read_engine_page(page).kv_tokens is None


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("vllm:time_to_first_token_seconds_count", 1e14, "prompts in a step"),
        ("vllm:prompt_tokens_by_source_total/local_compute", 1e14, "prompt tokens computed"),
        ("vllm:inter_token_latency_seconds_sum", 1e14, "sequences that decode"),
        ("vllm:request_prompt_tokens_sum", 1e14, "tokens of a prompt"),
        ("vllm:request_generation_tokens_sum", 1e14, "tokens of an answer"),
        ("vllm:kv_cache_usage_perc", 1e14, "tokens of a sequence"),
    ],
)
def test_figures_that_no_engine_can_have_had_are_refused(
    pages: list[EnginePage], name: str, value: float, problem: str
) -> None:
    assert name in pages[9].figures
    odd = replace(pages[9], figures={**pages[9].figures, name: value})
    with pytest.raises(BadMetrics, match=f"do not fit together: .* {problem}"):
        calibrate([[pages[3], odd]], SHAPE, "h100-sxm", 1)
