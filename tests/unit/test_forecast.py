"""What the forecast says of splits: stages, interference, prefixes, activity, refusals."""

from __future__ import annotations

import math

import pytest

from controlplane.core.forecast import (
    Arrival,
    ForecastRefused,
    Outcome,
    Pool,
    Settings,
    pools_of,
    simulate,
    simulate_pools,
    summarise,
)
from controlplane.core.gpus import UnknownGpu, gpu
from controlplane.core.kvsize import kv_bytes_of_shape
from controlplane.core.layout import Layout, PoolLayout, parse_layout
from controlplane.core.perf import DoesNotFit, PhaseModel
from controlplane.core.protocol import Conditional, Slo
from tests.forecast_workloads import llama, mixed, steady

LLAMA = llama()
SLO = Slo(ttft_ms=1000, itl_ms=50)


def run(layout: str, arrivals: list[Arrival], **options: object) -> Outcome:
    return simulate(LLAMA, parse_layout(layout, "h100-sxm"), arrivals, Settings(**options))  # type: ignore[arg-type]


# --- one request ---------------------------------------------------------------------------------------------------------


def test_a_request_alone_takes_its_prefill_and_its_decode_steps() -> None:
    model = PhaseModel(LLAMA, gpu("h100-sxm"), 4)
    [served] = run("agg:1xTP4", [Arrival(2.0, 4096, 300)]).served
    decode_s = sum(model.step((), 1, 4096 + token).seconds for token in range(1, 300))
    assert served.path == "whole"
    assert served.ttft_s == pytest.approx(model.prefill(4096).seconds)
    assert served.e2e_s == pytest.approx(served.ttft_s + decode_s)
    assert served.queue_s == 0


def test_a_split_request_moves_its_kv_and_computes_its_first_token_again() -> None:
    model = PhaseModel(LLAMA, gpu("h100-sxm"), 4)
    [served] = run("disagg:1xTP4+1xTP4", [Arrival(0.0, 4096, 300)], network_gbps=100).served
    assert served.path == "split"
    assert served.prefill_s == pytest.approx(model.prefill(4096).seconds)
    assert served.transfer_s == pytest.approx(0.107374, abs=1e-6)  # 4,096 x 327,680 bytes at 100 Gb/s
    assert served.first_step_s == pytest.approx(model.step((), 1, 4096).seconds)
    assert served.decode_queue_s == 0
    [faster] = run("disagg:1xTP4+1xTP4", [Arrival(0.0, 4096, 300)], network_gbps=400).served
    assert faster.transfer_s == pytest.approx(0.026844, abs=1e-6)


@pytest.mark.parametrize("layout", ["agg:3xTP4", "disagg:2xTP4+2xTP4", "cond:2xTP4+2xTP4"])
def test_the_stages_of_every_request_add_up(layout: str) -> None:
    outcome = run(layout, mixed(12, 200, 6000, 400), network_gbps=50)
    for one in outcome.served:
        stages = one.queue_s, one.prefill_s, one.transfer_s, one.decode_queue_s, one.first_step_s
        assert all(stage >= 0 for stage in stages)
        assert sum(stages) == pytest.approx(one.ttft_s)
        assert one.e2e_s >= one.ttft_s
        assert (one.path == "split") == (one.transfer_s > 0)


def test_two_pulls_share_the_link_into_their_engine() -> None:
    arrivals = [Arrival(0.0, 4096, 100), Arrival(0.0, 4096, 100)]
    outcome = run("disagg:2xTP4+1xTP4", arrivals, network_gbps=100)
    assert [one.transfer_s for one in outcome.served] == pytest.approx([0.214748] * 2, abs=1e-6)


# --- interference, queue, capacity ---------------------------------------------------------------------------------------


def test_prefills_delay_decodes_of_the_same_batch_and_of_no_other() -> None:
    arrivals = steady(8, 400)
    whole = summarise([run("agg:8xTP4", arrivals)], SLO)
    split = summarise([run("disagg:4xTP4+4xTP4", arrivals)], SLO)
    assert whole.itl_ms is not None and split.itl_ms is not None
    prefill_ms = PhaseModel(LLAMA, gpu("h100-sxm"), 4).prefill(4096).seconds * 1e3
    assert whole.itl_ms.p99.value > prefill_ms  # a decode waits for a whole prompt
    assert split.itl_ms.p99.value < 0.1 * prefill_ms


def test_a_smaller_token_budget_shortens_the_stalls() -> None:
    arrivals = steady(8, 200)
    stalls = [summarise([run("agg:8xTP4", arrivals, max_num_batched_tokens=budget)], SLO).itl_ms for budget in (8192, 1024)]
    assert stalls[0] and stalls[1] and stalls[1].p99.value < 0.5 * stalls[0].p99.value


def test_requests_queue_when_no_more_sequences_are_taken() -> None:
    few = run("agg:1xTP4", [Arrival(0.0, 100, 200)] * 4, max_num_seqs=2)
    assert [one.queue_s > 0 for one in few.served] == [False, False, True, True]


def test_full_kv_makes_requests_wait_or_start_again() -> None:
    arrivals = mixed(15, 200, 3000, 900)
    roomy, tight = run("agg:2xTP4", arrivals), run("agg:2xTP4", arrivals, kv_tokens=16_000)
    assert roomy.pools[0].preemptions == 0
    assert tight.pools[0].preemptions == sum(one.preemptions for one in tight.served) > 0
    assert tight.output_tokens == roomy.output_tokens
    assert tight.span_s > roomy.span_s


# --- prefixes ------------------------------------------------------------------------------------------------------------


def test_a_known_prefix_is_not_computed_again() -> None:
    blocks = tuple(range(256))
    outcome = run("agg:1xTP4", [Arrival(0.0, 4096, 10, blocks), Arrival(5.0, 4096, 10, blocks), Arrival(10.0, 4096, 10)])
    first, again, other = outcome.served
    assert (first.cached_tokens, again.cached_tokens, other.cached_tokens) == (0, 4080, 0)  # the last block is computed
    assert again.ttft_s < 0.1 * first.ttft_s == pytest.approx(0.1 * other.ttft_s)


def test_requests_of_one_prefix_go_where_it_is() -> None:
    arrivals = mixed(8, 300, 3000, 100, families=6)
    outcome = run("agg:4xTP4", arrivals)
    alone = run("agg:1xTP4", arrivals)
    assert outcome.pools[0].cached_tokens > 0.8 * alone.pools[0].cached_tokens


def test_a_decode_engine_pulls_only_what_it_does_not_hold() -> None:
    blocks = tuple(range(256))
    arrivals = [Arrival(0.0, 4096, 10, blocks), Arrival(5.0, 4096, 10, blocks)]
    outcome = run("disagg:1xTP4+1xTP4", arrivals)
    token = kv_bytes_of_shape(LLAMA)
    assert outcome.pools[1].transfer_bytes == 4096 * token + 16 * token


def test_a_shared_prefix_leaves_linear_work_but_not_attention() -> None:
    model = PhaseModel(LLAMA, gpu("h100-sxm"), 4)
    [served] = run("agg:1xTP4", [Arrival(0.0, 4096, 10)], prefix_cached=1000).served
    assert served.cached_tokens == 1000
    assert served.ttft_s == pytest.approx(model.prefill(3096, past=1000).seconds)
    assert served.e2e_s - served.ttft_s == pytest.approx(sum(model.step((), 1, 4096 + k).seconds for k in range(1, 10)))


def test_conditional_mode_splits_long_uncached_prompts_when_they_would_delay_answers() -> None:
    blocks = tuple(range(256))
    arrivals = [
        Arrival(0.0, 200, 3000),  # short; its answer takes longer than all of this
        Arrival(5.0, 4096, 10, blocks),
        Arrival(10.0, 4096, 10, blocks),  # the decode engine holds it by now
        Arrival(15.0, 4096, 10),
    ]
    outcome = run("cond:1xTP4+1xTP4", arrivals, conditional=Conditional(512, 0.3))
    paths = {one.number: one.path for one in outcome.served}
    assert [paths[number] for number in range(4)] == ["whole", "split", "whole", "split"]
    idle = run("cond:1xTP4+1xTP4", arrivals[1:], conditional=Conditional(512, 0.3))
    assert [one.path for one in idle.served] == ["whole"] * 3  # nobody is delayed, and a transfer is saved


# --- summary -------------------------------------------------------------------------------------------------------------


def test_activity_is_high_in_prefill_and_low_in_decode() -> None:
    forecast = summarise([run("disagg:2xTP4+2xTP4", steady(6, 200))], SLO)
    prefill, decode = forecast.pools
    assert 0.85 < prefill.tensor_peak.value <= 1
    assert 0.55 < prefill.tensor_in_steps.value < 0.8
    assert decode.tensor_in_steps.value < 0.3 < decode.dram_in_steps.value
    assert prefill.tensor.value < prefill.tensor_in_steps.value
    for pool in forecast.pools:
        assert pool.busy_share.value >= max(pool.tensor.value, pool.dram.value) - 1e-9
        assert pool.effective_gpus.value == pytest.approx(pool.busy_share.value * pool.gpus)
    assert forecast.effective_gpus.value == pytest.approx(sum(pool.effective_gpus.value for pool in forecast.pools))
    assert forecast.transfer_share.value > 0


def test_cost_follows_prices_and_tokens() -> None:
    outcome = run("disagg:1xTP4@h100-sxm+1xTP2@h200-sxm", steady(1, 50))
    forecast = summarise([outcome], SLO, {"h100-sxm": 2.0, "h200-sxm": 5.0})
    assert forecast.cost_per_hour == 4 * 2.0 + 2 * 5.0
    assert forecast.cost_per_million_tokens is not None
    assert forecast.cost_per_million_tokens.value == pytest.approx(18.0 / 3600 / forecast.tokens_per_second.value * 1e6)
    listed = summarise([outcome], SLO)
    assert listed.cost_per_hour == 4 * gpu("h100-sxm").price_per_hour + 2 * gpu("h200-sxm").price_per_hour


def test_goodput_counts_requests_within_both_targets() -> None:
    outcome = run("agg:2xTP4", steady(4, 100))
    everything = summarise([outcome], Slo(1e6, 1e6))
    assert everything.attained.value == 1
    assert everything.goodput.value == pytest.approx(everything.requests_per_second.value)
    slow_tokens = summarise([outcome], Slo(1e6, 1.0))
    assert (slow_tokens.attained.value, slow_tokens.goodput.value) == (0, 0)


def test_several_seeds_give_an_interval() -> None:
    outcomes = [run("agg:2xTP4", steady(4, 100, seed=seed)) for seed in range(4)]
    forecast = summarise(outcomes, SLO)
    assert forecast.seeds == 4 and forecast.arrived == 400
    assert forecast.ttft_ms is not None
    p99 = forecast.ttft_ms.p99
    singles = [summarise([one], SLO) for one in outcomes]
    values = [one.ttft_ms.p99.value for one in singles if one.ttft_ms]
    assert p99.value == pytest.approx(sum(values) / 4)
    assert p99.low is not None and p99.high is not None and p99.low < p99.value < p99.high
    assert singles[0].ttft_ms is not None and singles[0].ttft_ms.p99.low is None


def test_a_guess_is_marked() -> None:
    forecast = summarise([run("disagg:1xTP4+1xTP4@h200-sxm", steady(1, 5))], SLO)
    assert [pool.basis for pool in forecast.pools] == ["calibrated", "guess"]
    assert "h200-sxm" in forecast.pools[1].guesses[0]


# --- horizon, progress ---------------------------------------------------------------------------------------------------


def test_what_is_open_at_the_horizon_is_counted() -> None:
    arrivals = steady(8, 200)
    outcome = run("agg:1xTP4", arrivals, horizon_s=10)
    came = sum(each.at_s <= 10 for each in arrivals)
    assert outcome.arrived == came == len(outcome.served) + outcome.unfinished
    assert outcome.unfinished > 0
    assert outcome.span_s == 10 - arrivals[0].at_s


def test_progress_is_told_up_to_the_end() -> None:
    told: list[float] = []
    simulate(LLAMA, parse_layout("agg:2xTP4", "h100-sxm"), steady(4, 250), Settings(), told.append)
    assert told == sorted(told) and told[-1] == 1
    assert 80 <= len(told) <= 101


def test_whatever_progress_raises_ends_the_simulation() -> None:
    def cancel(share: float) -> None:
        if share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(LLAMA, parse_layout("agg:2xTP4", "h100-sxm"), steady(4, 100), Settings(), cancel)


# --- what cannot be ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arrivals", "message"),
    [
        ([], "no arrivals"),
        ([Arrival(math.nan, 10, 10)], "arrival 1: its time nan"),
        ([Arrival(math.inf, 10, 10)], "arrival 1: its time inf"),
        ([Arrival(-1.0, 10, 10)], "arrival 1: its time -1.0 s must be 0 or more"),
        ([Arrival(2.0, 10, 10), Arrival(1.0, 10, 10)], "arrival 2: its time 1.0 s comes before"),
        ([Arrival(0.0, 0, 10)], "arrival 1: prompt and answer need a whole number"),
        ([Arrival(0.0, 10, -3)], "arrival 1: prompt and answer need a whole number"),
        ([Arrival(0.0, math.nan, 10)], "arrival 1: prompt and answer"),  # type: ignore[arg-type]
    ],
)
def test_bad_arrivals_are_named(arrivals: list[Arrival], message: str) -> None:
    with pytest.raises(ForecastRefused, match=message):
        run("agg:1xTP4", arrivals)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs must be a whole number from 1"),
        ({"max_num_batched_tokens": 100}, "raise the first or lower the second"),
        ({"block_size": -1}, "block_size must be a whole number from 1"),
        ({"network_gbps": math.nan}, "network_gbps must be a positive number"),
        ({"network_gbps": 0}, "network_gbps must be a positive number"),
        ({"horizon_s": -1}, "horizon_s must be a positive number"),
        ({"prefix_cached": -1}, "prefix_cached must be a whole number from 0"),
        ({"memory_utilization": 1.5}, "memory_utilization"),
        ({"kv_tokens": 1}, "kv_tokens must be a whole number from 2"),
        ({"kv_tokens": 10**12}, "to 100,000,000, got"),
        ({"max_num_seqs": math.nan}, "max_num_seqs must be a whole number"),
        ({"max_model_len": 8.5}, "max_model_len must be a whole number"),
        ({"prefix_cached": 100, "kv_tokens": 100}, "leaves none beside 100 cached ones"),
    ],
)
def test_bad_settings_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ForecastRefused, match=message):
        run("agg:1xTP4", [Arrival(0.0, 10, 10)], **options)


def test_a_model_that_does_not_fit_says_by_how_much() -> None:
    with pytest.raises(DoesNotFit, match="GB more than 90% of its memory"):
        run("agg:4xTP1", steady(1, 5))
    with pytest.raises(DoesNotFit, match="cannot be split over 3 GPUs"):
        run("agg:4xTP3", steady(1, 5))
    with pytest.raises(UnknownGpu, match="not known"):
        simulate(LLAMA, Layout("monolithic", (PoolLayout("mixed", 1, 4, "abacus"),)), steady(1, 5), Settings())


@pytest.mark.parametrize("exact", [False, True])
def test_requests_that_fit_no_engine_are_refused_with_the_reason(exact: bool) -> None:
    arrivals = [Arrival(0.0, 100, 100), Arrival(0.0, 3000, 100), Arrival(0.0, 900, 2000), Arrival(0.0, 10**12, 1)]
    whole = run("agg:1xTP4", arrivals, kv_tokens=2000, exact=exact)
    assert [one.number for one in whole.served] == [0]
    assert whole.refused == {"prompt and answer do not fit the KV cache of any mixed engine": 3}
    limited = run("disagg:1xTP4+1xTP4", arrivals, max_model_len=2950, exact=exact)
    assert limited.refused == {"longer than max_model_len (2950 tokens)": 2}
    assert summarise([limited], SLO).refused == limited.refused


def test_a_prompt_may_fit_only_some_engines() -> None:
    small, large = (pools_of(LLAMA, parse_layout("agg:1xTP4", kind), Settings())[0] for kind in ("h100-sxm", "h200-sxm"))
    tokens = small.model.kv_capacity_tokens(0.9, 8192) + 1000
    outcome = simulate_pools([small, large], [Arrival(0.0, tokens, 10)] * 3, Settings(), "monolithic")
    assert [pool.prompt_tokens for pool in outcome.pools] == [0, 3 * tokens]


def test_pools_must_be_those_of_the_mode() -> None:
    [mixed_pool] = pools_of(LLAMA, parse_layout("agg:1xTP4", "h100-sxm"), Settings())
    with pytest.raises(ForecastRefused, match="needs pools of the roles prefill and decode"):
        simulate_pools([mixed_pool], steady(1, 5), Settings(), "disaggregated")
    with pytest.raises(ForecastRefused, match="at least one engine"):
        simulate_pools([Pool("mixed", 0, mixed_pool.model)], steady(1, 5), Settings(), "monolithic")
    with pytest.raises(ForecastRefused, match="exclude each other"):
        simulate_pools([mixed_pool], [Arrival(0, 100, 1, (1, 2))], Settings(prefix_cached=10), "monolithic")


def test_nothing_to_sum_up_and_bad_targets_are_refused() -> None:
    outcome = run("agg:1xTP4", [Arrival(0.0, 10, 10)])
    with pytest.raises(ForecastRefused, match="no simulation"):
        summarise([], SLO)
    with pytest.raises(ForecastRefused, match="must be positive"):
        summarise([outcome], Slo(ttft_ms=math.nan))
    with pytest.raises(ForecastRefused, match="price of h100-sxm"):
        summarise([outcome], SLO, {"h100-sxm": -1})
    with pytest.raises(ForecastRefused, match="different layouts"):
        summarise([outcome, run("agg:2xTP4", [Arrival(0.0, 10, 10)])], SLO)


def test_a_forecast_of_refused_requests_alone_has_no_percentiles() -> None:
    forecast = summarise([run("agg:1xTP4", [Arrival(0.0, 10**9, 10)])], SLO)
    assert (forecast.served, forecast.ttft_ms, forecast.itl_ms, forecast.cost_per_million_tokens) == (0, None, None, None)
