"""The highest rate within the SLO."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.core.forecast import (
    Arrival,
    Criterion,
    ForecastRefused,
    Saturation,
    Settings,
    TooLoose,
    highest_rate,
    pools_of,
)
from controlplane.core.layout import parse_layout
from controlplane.core.protocol import Slo
from tests.forecast_workloads import llama, mixed, steady

LLAMA = llama()
TARGETS = Slo(ttft_ms=1500, itl_ms=60)


def saturation(layout: str, arrivals: list[Arrival], slo: Slo = TARGETS, **options: object) -> Saturation:
    parsed, chosen = parse_layout(layout, "h100-sxm"), Settings(**options)  # type: ignore[arg-type]
    criterion = Criterion(slo, tolerance=0.02, shortest_window_s=30, most_requests=1000)
    return highest_rate(pools_of(LLAMA, parsed, chosen), arrivals, chosen, parsed.mode, criterion)


def test_the_rate_that_is_found_holds_and_a_higher_one_does_not() -> None:
    found = saturation("disagg:2xTP4+2xTP4", steady(8, 100))
    criterion = Criterion(TARGETS)
    assert found.outcome is not None and criterion.missed(found.outcome) is None
    # Two engines compute 4,096 tokens in 0.26 s each: 7.7/s if they never waited for each other.
    assert 3 < found.requests_per_second < 7.7
    assert found.missed == "ttft"


def test_without_a_split_the_gaps_between_tokens_are_what_fails() -> None:
    found = saturation("agg:4xTP4", steady(8, 100))
    assert found.missed == "itl"
    assert 0 < found.requests_per_second < saturation("disagg:2xTP4+2xTP4", steady(8, 100)).requests_per_second


def test_targets_that_a_request_alone_misses_give_no_rate() -> None:
    found = saturation("agg:1xTP4", steady(8, 50), Slo(ttft_ms=100, itl_ms=60))
    assert (found.requests_per_second, found.outcome, found.missed) == (0, None, "ttft")


def test_targets_that_hold_at_any_rate_are_refused_with_the_remedy() -> None:
    with pytest.raises(TooLoose, match="give a tighter target or fewer GPUs"):
        saturation("agg:2xTP4", steady(8, 100, prompt=8, output=2), Slo(ttft_ms=1e8, itl_ms=1e8))


def test_the_rate_of_the_given_arrivals_does_not_matter() -> None:
    slow = saturation("agg:2xTP4", steady(0.5, 100))
    fast = saturation("agg:2xTP4", steady(50, 100))
    assert slow.requests_per_second == pytest.approx(fast.requests_per_second)


def test_different_hardware_per_pool() -> None:
    prompts = steady(8, 100, prompt=1000, output=800)
    h100 = saturation("disagg:2xTP4+1xTP4", prompts)
    h200 = saturation("disagg:2xTP4+1xTP4@h200-sxm", prompts)
    assert h200.requests_per_second >= h100.requests_per_second


def test_arrivals_without_a_rate_and_impossible_targets_are_refused() -> None:
    with pytest.raises(ForecastRefused, match="no rate"):
        saturation("agg:1xTP4", [Arrival(0.0, 100, 10)] * 5)
    with pytest.raises(ForecastRefused, match="no request can be served: prompt and answer do not fit"):
        saturation("agg:1xTP4", [Arrival(0.0, 10**9, 10)])
    with pytest.raises(ForecastRefused, match="must be positive"):
        Criterion(Slo(ttft_ms=0))
    with pytest.raises(ForecastRefused, match="share"):
        Criterion(TARGETS, share=1.5)
    with pytest.raises(ForecastRefused, match="tolerance"):
        Criterion(TARGETS, tolerance=0)


def test_progress_ends_at_one() -> None:
    told: list[float] = []
    parsed = parse_layout("agg:1xTP4", "h100-sxm")
    pools = pools_of(LLAMA, parsed, Settings())
    highest_rate(pools, steady(1, 20), Settings(), parsed.mode, Criterion(TARGETS, 0.99, 0.1), told.append)
    assert told[-1] == 1 and max(told) <= 1


@given(
    seed=st.integers(0, 50),
    prompt=st.integers(1000, 5000),
    output=st.integers(20, 300),
    kind=st.sampled_from([("agg:{}xTP4", 1), ("agg:{}xTP4", 2), ("disagg:{}xTP4+2xTP4", 1), ("disagg:1xTP4+{}xTP4", 1)]),
)
@settings(max_examples=6)
def test_more_gpus_never_lower_capacity(seed: int, prompt: int, output: int, kind: tuple[str, int]) -> None:
    text, engines = kind
    arrivals = mixed(4, 60, prompt, output, seed=seed)
    fewer = saturation(text.format(engines), arrivals).requests_per_second
    more = saturation(text.format(engines + 1), arrivals).requests_per_second
    assert more >= fewer * 0.98  # the search's own tolerance
