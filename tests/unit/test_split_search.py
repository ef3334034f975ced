"""The search over layouts: what it finds keeps the limits, what it refuses says why, and more hardware never hurts."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.core.comparison import TRTLLM, VLLM, Lengths, kv_tokens
from controlplane.core.gpus import GPUS, Gpu
from controlplane.core.layout import parse_layout
from controlplane.core.modelconfig import read_shape
from controlplane.core.perf import PhaseModel
from controlplane.core.splitsearch import REFERENCE_GRID, Grid, Limits, NoLayout, Plan, SearchResult, search
from controlplane.physics.catalog import read_config

LLAMA_70B = read_shape(read_config("llama-3.1-70b"))
LLAMA_8B = read_shape(read_config("llama-3.1-8b"))
H100, H200, L40S = GPUS["h100-sxm"], GPUS["h200-sxm"], GPUS["l40s"]
FIELD = Lengths(4096, 300)
EASY = Limits(1.0, 0.05)


def capacity(found: tuple[Plan, ...]) -> float:
    return found[0].tokens_per_second if found else 0.0


def plans(result: SearchResult) -> tuple[Plan, ...]:
    return result.aggregated + result.disaggregated


def test_long_prompts_are_split_and_short_ones_are_not() -> None:
    long = search(LLAMA_70B, 32, FIELD, EASY, H100)
    assert long.winner == "disaggregated"
    assert long.best.layout.mode == "disaggregated"
    short = search(LLAMA_70B, 32, Lengths(256, 512), EASY, H100)
    assert short.winner == "monolithic"
    assert short.ratio is not None
    assert short.ratio < 1


def test_every_layout_keeps_the_limits_the_gpus_and_the_memory() -> None:
    result = search(LLAMA_70B, 30, FIELD, EASY, H100)
    assert len(result.aggregated) == 3
    assert len(result.disaggregated) == 5
    for plan in plans(result):
        assert plan.layout.gpus <= 30
        assert plan.ttft_s <= 1.0
        assert plan.tpot_s <= 0.05
        assert parse_layout(plan.layout.text, "l4") == plan.layout
        pool, batch = plan.layout.pools[-1], plan.batches[-1]
        assert batch * FIELD.total <= kv_tokens(PhaseModel(LLAMA_70B, H100, pool.tensor_parallel), batch, VLLM)


def test_layouts_come_best_first_and_the_ratio_is_of_the_best() -> None:
    result = search(LLAMA_70B, 32, FIELD, EASY, H100)
    for found in (result.aggregated, result.disaggregated):
        rates = [plan.tokens_per_second for plan in found]
        assert rates == sorted(rates, reverse=True)
    assert result.ratio == capacity(result.disaggregated) / capacity(result.aggregated)
    assert result.prefill_share == result.disaggregated[0].prefill_share


def test_the_rate_of_a_split_is_that_of_its_slower_pool_and_no_batch_is_larger_than_needed() -> None:
    result = search(LLAMA_70B, 16, FIELD, Limits(0.4, 0.15), H100)
    plan = result.disaggregated[0]
    first, second = plan.layout.pools
    prompt = PhaseModel(LLAMA_70B, H100, first.tensor_parallel).prefill(4096).seconds
    assert plan.requests_per_second == pytest.approx(first.engines * 0.9 / (prompt * 1.1))
    batch = plan.batches[1] * 2 // 3
    token = PhaseModel(LLAMA_70B, H100, second.tensor_parallel).decode(batch, FIELD.mean_context).seconds
    smaller = second.engines * batch * 0.92 / (token * 1.08 * 299)
    assert smaller < plan.requests_per_second


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (Limits(0.001, 1), r"aggregated: TTFT is 2\d\d ms at best \(TP8, batch 1\), the limit is 1 ms"),
        (Limits(0.001, 1), r"disaggregated: prefill engines: TTFT is 3\d\d ms at best \(TP8, batch 1\), the limit is 1 ms"),
        (Limits(9, 0.005), r"TPOT is 1\d\.?\d* ms at best \(TP8, batch 1\), the limit is 5 ms"),
        (Limits(0.001, 0.005), r"TTFT is .*the limit is 1 ms and TPOT is .*the limit is 5 ms"),
    ],
)
def test_impossible_limits_are_refused_with_the_least_that_can_be_reached(limits: Limits, said: str) -> None:
    with pytest.raises(NoLayout, match=said):
        search(LLAMA_70B, 32, FIELD, limits, H100)


def test_a_model_that_does_not_fit_is_refused_with_the_missing_gigabytes() -> None:
    with pytest.raises(NoLayout, match=r"GB more than \d+% of its memory"):
        search(LLAMA_70B, 1, FIELD, EASY, H100)


def test_degrees_larger_than_a_server_are_tried_only_for_models_that_fit_no_smaller_one() -> None:
    large = search(read_shape(read_config("llama-3.1-405b")), 32, FIELD, Limits(9, 0.2), H100)
    assert {pool.tensor_parallel for plan in plans(large) for pool in plan.layout.pools} == {16}
    assert any("between servers" in guess for guess in large.guesses)
    small = search(LLAMA_70B, 32, FIELD, EASY, H100)
    assert 16 not in {pool.tensor_parallel for plan in plans(small) for pool in plan.layout.pools}


def test_heads_that_cannot_be_split_are_told_apart_from_memory() -> None:
    scout = read_shape(read_config("llama-4-scout-17b-16e-instruct"))
    with pytest.raises(NoLayout, match=r"limits: the model needs .* GB on each of 8 l4"):
        search(scout, 16, FIELD, EASY, GPUS["l4"])
    result = search(scout, 32, FIELD, Limits(9, 0.2), H100, grid=Grid(tensor_parallel=(3, 8)))
    assert {(refusal.tensor_parallel, refusal.limit) for refusal in result.refused} >= {(3, "degree")}


def test_a_reason_that_all_pools_share_is_given_once() -> None:
    with pytest.raises(NoLayout) as refused:
        search(LLAMA_70B, 1, FIELD, EASY, H100)
    assert str(refused.value).count("GB more than") == 1


def test_one_mode_alone_wins_and_the_other_says_what_it_lacks() -> None:
    only_one_pool = search(LLAMA_70B, 4, FIELD, Limits(0.6, 0.05), H100)
    assert only_one_pool.winner == "monolithic"
    assert only_one_pool.ratio is None
    assert only_one_pool.missing["disaggregated"].endswith("(TP4 and TP2) needs 6 GPUs, there are 4")
    slow_host = replace(VLLM, dispatch_layer_s=10e-3)
    only_split = search(LLAMA_70B, 16, FIELD, Limits(0.6, 0.05), H100, conventions=slow_host)
    assert only_split.winner == "disaggregated"
    assert "TTFT is" in only_split.missing["aggregated"]


def test_what_was_refused_is_counted_by_degree_and_limit() -> None:
    result = search(LLAMA_70B, 32, FIELD, EASY, H100)
    refused = {(refusal.role, refusal.tensor_parallel, refusal.limit): refusal for refusal in result.refused}
    assert "GB more than" in refused["mixed", 1, "memory"].reason
    assert refused["decode", 2, "kv"].reason.startswith("batches from ")
    assert refused["mixed", 4, "tpot"].count > 0
    assert "the least at this degree is" in refused["mixed", 4, "tpot"].reason
    assert result.evaluated["layouts"] >= len(plans(result))


def test_two_kinds_of_gpu_are_compared_by_cost() -> None:
    result = search(LLAMA_70B, 32, FIELD, EASY, H100, decode_gpu=H200)
    assert result.objective == "cost"
    assert {plan.layout.pools[0].gpu for plan in result.aggregated} == {"h100-sxm", "h200-sxm"}
    assert all(plan.layout.pools[1].gpu == "h200-sxm" for plan in result.disaggregated)
    best = result.disaggregated[0]
    assert result.ratio == result.aggregated[0].dollars_per_million_tokens / best.dollars_per_million_tokens
    by_hand = (best.layout.pools[0].gpus * 3.0 + best.layout.pools[1].gpus * 3.8) / (best.tokens_per_second * 3600) * 1e6
    same_prices = search(LLAMA_70B, 32, FIELD, EASY, H100, decode_gpu=H200, prices={"h100-sxm": 3.0, "h200-sxm": 3.8})
    assert same_prices.disaggregated[0].dollars_per_million_tokens == pytest.approx(by_hand)
    assert (result.guessed_prices, same_prices.guessed_prices) == (True, False)


def test_a_dear_kind_loses() -> None:
    cheap = search(LLAMA_70B, 32, FIELD, EASY, H100, decode_gpu=H200, prices={"h200-sxm": 0.1, "h100-sxm": 3})
    dear = search(LLAMA_70B, 32, FIELD, EASY, H100, decode_gpu=H200, prices={"h200-sxm": 99, "h100-sxm": 3})
    assert cheap.aggregated[0].layout.pools[0].gpu == "h200-sxm"
    assert dear.aggregated[0].layout.pools[0].gpu == "h100-sxm"
    assert dear.winner == "monolithic"


def test_the_document_is_json_with_stable_keys() -> None:
    document = json.loads(json.dumps(search(LLAMA_70B, 16, FIELD, EASY, H100).document(), allow_nan=False))
    assert set(document) == {
        "winner",
        "ratio",
        "objective",
        "prefill_gpu_share",
        "gpus",
        "lengths",
        "slo",
        "aggregated",
        "disaggregated",
        "missing",
        "refused",
        "evaluated",
        "conventions",
        "guesses",
        "guessed_prices",
    }
    assert set(document["disaggregated"][0]) == {
        "layout",
        "mode",
        "gpus",
        "pools",
        "chunk",
        "ttft_ms",
        "tpot_ms",
        "requests_per_second",
        "tokens_per_second",
        "tokens_per_second_per_gpu",
        "cost_per_million_tokens",
        "prefill_gpu_share",
    }
    assert document["conventions"]["split_ttft"] == 1.8
    assert document["guesses"] == []


def test_figures_of_a_kind_that_was_not_measured_say_so() -> None:
    assert search(LLAMA_8B, 8, Lengths(1024, 200), Limits(2.0, 0.1), L40S).guesses != ()


@pytest.mark.parametrize("gpus", [0, -1, 10**9])
def test_impossible_counts_are_refused(gpus: int) -> None:
    with pytest.raises(ValueError, match="GPUs must be"):
        search(LLAMA_8B, gpus, FIELD, EASY, H100)


@pytest.mark.parametrize("ttft_s", [0.0, -1.0, math.nan])
def test_limits_that_are_no_time_are_refused(ttft_s: float) -> None:
    with pytest.raises(ValueError, match="limit of TTFT"):
        Limits(ttft_s, 1.0)


@pytest.mark.parametrize("batches", [(), (0, 1), (2, 1), (1, 1)])
def test_a_grid_must_rise(batches: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="decode_batches"):
        Grid(decode_batches=batches)


@pytest.mark.parametrize("price", [0.0, -1.0, math.nan, math.inf])
def test_a_price_must_be_money(price: float) -> None:
    with pytest.raises(ValueError, match="price of h100-sxm"):
        search(LLAMA_8B, 8, FIELD, EASY, H100, prices={"h100-sxm": price})


COARSE = Grid(mixed_batches=(1, 4, 16, 48, 128), decode_batches=(1, 4, 16, 48, 128, 256))
LOOSE = Limits(20.0, 1.0)
workloads = st.builds(Lengths, st.integers(1, 9000), st.integers(2, 2000))
backends = st.sampled_from([VLLM, TRTLLM])


@settings(max_examples=25, deadline=None)
@given(
    workloads,
    backends,
    st.integers(2, 40),
    st.integers(0, 40),
    st.sampled_from([COARSE, replace(COARSE, split_sizes=(8, 16, 32))]),
)
def test_more_gpus_never_lower_capacity(lengths: Lengths, conventions: object, gpus: int, more: int, grid: Grid) -> None:
    backend = VLLM if conventions is VLLM else TRTLLM
    few = search(LLAMA_8B, gpus, lengths, LOOSE, H100, conventions=backend, grid=grid)
    many = search(LLAMA_8B, gpus + more, lengths, LOOSE, H100, conventions=backend, grid=grid)
    assert capacity(many.aggregated) >= capacity(few.aggregated) * (1 - 1e-9)
    assert capacity(many.disaggregated) >= capacity(few.disaggregated) * (1 - 1e-9)


@settings(max_examples=25, deadline=None)
@given(workloads, backends, st.floats(1, 4), st.floats(1, 4), st.floats(0.2, 20), st.floats(0.01, 1))
def test_more_bandwidth_never_slows(
    lengths: Lengths, conventions: object, dram: float, link: float, ttft_s: float, tpot_s: float
) -> None:
    backend = VLLM if conventions is VLLM else TRTLLM
    faster: Gpu = replace(H100, dram_bytes=H100.dram_bytes * dram, link_bytes=H100.link_bytes * link)
    limits = Limits(ttft_s, tpot_s)
    try:
        slow = search(LLAMA_8B, 8, lengths, limits, H100, conventions=backend, grid=COARSE)
    except NoLayout:
        return
    fast = search(LLAMA_8B, 8, lengths, limits, faster, conventions=backend, grid=COARSE)
    assert capacity(fast.aggregated) >= capacity(slow.aggregated) * (1 - 1e-9)
    assert capacity(fast.disaggregated) >= capacity(slow.disaggregated) * (1 - 1e-9)


@settings(max_examples=15, deadline=None)
@given(workloads, st.integers(4, 40), st.integers(0, 24))
def test_with_two_kinds_more_gpus_never_raise_the_cost(lengths: Lengths, gpus: int, more: int) -> None:
    few = search(LLAMA_8B, gpus, lengths, LOOSE, H100, decode_gpu=H200, grid=COARSE)
    many = search(LLAMA_8B, gpus + more, lengths, LOOSE, H100, decode_gpu=H200, grid=COARSE)
    best = few.disaggregated[0].dollars_per_million_tokens
    assert many.disaggregated[0].dollars_per_million_tokens <= best * (1 + 1e-8)


def test_the_reference_splits_only_replicas_of_its_sizes() -> None:
    free = search(LLAMA_70B, 16, FIELD, Limits(0.4, 0.15), H100)
    bound = search(LLAMA_70B, 16, FIELD, Limits(0.4, 0.15), H100, grid=REFERENCE_GRID)
    assert free.disaggregated[0].layout.gpus == 12
    assert bound.disaggregated[0].layout.gpus == 16
    assert capacity(free.disaggregated) == pytest.approx(capacity(bound.disaggregated))
