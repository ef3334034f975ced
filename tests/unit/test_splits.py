"""The search for a split walks uphill, and says by what it chose."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from controlplane.physics.splits import Score, Side, all_splits, balanced, climb

PREFILL, DECODE = Side("h100-sxm", 2, 0.4), Side("h200-sxm", 4, 0.2)


def test_splits_use_all_gpus_they_can() -> None:
    layouts = all_splits(16, PREFILL, DECODE, "disaggregated")
    assert [layout.text for layout in layouts] == [
        "disagg:2xTP2@h100-sxm+3xTP4@h200-sxm",
        "disagg:4xTP2@h100-sxm+2xTP4@h200-sxm",
        "disagg:6xTP2@h100-sxm+1xTP4@h200-sxm",
    ], "one or three prefill engines would leave GPUs that a decode engine cannot use"


def test_two_engines_that_do_not_fit_have_no_split() -> None:
    assert all_splits(5, PREFILL, DECODE, "disaggregated") == []


def test_the_start_is_where_both_pools_are_equally_loaded() -> None:
    layouts = all_splits(16, PREFILL, DECODE, "disaggregated")
    assert layouts[balanced(layouts, PREFILL, DECODE)].pools[0].engines == 4
    heavy = Side("h100-sxm", 2, 4.0)
    assert layouts[balanced(layouts, heavy, DECODE)].pools[0].engines == 6


def test_more_within_the_slo_for_a_dollar_wins_and_near_a_tie_the_calmer_one() -> None:
    assert Score(100.0, 0.9).beats(Score(90.0, 0.2))
    assert Score(100.0, 0.5).beats(Score(100.2, 0.9))
    assert not Score(100.2, 0.9).beats(Score(100.0, 0.5))
    assert Score(0.0, 5.0).beats(Score(0.0, math.inf))
    assert not Score(100.0, 0.5).beats(Score(100.0, 0.5))


@given(st.integers(1, 200), st.data())
def test_the_climb_finds_the_only_top_and_scores_nothing_twice(count: int, data: st.DataObject) -> None:
    top, start = data.draw(st.integers(0, count - 1)), data.draw(st.integers(0, count - 1))
    asked: list[int] = []

    def scored(index: int) -> Score:
        asked.append(index)
        return Score(1000.0 - 20 * abs(index - top), 1.0) if abs(index - top) < 40 else Score(0.0, float(abs(index - top)))

    assert climb(count, start, scored) == top
    assert len(asked) == len(set(asked))
