"""Traffic for a forecast: checked at the door, and shifted to any rate without changing the requests."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controlplane.core.forecast import Arrival, ForecastRefused
from controlplane.physics.traces import Trace, read_trace
from controlplane.physics.traffic import Drawn, Recorded
from controlplane.physics.workload import Distribution

STEADY = Distribution(prompt_tokens=1000, output_tokens=200, rate=8.0, seconds=600.0)
TRACE = Path(__file__).parents[1] / "data" / "traces" / "mooncake_conversation.jsonl"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"prompt_tokens": 0}, "input must be a whole number from 1 to 2,000,000, got 0"),
        ({"prompt_tokens": -5}, "input must be"),
        ({"output_tokens": 0}, "output must be"),
        ({"output_tokens": 10**12}, "output must be"),
        ({"rate": 0.0}, "rate must be above 0 and at most 100,000 requests/s, got 0.0"),
        ({"rate": -1.0}, "rate must be above 0"),
        ({"rate": math.nan}, "rate must be above 0 and at most 100,000 requests/s, got nan"),
        ({"rate": math.inf}, "rate must be above 0"),
        ({"seconds": math.nan}, "seconds must be above 0"),
        ({"seconds": 1e9}, "seconds must be above 0 and at most 86,400 s"),
        ({"length_cv": -0.1}, "length-cv must be from 0 to 10"),
        ({"length_cv": math.nan}, "length-cv must be from 0 to 10"),
        ({"arrival_cv": 0.0}, "cv must be above 0"),
        ({"arrival": "weekly"}, "arrival must be one of poisson, constant, gamma, got 'weekly'"),
        ({"rate": 1000.0, "seconds": 600.0}, "about 600,000 requests, more than the 100,000"),
    ],
)
def test_traffic_that_cannot_be_is_refused_by_name(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ForecastRefused) as refused:
        Drawn(replace(STEADY, **change))
    assert problem in str(refused.value)


def test_a_record_is_the_same_for_every_seed_and_no_request_of_it_is_cut() -> None:
    recorded = Recorded("mooncake", read_trace(TRACE))
    assert recorded.rate == pytest.approx(150 / 54)
    assert recorded.arrivals(7, 100) == recorded.arrivals(8, 100) == recorded.trace.arrivals


def test_a_pattern_to_be_repeated_is_long_enough_for_its_lengths() -> None:
    short = Drawn(replace(STEADY, seconds=1.0, length_cv=1.0))
    assert len(short.arrivals(1, 4000)) < 30
    assert len(short.pattern(1, 4000)) > 3500
    assert short.pattern(1, 4000)[:10] == short.arrivals(1, 4000)[:10]


def test_requests_at_one_instant_have_a_rate_too() -> None:
    burst = Recorded("burst", Trace("twinpool", (Arrival(0.0, 10, 10),) * 5, 0))
    assert burst.rate == 5.0


def test_only_traffic_that_differs_between_seeds_is_random() -> None:
    assert Drawn(STEADY).random
    assert Drawn(replace(STEADY, arrival="constant", length_cv=0.5)).random
    assert not Drawn(replace(STEADY, arrival="constant")).random
    assert not Recorded("mooncake", read_trace(TRACE)).random
