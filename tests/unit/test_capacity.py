"""The planner's closed form beside the event simulation, the predictor, and engines that change roles in virtual time."""

from __future__ import annotations

import math

import pytest

from controlplane.core.capacity import EngineSpeed, Load, given, local_cells
from controlplane.core.forecast import Outcome, Settings, pools_of, simulate_pools, summarise
from controlplane.core.forecast_control import Fleet
from controlplane.core.layout import parse_layout
from controlplane.core.predict import predict, present_rate
from controlplane.core.protocol import Slo
from controlplane.core.queueing import erlang_c
from controlplane.core.workload import Seen, Window, burst_of, window_of
from controlplane.physics.workload import Distribution, draw
from tests.planner_kit import CHAT, shape, windows

SLO = Slo(2000.0, 50.0)


@pytest.mark.parametrize(
    ("layout", "tokens", "rate", "cv"),
    [
        ("agg:16xTP4", (4096, 300), 12.0, 0.0),
        ("disagg:8xTP4+8xTP4", (4096, 300), 12.0, 0.0),
        ("disagg:5xTP4+11xTP4", (4096, 300), 12.0, 1.0),
        ("cond:8xTP4+8xTP4", (1024, 211), 12.0, 1.0),
    ],
)
def test_latencies_are_within_a_fifth_of_the_simulations(
    layout: str, tokens: tuple[int, int], rate: float, cv: float
) -> None:
    asked = parse_layout(layout, "h100-sxm")
    arrivals = draw(Distribution(*tokens, rate, 120.0, cv), 1, 131_072)
    pools = pools_of(shape(), asked, Settings())
    seen = summarise([simulate_pools(pools, arrivals, Settings(), asked.mode)], SLO)
    window = window_of([Seen(a.at_s, a.prompt_tokens, a.output_tokens) for a in arrivals], 0.0, 120.0)
    speeds = [(EngineSpeed(pool.model, window.mix), pool.engines) for pool in pools]
    load = Load(window.rate, window.mix, window.burst)
    local = local_cells(window.mix, asked.mode)
    found = given(load, speeds[-1], speeds[0] if len(speeds) > 1 else None, local, (2.0, 0.05))
    assert seen.ttft_ms is not None
    assert seen.itl_ms is not None
    assert found.ttft_p99_s * 1e3 == pytest.approx(seen.ttft_ms.p99.value, rel=0.2)
    assert found.itl_p99_s * 1e3 == pytest.approx(seen.itl_ms.p99.value, rel=0.2)
    assert found.attained == pytest.approx(seen.attained.value, abs=0.03)


def test_erlangs_c_is_that_of_the_tables() -> None:
    assert erlang_c(1, 0.7) == pytest.approx(0.7)
    assert erlang_c(2, 1.0) == pytest.approx(1 / 3)
    assert erlang_c(10, 8.0) == pytest.approx(0.4092, abs=1e-4)


def test_bursts_are_variance_over_mean_and_at_least_poisson() -> None:
    even = [second + 0.5 for second in range(60)]
    assert burst_of(even, 0.0, 60.0) == 1.0
    clumped = [second * 10 + 0.01 * n for second in range(6) for n in range(10)]
    assert burst_of(clumped, 0.0, 60.0) == pytest.approx(9.15, abs=0.1)


def test_a_known_season_is_expected_again() -> None:
    day = 86_400.0

    def rate(at: float) -> float:
        return 5.0 + 4.0 * math.sin(2 * math.pi * at / day)

    seen = tuple(Window(at, at + 300, rate(at + 300), CHAT, 1.0, 100) for at in (300.0 * n for n in range(3 * 288 + 40)))
    found = predict(seen, 3600.0)
    assert found.method == "season"
    assert found.rate == pytest.approx(rate(seen[-1].until_s + 3600.0), rel=0.1)
    assert found.low <= found.rate <= found.high


def test_without_earlier_days_a_trend_goes_on_damped_and_noise_does_not() -> None:
    rising = predict(windows(lambda at: 5 + (at - 999_000) / 600), 900.0)
    assert rising.method == "trend"
    assert present_rate(windows(lambda at: 5 + (at - 999_000) / 600)) < rising.rate < 8.5
    noisy = predict(windows(lambda at: 5.0 + (0.5 if at % 120 < 60 else -0.5)), 900.0)
    assert noisy.rate == pytest.approx(5.0, rel=0.05)
    assert predict((), 900.0).rate == 0.0
    assert predict(windows(0.0), 900.0).rate == 0.0


class _Swap:
    """Takes an engine out of the decode pool at 20 s; it joins the prefill pool once it is drained."""

    def __init__(self) -> None:
        self.next_s, self.joined_s = 20.0, math.inf

    def act(self, now: float, fleet: Fleet) -> None:
        if now == 20.0:
            fleet.leave(3)
        if fleet.drained(3):
            fleet.join(3, "prefill")
            self.joined_s, self.next_s = now, math.inf
        else:
            self.next_s = now + 0.5


def test_an_engine_changes_its_role_in_a_simulation_and_no_request_is_lost() -> None:
    arrivals = draw(Distribution(4096, 100, 8.0, 90.0, 0.3), 1, 131_072)
    pools = pools_of(shape(), parse_layout("disagg:2xTP4+2xTP4", "h100-sxm"), Settings())
    swap = _Swap()
    still = simulate_pools(pools, arrivals, Settings(), "disaggregated")
    moved = simulate_pools(pools, arrivals, Settings(), "disaggregated", None, swap)
    assert 20.0 < swap.joined_s < 40.0
    assert len(moved.served) == len(still.served) == len(arrivals)

    def late(outcome: Outcome) -> float:
        waits = [each.ttft_s for each in outcome.served if arrivals[each.number].at_s > 60]
        return sum(waits) / len(waits)

    assert late(moved) < late(still) / 2
