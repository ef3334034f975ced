"""Traffic that comes and goes within minutes: the closed form beside the event simulation, and what always holds."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from controlplane.core.backlog import Backlog, Traffic, minute_of
from controlplane.core.capacity import EngineSpeed, Load, local_cells, met
from controlplane.core.forecast import Arrival, Pool, Settings, simulate_pools
from controlplane.core.gpus import gpu
from controlplane.core.perf import PhaseModel
from controlplane.core.protocol import Mode
from controlplane.core.workload import Cell, Mix, Seen, Window, merged_mix, window_of
from tests.planner_kit import shape

ENGINE = PhaseModel(shape(), gpu("l40s"), 8)
TARGETS = 6.0, 0.034
MINUTES, ENGINES = 15, 6


def uneven(seed: int) -> tuple[Arrival, ...]:
    """Minutes of long prompts, of which every fifth has more than any split can take, and answers all along."""
    dice, found = random.Random(seed), []
    for minute in range(MINUTES):
        for prompt, output, rate in ((2000, 30, 7.0 if minute % 5 == 1 else 1.0), (1000, 200, 2.0)):
            at_s = 60.0 * minute
            while (at_s := at_s + dice.expovariate(rate)) < 60.0 * minute + 60.0:
                found.append(Arrival(at_s, max(1, round(prompt * dice.lognormvariate(0, 0.4))), output))
    found.sort()
    return tuple(each._replace(session=number + 1) for number, each in enumerate(found))


def minutes(arrivals: Sequence[Arrival]) -> list[Window]:
    seen = [Seen(each.at_s, each.prompt_tokens, each.output_tokens) for each in arrivals]
    return [window_of(seen, 60.0 * number, 60.0 * number + 60.0) for number in range(MINUTES)]


def backlog(windows: Sequence[Window], mode: Mode = "disaggregated") -> Backlog:
    usual = merged_mix((each.mix, 1.0) for each in windows)
    speed = EngineSpeed(ENGINE, usual)
    traffic = Traffic(tuple(minute_of(each, 1.0, 1.0, usual) for each in windows), 1.0)
    return Backlog(traffic, speed, None if mode == "monolithic" else speed, lambda mix: local_cells(mix, mode))


def simulated(arrivals: Sequence[Arrival], prefills: int) -> float:
    """Share of the requests in time."""
    pools = Pool("prefill", prefills, ENGINE), Pool("decode", ENGINES - prefills, ENGINE)
    served = simulate_pools(pools, arrivals, Settings(), "disaggregated").served
    in_time = sum(each.ttft_s <= TARGETS[0] and (each.tpot_s or 0.0) <= TARGETS[1] for each in served)
    return in_time / len(arrivals)


def test_splits_are_ranked_as_the_simulation_ranks_them_where_minutes_overload_them() -> None:
    arrivals = uneven(1)
    windows = minutes(arrivals)
    course = backlog(windows)
    told = {split: course.course(ENGINES - split, split, 1.0).judged(*TARGETS).in_time for split in range(1, ENGINES)}
    seen = {split: simulated(arrivals, split) for split in told}
    assert seen[max(told, key=told.__getitem__)] >= max(seen.values()) - 0.01
    assert sum(abs(told[split] - seen[split]) for split in told) / len(told) < 0.06
    assert max(seen.values()) - min(seen.values()) > 0.5, "the splits differ"


def test_one_load_that_lasts_is_what_the_closed_form_for_it_says() -> None:
    mix = Mix((Cell(1.0, 2000.0, 200.0), Cell(1.0, 500.0, 50.0)))
    windows = [Window(60.0 * n, 60.0 * n + 60.0, 1.5, mix, 1.0, 90) for n in range(30)]
    lasting = met(Load(1.5, mix), (EngineSpeed(ENGINE, mix), 3), (EngineSpeed(ENGINE, mix), 3), (False, False), TARGETS)
    found = backlog(windows).course(3, 3, 1.0).judged(*TARGETS)
    assert found.in_time == pytest.approx(lasting.attained, abs=0.05)


def test_a_backlog_is_worked_off_and_not_forgotten_between_minutes() -> None:
    mix = Mix((Cell(1.0, 2000.0, 30.0),))

    def late(rates: Sequence[float]) -> float:
        windows = [Window(60.0 * n, 60.0 * n + 60.0, rate, mix, 1.0, 60) for n, rate in enumerate(rates)]
        return backlog(windows).course(3, 2, 1.0).later_than(TARGETS[0])

    together, apart = late([1.0, 9.0, 9.0, 1.0, 1.0, 1.0, 1.0, 1.0]), late([1.0, 9.0, 1.0, 1.0, 1.0, 1.0, 9.0, 1.0])
    assert together > apart > late([2.0] * 8) + 0.1


ROUNDING = 1e-9
MIXES = st.lists(
    st.builds(Cell, st.floats(0.1, 10), st.floats(64, 12_000), st.floats(2, 600), st.floats(0, 60)), min_size=1, max_size=3
)
WINDOWS = st.lists(st.tuples(st.floats(0, 12), MIXES, st.floats(1, 20)), min_size=1, max_size=8).filter(
    lambda told: any(rate > 0.01 for rate, _, _ in told)
)


@settings(max_examples=40, deadline=None)
@example(
    [(0.0, [Cell(1.0, 64.0, 2.0)], 1.0), (8.0, [Cell(1.0, 1493.0, 2.0)], 16.0)], 3, 1, 2.0, "disaggregated"
)  # just full
@example([(2.25, [Cell(1.0, 11_000.0, 2.0)], 1.0)], 1, 1, 1.05, "monolithic")
@given(WINDOWS, st.integers(1, 6), st.integers(1, 6), st.floats(1.05, 3), st.sampled_from(["disaggregated", "monolithic"]))
def test_more_load_or_fewer_engines_never_bring_an_earlier_first_token(
    told: list[tuple[float, list[Cell], float]], prefills: int, answers: int, more: float, mode: Mode
) -> None:
    windows = [
        Window(60.0 * n, 60.0 * n + 60.0, rate, Mix(tuple(cells)), burst, 9) for n, (rate, cells, burst) in enumerate(told)
    ]
    course = backlog(windows, mode)
    as_is = course.course(answers, prefills, 1.0)
    heavier = course.course(answers, prefills, more)
    more_prefill, more_answering = course.course(answers, prefills + 1, 1.0), course.course(answers + 1, prefills, 1.0)
    assert 0 <= as_is.judged(*TARGETS).in_time <= 1
    assert course.course(answers, prefills, 1.0).judged(*TARGETS) == as_is.judged(*TARGETS)
    for seconds in (0.1, TARGETS[0], 30.0):
        assert heavier.later_than(seconds) >= as_is.later_than(seconds) - ROUNDING
        assert more_prefill.later_than(seconds) <= as_is.later_than(seconds) + ROUNDING
        assert more_answering.later_than(seconds) <= as_is.later_than(seconds) + ROUNDING
    p99 = as_is.later_than_all_but(TARGETS[0])
    assert as_is.later_than(p99) <= 0.01
