"""The steady-state conventions by which modes are compared: each is a named factor, and does what its source says."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from controlplane.core.comparison import (
    CONVENTIONS,
    TRTLLM,
    VLLM,
    Lengths,
    aggregated,
    chunks,
    decode,
    kv_tokens,
    prefill,
)
from controlplane.core.gpus import GPUS
from controlplane.core.modelconfig import read_shape
from controlplane.core.perf import PhaseModel
from controlplane.physics.catalog import read_config

SHAPE = read_shape(read_config("llama-3.1-70b"))
MODEL = PhaseModel(SHAPE, GPUS["h100-sxm"], 4)
LENGTHS = Lengths(4096, 300)


def step(decodes: int, prompts: int = 1, lengths: Lengths = LENGTHS) -> float:
    return MODEL.step([(lengths.new, lengths.cached)] * prompts, decodes, decodes * lengths.mean_context).seconds


def test_one_request_alone_waits_for_nobody() -> None:
    alone = aggregated(MODEL, LENGTHS, 1, 4096, VLLM)
    assert alone.ttft_s == pytest.approx(step(0) + 80 * 0.8e-3)
    assert alone.tpot_s == pytest.approx(MODEL.decode(1, 4096 + 150).seconds)


def test_on_vllm_ttft_grows_by_an_eighth_with_every_doubling_of_the_batch_up_to_twice() -> None:
    own = step(31) + 80 * 0.8e-3
    assert aggregated(MODEL, LENGTHS, 32, 4096, VLLM).ttft_s == pytest.approx(own * (1 + 5 / 8))
    assert VLLM.queue(256, 1) == VLLM.queue(1024, 1) == 2


def test_on_trtllm_ttft_grows_with_the_mixed_steps_up_to_four_times() -> None:
    assert aggregated(MODEL, LENGTHS, 23, 4096, TRTLLM).ttft_s == pytest.approx(step(22) * (2 + 20 / 20))
    assert TRTLLM.queue(8, 43) == TRTLLM.queue(8, 500) == 4


def test_tpot_is_the_mean_of_mixed_and_decode_steps() -> None:
    mixed, pure = step(31), MODEL.decode(32, LENGTHS.mean_context).seconds
    assert aggregated(MODEL, LENGTHS, 32, 4096, VLLM).tpot_s == pytest.approx((32 * mixed + 268 * pure) / 300)
    drained = (29 * mixed + 268 * pure) / 297
    assert aggregated(MODEL, LENGTHS, 32, 4096, TRTLLM).tpot_s == pytest.approx(drained)


def test_with_two_prompts_per_step_there_are_half_as_many_mixed_steps() -> None:
    mixed, pure = step(30, prompts=2), MODEL.decode(32, LENGTHS.mean_context).seconds
    assert aggregated(MODEL, LENGTHS, 32, 8192, VLLM).tpot_s == pytest.approx((16 * mixed + 284 * pure) / 300)


def test_throughput_is_capped_by_littles_law_only_where_the_convention_says_so() -> None:
    served = aggregated(MODEL, LENGTHS, 32, 4096, VLLM)
    assert served.requests_per_second == pytest.approx(32 / (served.ttft_s + 299 * served.tpot_s))
    free = aggregated(MODEL, LENGTHS, 32, 4096, replace(VLLM, littles_law=False))
    assert free.requests_per_second == pytest.approx(32 / (32 * step(31) + 268 * MODEL.decode(32, 4246).seconds))
    assert free.requests_per_second > served.requests_per_second


def test_where_prefill_takes_every_step_fewer_requests_decode_on_trtllm() -> None:
    """600 prompts, one per step, for answers of 300 steps: half of the batch is waiting for its prompt."""
    lengths = Lengths(512, 300)
    all_decode = MODEL.step([(512, 0)], 599, 599 * lengths.mean_context).seconds
    half_decode = MODEL.step([(512, 0)], 300, 300 * lengths.mean_context).seconds
    assert aggregated(MODEL, lengths, 600, 512, VLLM).tpot_s == pytest.approx(all_decode)
    assert aggregated(MODEL, lengths, 600, 512, TRTLLM).tpot_s == pytest.approx(half_decode)


def test_pools_are_slower_than_their_kernels_by_named_factors() -> None:
    prompt, token = MODEL.prefill(4096).seconds, MODEL.decode(64, LENGTHS.mean_context).seconds
    assert prefill(MODEL, LENGTHS, 1, VLLM) == pytest.approx((prompt * 1.1 * 1.8, 1 / (prompt * 1.1) * 0.9))
    assert decode(MODEL, LENGTHS, 64, VLLM) == pytest.approx((token * 1.08, 64 / (token * 1.08 * 299) * 0.92))
    bare = replace(VLLM, prefill_latency=1, decode_latency=1, prefill_rate=1, decode_rate=1, split_ttft=1)
    assert prefill(MODEL, LENGTHS, 1, bare) == pytest.approx((prompt, 1 / prompt))
    assert decode(MODEL, LENGTHS, 64, bare) == pytest.approx((token, 64 / (token * 299)))


def test_a_cached_prefix_spares_its_linear_work_but_is_attended_to() -> None:
    cached = prefill(MODEL, Lengths(4096, 300, cached=3072), 1, VLLM).seconds
    assert cached < prefill(MODEL, LENGTHS, 1, VLLM).seconds / 2
    assert cached > prefill(MODEL, Lengths(1024, 300), 1, VLLM).seconds


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (4096, (4096, 8192)),
        (3000, (3000, 6000)),
        (2048, (2048, 4096, 6144, 8192)),
        (10_000, (10_000, 20_000)),
        (256, (256, *range(512, 8193, 512))),
    ],
)
def test_chunks_are_whole_prompts_on_the_sources_grid(prompt: int, expected: tuple[int, ...]) -> None:
    assert chunks(Lengths(prompt, 2)) == expected


def test_kv_memory_is_a_share_of_all_memory_or_of_what_the_weights_leave() -> None:
    assert kv_tokens(MODEL, 4096, VLLM) == MODEL.kv_capacity_tokens(0.92 * 0.98, 4096)
    free = MODEL.kv_capacity_tokens(1.0, 4096)
    assert kv_tokens(MODEL, 4096, TRTLLM) == pytest.approx(free * 0.9 * 0.985 * 0.98, abs=1)


@pytest.mark.parametrize("conventions", CONVENTIONS.values(), ids=lambda conventions: conventions.backend)
def test_every_number_is_named_for_display(conventions: object) -> None:
    factors = VLLM.factors if conventions is VLLM else TRTLLM.factors
    assert factors["split_ttft"] == 1.8
    assert "backend" not in factors
    assert len(factors) == 14


@pytest.mark.parametrize(
    "change", [{"split_ttft": 0}, {"decode_rate": math.nan}, {"memory_share": 1.01}, {"queue_most": -1}]
)
def test_impossible_factors_are_refused_by_name(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        replace(VLLM, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("prompt", "output", "cached", "problem"),
    [
        (0, 10, 0, "a prompt"),
        (10, 1, 0, "an answer"),
        (10, 10, 10, "cached"),
        (10, 10, -1, "cached"),
        (10**9, 2, 0, "a prompt"),
    ],
)
def test_impossible_lengths_are_refused(prompt: int, output: int, cached: int, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Lengths(prompt, output, cached)
