"""Evidence by betting: what it may and may not show, worked out by hand and by many small trials."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.betting import FRACTIONS, Block, block_shape, bounds, log_wealth, log_wealth_since_any

BLOCKS = st.builds(
    lambda canary, main, hits, others: Block(canary, main, min(hits, canary), min(others, main)),
    *(st.integers(1, 9), st.integers(1, 9), st.integers(0, 9), st.integers(0, 9)),
)
TALLIES = st.dictionaries(BLOCKS, st.integers(1, 200), max_size=8)


@pytest.mark.parametrize(
    ("share", "shape"),
    [
        (0.5, (1, 1)),
        (0.25, (1, 3)),
        (0.1, (1, 9)),
        (0.05, (1, 9)),
        (0.0, (1, 9)),
        (0.4, (1, 1)),
        (0.8, (4, 1)),
        (1.0, (9, 1)),
    ],
)
def test_a_block_has_one_session_of_the_smaller_arm(share: float, shape: tuple[int, int]) -> None:
    assert block_shape(share) == shape


def test_nothing_seen_is_evidence_of_nothing() -> None:
    assert log_wealth({}, "above") == log_wealth({}, "below", 0.1) == 0
    assert bounds({}, 0.05) == (-1.0, 1.0)


def test_wealth_is_what_the_stakes_come_to() -> None:
    won = log_wealth({Block(1, 1, 1, 0): 2}, "above")  # a difference of 1, twice: each stake f is paid twice its worth
    assert math.exp(won) == pytest.approx(sum((1 + f) ** 2 for f in FRACTIONS) / len(FRACTIONS))
    assert log_wealth({Block(1, 1, 0, 1): 2}, "below") == pytest.approx(won)


def test_a_block_that_could_have_gone_either_way_wins_nothing_on_average() -> None:
    for shared in (0.02, 0.3, 0.9):
        expected = 0.0
        for canary in (0, 1):
            for main in (0, 1):
                chance = (shared if canary else 1 - shared) * (shared if main else 1 - shared)
                expected += chance * math.exp(log_wealth({Block(1, 1, canary, main): 1}, "above"))
        assert expected == pytest.approx(1.0)


@given(TALLIES, st.floats(-0.5, 0.5), st.floats(0.001, 0.4))
def test_more_is_harder_to_show(tally: dict[Block, int], by: float, step: float) -> None:
    assert log_wealth(tally, "above", by + step) <= log_wealth(tally, "above", by) + 1e-9
    assert log_wealth(tally, "below", by) <= log_wealth(tally, "below", by + step) + 1e-9


@given(TALLIES)
def test_the_bounds_lie_around_what_was_seen(tally: dict[Block, int]) -> None:
    lower, upper = bounds(tally, 0.05)
    total = sum(tally.values())
    seen = sum(block.difference * count for block, count in tally.items()) / total if total else 0.0
    assert lower - 1e-6 <= seen <= upper + 1e-6


def test_a_late_change_is_found_though_all_was_well_before() -> None:
    well = {Block(1, 1, 0, 0): 900, Block(1, 1, 1, 1): 40, Block(1, 1, 1, 0): 30, Block(1, 1, 0, 1): 90}
    worse = {Block(1, 1, 1, 0): 14, Block(1, 1, 0, 0): 6}
    together = Counter(well) + Counter(worse)
    limit = -math.log(0.05)
    assert log_wealth(together, "above") < limit < log_wealth_since_any([well, worse], 3, "above")
    assert log_wealth_since_any([well], 3, "above") <= math.log(1.0)
    assert log_wealth_since_any([], 3, "above") == 0


def test_looking_after_every_block_shows_falsely_what_is_not_so_in_few_trials() -> None:
    falsely = 0
    for seed in range(300):
        chance = random.Random(seed)
        tally: Counter[Block] = Counter()
        for number in range(200):
            shared = 0.02 + 0.2 * (number % 50) / 50  # the load comes and goes for both
            hits = sum(chance.random() < shared for _ in range(3))
            tally[Block(1, 3, int(chance.random() < shared), hits)] += 1
            if log_wealth(tally, "above") >= -math.log(0.05):
                falsely += 1
                break
    assert falsely <= 15
