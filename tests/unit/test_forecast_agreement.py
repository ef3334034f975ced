"""The merged engines of the forecast against the scheduler itself, step by step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.core.forecast import Arrival, Forecast, Outcome, Settings, simulate, summarise
from controlplane.core.layout import parse_layout
from controlplane.core.modelconfig import read_shape
from controlplane.core.protocol import Slo
from controlplane.core.shapes import Shape
from controlplane.physics.catalog import read_config
from tests.forecast_workloads import llama, mixed, steady

LLAMA = llama()

WORKLOADS = {
    "equal requests": (steady(8, 300), {}),
    "mixed lengths": (mixed(6, 300, 6000, 600), {}),
    "more than it can serve": (mixed(30, 300, 6000, 600), {}),
    "bursts of twenty": (mixed(8, 300, 3000, 300, burst=20), {}),
    "preemption": (mixed(15, 300, 3000, 900), {"kv_tokens": 16_000}),
    "few sequences": (mixed(15, 200, 3000, 600), {"max_num_seqs": 7}),
    "long prompts in chunks": (mixed(6, 200, 30_000, 300), {"max_num_batched_tokens": 2048}),
    "prefix hits": (mixed(8, 300, 3000, 300, families=12), {}),
    "prefix hits and eviction": (mixed(10, 300, 3000, 500, families=12), {"kv_tokens": 16_000}),
    "no prefix cache": (mixed(8, 200, 3000, 300, families=12), {"prefix_caching": False}),
    "a shared prefix": (mixed(8, 200, 6000, 300), {"prefix_cached": 1000}),
    "a slow network": (mixed(8, 200, 6000, 300), {"network_gbps": 10.0}),
    "large blocks": (mixed(8, 200, 6000, 300, families=5, block_size=512), {"block_size": 512, "kv_tokens": 60_000}),
    "until a horizon": (mixed(6, 200, 6000, 600), {"horizon_s": 9.0}),
}


def both(layout: str, arrivals: list[Arrival], options: Settings, shape: Shape = LLAMA) -> tuple[Outcome, Outcome]:
    parsed = parse_layout(layout, "h100-sxm")
    return (
        simulate(shape, parsed, arrivals, options),
        simulate(shape, parsed, arrivals, replace(options, exact=True)),
    )


def figures(forecast: Forecast) -> dict[str, float]:
    found = {
        "tokens/s": forecast.tokens_per_second.value,
        "goodput": forecast.goodput.value,
        "effective GPUs": forecast.effective_gpus.value,
    }
    for name in ("ttft_ms", "itl_ms", "e2e_ms"):
        percentiles = getattr(forecast, name)
        found |= {f"{name} p50": percentiles.p50.value, f"{name} p99": percentiles.p99.value}
    return found


@pytest.mark.parametrize("layout", ["agg:3xTP4", "disagg:2xTP4+2xTP4", "cond:2xTP4+3xTP4"])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_merged_steps_give_what_single_steps_give(layout: str, workload: str) -> None:
    arrivals, options = WORKLOADS[workload]
    merged, exact = both(layout, arrivals, Settings(**options))
    slo = Slo(ttft_ms=1000, itl_ms=40)
    assert figures(summarise([merged], slo)) == pytest.approx(figures(summarise([exact], slo)), rel=0.01)
    assert [(each.number, each.ttft_s, each.e2e_s) for each in merged.served] == [
        (each.number, pytest.approx(each.ttft_s, rel=1e-6), pytest.approx(each.e2e_s, rel=1e-6)) for each in exact.served
    ]
    for fast, slow in zip(merged.pools, exact.pools, strict=True):
        assert (fast.steps, fast.preemptions, fast.cached_tokens, fast.output_tokens, fast.transfer_bytes) == (
            slow.steps,
            slow.preemptions,
            slow.cached_tokens,
            slow.output_tokens,
            slow.transfer_bytes,
        )
        assert fast.tensor_busy_s == pytest.approx(slow.tensor_busy_s, rel=1e-6)
        assert fast.dram_busy_s == pytest.approx(slow.dram_busy_s, rel=1e-6)
        assert (fast.tensor_peak, fast.dram_peak) == pytest.approx((slow.tensor_peak, slow.dram_peak), rel=1e-6)
    assert merged.gaps.count == exact.gaps.count
    assert merged.gaps.total_s == pytest.approx(exact.gaps.total_s, rel=1e-6)


@pytest.mark.parametrize("name", ["gemma-4-26b-a4b", "mimo-v2-flash", "deepseek-v3.2", "nemotron-h-56b-base-8k"])
@pytest.mark.parametrize("layout", ["agg:2xTP8", "disagg:1xTP8+1xTP8"])
def test_windows_experts_latents_and_states_are_merged_rightly_too(layout: str, name: str) -> None:
    shape = read_shape(read_config(name))
    arrivals = mixed(6, 80, 3000, 600)
    layout = layout.replace("TP8", "TP8@h200-sxm")
    merged, exact = both(layout, arrivals, Settings(), shape)
    slo = Slo(ttft_ms=1000, itl_ms=40)
    assert figures(summarise([merged], slo)) == pytest.approx(figures(summarise([exact], slo)), rel=0.01)
    assert merged.gaps.total_s == pytest.approx(exact.gaps.total_s, rel=1e-6)


@pytest.mark.parametrize("room", [1.05, 1.3, 4.0])
@pytest.mark.parametrize("output", [50, 145])
def test_rounding_does_not_decide_who_is_first_when_equal_requests_keep_step(output: int, room: float) -> None:
    arrivals = [Arrival(0.0, 1000, output)] * 60
    merged, exact = both("disagg:1xTP4+2xTP4", arrivals, Settings(kv_tokens=int((1000 + output) * room) + 16))
    ends = {each.number: each.e2e_s for each in exact.served}
    assert {each.number: each.e2e_s for each in merged.served} == pytest.approx(ends, rel=1e-9)


def test_the_workloads_reach_what_they_are_named_after() -> None:
    preempted, _ = both("agg:3xTP4", *_with("preemption"))
    evicted, _ = both("agg:3xTP4", *_with("prefix hits and eviction"))
    hits, _ = both("agg:3xTP4", *_with("prefix hits"))
    cut, _ = both("agg:3xTP4", *_with("until a horizon"))
    assert preempted.pools[0].preemptions > 20
    assert evicted.pools[0].cached_tokens > 0
    assert hits.pools[0].cached_tokens > 0.2 * hits.pools[0].prompt_tokens
    assert cut.unfinished > 0


def _with(workload: str) -> tuple[list[Arrival], Settings]:
    arrivals, options = WORKLOADS[workload]
    return arrivals, Settings(**options)


requests = st.lists(
    st.tuples(st.floats(0, 0.5), st.integers(1, 400), st.integers(1, 60), st.integers(0, 3), st.integers(0, 25)),
    min_size=1,
    max_size=40,
)


@given(
    requests=requests,
    layout=st.sampled_from(["agg:1xTP8", "agg:2xTP8", "disagg:1xTP8+1xTP8", "disagg:2xTP8+1xTP8", "cond:1xTP8+2xTP8"]),
    seqs=st.integers(1, 12),
    budget=st.integers(12, 300),
    block=st.integers(1, 16),
    room=st.integers(100, 1500),
    horizon=st.none() | st.floats(0.6, 3),
)
@settings(max_examples=100)
def test_whatever_arrives_merged_and_single_steps_agree_and_no_request_is_lost(
    requests: list[tuple[float, int, int, int, int]],
    layout: str,
    seqs: int,
    budget: int,
    block: int,
    room: int,
    horizon: float | None,
) -> None:
    arrivals, now = [], 0.0
    for gap, prompt, output, family, keys in requests:
        now += gap
        prefix = tuple(family * 1000 + index for index in range(keys))
        arrivals.append(Arrival(now, prompt, output, prefix))
    options = Settings(
        max_num_seqs=seqs, max_num_batched_tokens=budget, block_size=block, kv_tokens=max(room, block), horizon_s=horizon
    )
    merged, exact = both(layout, arrivals, options)
    for outcome in (merged, exact):
        assert outcome.arrived == sum(horizon is None or each.at_s <= horizon for each in arrivals)
        assert outcome.arrived == len(outcome.served) + sum(outcome.refused.values()) + outcome.unfinished
        assert horizon or not outcome.unfinished
    assert merged.refused == exact.refused
    assert [pool.preemptions for pool in merged.pools] == [pool.preemptions for pool in exact.pools]
    assert {each.number: pytest.approx(each.e2e_s, rel=1e-6) for each in exact.served} == {
        each.number: each.e2e_s for each in merged.served
    }
