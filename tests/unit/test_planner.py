"""The planner's known answers: what public planners got wrong, its guards, and trades between models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controlplane.core import planner_search
from controlplane.core.planner import (
    Decision,
    FleetNow,
    Guards,
    Hold,
    Lent,
    Manual,
    ModelNow,
    Outcome,
    Peak,
    PoolPlan,
    Proposal,
    Span,
    accuracy,
    estimate,
    frontier,
    propose,
)
from controlplane.core.planner_inputs import corrections
from controlplane.core.planner_search import FEW_SPLITS, near_best, present
from controlplane.core.protocol import Slo
from controlplane.core.workload import Observed, offered_rate
from tests.planner_kit import CHAT, NOW, RAG, fleet, pool, shape, split, whole, windows


def only(decision: Decision) -> Proposal | Hold:
    found: list[Proposal | Hold] = [*decision.proposals, *decision.holds]
    assert len(found) == 1
    return found[0]


def decided(model: ModelNow, now_s: float = NOW, **more: Any) -> Proposal | Hold:
    return only(propose(fleet(model, **more), now_s))


def proposed(model: ModelNow, now_s: float = NOW, **more: Any) -> Proposal:
    found = decided(model, now_s, **more)
    assert isinstance(found, Proposal), found
    return found


def held(model: ModelNow, code: str, now_s: float = NOW, **more: Any) -> Hold:
    found = decided(model, now_s, **more)
    assert isinstance(found, Hold), found
    assert found.code == code, found
    assert found.reason.endswith(".")
    return found


def engines(proposal: Proposal) -> dict[str, int]:
    return {each.role: each.engines for each in proposal.pools}


# --- what public planners got wrong ------------------------------------------------------------------------------------


def rate_at(busy: float, prefills: int, decodes: int) -> float:
    """The rate of long prompts at which the busier pool works so much."""
    one = split(prefills, decodes, windows(1.0, RAG))
    return busy / estimate(one, "disaggregated", present(one.pools), 1.0, RAG).busy


def test_constant_load_on_two_workers_at_seven_tenths_never_oscillates() -> None:
    rate = rate_at(0.7, 2, 1)
    model = split(2, 1, windows(rate, RAG), slo=Slo(10_000.0, 50.0))
    for minute in range(60):
        now = NOW + 60 * minute
        seen = windows(rate, RAG, now_s=now)
        found = decided(replace(model, windows=seen, metrics_at_s=now), now, spare=32)
        assert isinstance(found, Hold), f"minute {minute}: {found}"


def test_first_steps_of_a_cold_engine_do_not_shrink_the_rate() -> None:
    cold = [Observed(NOW - 60 * n, prefill_ratio=9.0, decode_ratio=9.0, warming=True) for n in range(5)]
    steady = [Observed(NOW - 60 * n, prefill_ratio=1.1, decode_ratio=0.9) for n in range(5)]
    found = corrections([*steady, *cold])
    assert (found.prefill, found.decode) == (1.1, 0.9)
    assert corrections(cold).prefill == 1.0


@pytest.mark.parametrize(("ratio", "used"), [(40.0, 2.0), (0.01, 0.5), (float("nan"), 1.0), (-3.0, 1.0)])
def test_live_ratios_are_clamped(ratio: float, used: float) -> None:
    assert corrections([Observed(NOW, prefill_ratio=ratio)] * 5).prefill == used


def test_a_model_without_traffic_goes_down_to_its_floor() -> None:
    idle = split(8, 8, windows(0.0), guards=Guards(moves_per_hour=50))
    found = proposed(idle)
    assert (found.cause, engines(found)) == ("idle", {"prefill": 1, "decode": 1})
    floors = replace(idle, pools=(pool("prefill", 8, floor=3), pool("decode", 8, floor=2)))
    assert engines(proposed(floors)) == {"prefill": 3, "decode": 2}
    at_floor = replace(idle, pools=(pool("prefill", 1), pool("decode", 1)))
    held(at_floor, "good")


def test_fewer_completions_of_a_saturated_model_are_not_less_load() -> None:
    assert offered_rate(completed=600, open_before=10, open_after=610, seconds=60) == pytest.approx(20.0)
    assert offered_rate(completed=60, open_before=400, open_after=100, seconds=60) == 0.0
    saturated = split(2, 14, windows(10.0, RAG), observed=(Observed(NOW, 30_000.0, 20.0, 300, waiting=900.0),))
    found = proposed(saturated)
    assert engines(found)["prefill"] > 2
    assert found.then.gpus >= found.now.gpus


@pytest.mark.parametrize("age", [61.0, 3600.0, None])
def test_a_metrics_outage_holds(age: float | None) -> None:
    stale = split(2, 14, windows(10.0, RAG), metrics_at_s=None if age is None else NOW - age)
    assert "metrics" in held(stale, "stale").reason


def test_a_change_by_hand_is_adopted_and_explained_not_fought() -> None:
    by_hand = split(10, 6, windows(4.0), manual=Manual(NOW - 300, "ops-1", "trying long prompts"))
    assert "ops-1 changed it by hand (trying long prompts)" in held(by_hand, "manual").reason
    later = split(10, 6, windows(4.0, now_s=NOW + 4000), manual=by_hand.manual)
    assert proposed(later, NOW + 4000).before[0].engines == 10, "what they left is where the plan starts"
    missed = replace(by_hand, windows=windows(25.0, RAG), observed=(Observed(NOW, 30_000.0, 20.0, 900),))
    assert isinstance(decided(missed), Proposal), "users who miss the target go first"


@pytest.mark.parametrize(
    ("model", "scaled", "kept"),
    [
        (split(2, 6, windows(4.0, RAG)), "prefill", "decode"),
        (split(6, 1, windows(14.0), slo=Slo(2000.0, 16.5)), "decode", "prefill"),
    ],
)
def test_the_pool_that_is_the_bottleneck_is_the_one_that_grows(model: ModelNow, scaled: str, kept: str) -> None:
    before: dict[str, int] = {each.role: each.engines for each in model.pools}
    found = proposed(model, spare=64)
    assert found.now.bottleneck == scaled
    assert engines(found)[scaled] > before[scaled]
    assert engines(found)[kept] <= before[kept]


def test_a_ttft_target_that_no_gpu_can_keep_adds_none_but_says_so() -> None:
    slow = split(4, 4, windows(1.0, RAG), slo=Slo(50.0, 50.0), guards=Guards(give_up=False))
    found = decided(slow, spare=64)
    assert isinstance(found, Hold)
    shrinking = proposed(replace(slow, guards=Guards()), spare=64)
    assert shrinking.then.gpus < shrinking.now.gpus
    assert any("TTFT target cannot be kept with any number" in reason for reason in shrinking.reasons)
    idle = replace(slow, windows=windows(0.0), guards=Guards(moves_per_hour=50))
    assert engines(proposed(idle)) == {"prefill": 1, "decode": 1}


def test_one_engine_fewer_is_tried_on_paper_before_it_is_proposed() -> None:
    rate = rate_at(0.55, 2, 1)
    model = split(2, 1, windows(rate, RAG), slo=Slo(10_000.0, 50.0))
    assert isinstance(decided(model), Hold)
    light = replace(model, windows=windows(rate / 4, RAG))
    found = proposed(light)
    assert engines(found)["prefill"] == 1
    assert found.then.ttft_p99_ms <= 9_000, "with the hysteresis to spare"


# --- guards ------------------------------------------------------------------------------------------------------------

NEEDS = split(2, 14, windows(4.0, RAG))


def test_without_windows_nothing_is_done() -> None:
    held(replace(NEEDS, windows=()), "empty")
    held(replace(NEEDS, windows=tuple(replace(each, complete=False) for each in NEEDS.windows)), "empty")
    assert propose(FleetNow(()), NOW) == Decision(NOW, (), ())


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"level": "off"}, "off"),
        ({"operation": "rebalance, operation 12"}, "operation"),
        ({"warming": 2}, "warming"),
        ({"obstacle": "its engines have several pipeline stages"}, "no_hardware"),
        ({"changed_at_s": NOW - 60}, "cooldown"),
        ({"moved_at_s": (NOW - 10,) * 6}, "budget"),
        ({"guards": Guards(freezes=(Span(NOW - 1, NOW + 1, why="release"),))}, "freeze"),
        ({"guards": Guards(slots=(Span(NOW + 60, NOW + 120),))}, "window"),
        ({"windows": windows(4.0, RAG, count=3)}, "few_samples"),
    ],
)
def test_each_guard_holds_and_says_why(change: dict[str, Any], code: str) -> None:
    held(replace(NEEDS, **change), code)


def test_a_daily_window_may_run_over_midnight() -> None:
    night = Span(22 * 3600.0, 4 * 3600.0, daily=True)
    base = NOW - NOW % 86_400
    for hour, free in ((23, True), (2, True), (12, False)):
        now = base + hour * 3600
        model = replace(NEEDS, windows=windows(4.0, RAG, now_s=now), metrics_at_s=now, guards=Guards(slots=(night,)))
        assert isinstance(decided(model, now), Proposal) is free


def test_the_budget_cuts_a_change_to_its_most_useful_moves() -> None:
    few = replace(NEEDS, guards=Guards(moves_per_hour=3))
    found = proposed(few)
    assert found.moves == 3
    assert engines(found) == {"prefill": 5, "decode": 11}
    assert found.then.strain < found.now.strain


def test_a_known_peak_is_prepared_for_before_it_comes() -> None:
    quiet = split(2, 2, windows(1.0, RAG), guards=Guards(moves_per_hour=20))
    peak = Peak(NOW + 600, NOW + 7200, 8.0, why="the morning's reports")
    found = proposed(replace(quiet, peaks=(peak,)), spare=64)
    assert found.cause == "schedule"
    assert found.then.gpus > found.now.gpus
    assert "the morning's reports" in found.reasons[0]


def test_ceilings_are_kept() -> None:
    capped = replace(
        split(2, 2, windows(8.0, RAG), guards=Guards(moves_per_hour=50)),
        pools=(pool("prefill", 2, ceiling=4), pool("decode", 2, ceiling=2)),
    )
    found = decided(capped, spare=400)
    pools = found.pools if isinstance(found, Proposal) else ()
    assert all(each.engines <= (4 if each.role == "prefill" else 2) for each in pools)


def test_another_mode_is_proposed_where_prompts_stall_decoding() -> None:
    model = whole(16, windows(8.0, RAG), modes=("monolithic", "disaggregated"))
    found = proposed(model)
    assert (found.cause, found.mode) == ("mode", "disaggregated")
    held_back = replace(model, modes=("monolithic",), guards=Guards(give_up=False))
    assert isinstance(decided(held_back), Hold), "only modes that the owner allows"


def test_a_proposal_keeps_inputs_alternatives_and_reasons() -> None:
    found = proposed(NEEDS)
    assert found.inputs.rate == pytest.approx(4.0)
    assert found.inputs.mix.prompt_tokens == 8000
    assert found.alternatives
    assert all(each.why_not.endswith(".") for each in found.alternatives)
    assert all(reason.endswith(".") for reason in found.reasons)
    assert found.expires_at_s == NOW + NEEDS.guards.lifetime_s
    assert found.id == proposed(NEEDS).id


# --- trades ------------------------------------------------------------------------------------------------------------


def test_gpus_are_taken_from_a_lower_priority_above_its_floor_with_both_forecasts() -> None:
    needy = split(2, 2, windows(4.0, RAG), priority=10)
    giver = whole(8, windows(1.0), name="batch", priority=1)
    decision = propose(fleet(needy, giver), NOW)
    (found,) = decision.proposals
    assert found.cause == "trade"
    (lent,) = found.takes
    assert (lent.giver, lent.taker) == ("batch", "llama")
    assert found.giver_now is not None
    assert found.giver_then is not None
    assert found.giver_then.gpus == found.giver_now.gpus - lent.engines * 4
    assert [hold.model for hold in decision.holds] == ["batch"]


@pytest.mark.parametrize(
    "giver",
    [
        whole(8, windows(1.0), name="batch", priority=10),
        whole(8, windows(1.0), name="batch", priority=11),
        replace(whole(8, windows(1.0), name="batch", priority=1), pools=(pool("mixed", 8, floor=8),)),
        whole(8, windows(1.0), name="batch", priority=1, level="off"),
        whole(8, windows(1.0), name="batch", priority=1, operation="rebalance"),
        whole(8, windows(1.0), name="batch", priority=1, metrics_at_s=NOW - 600),
    ],
)
def test_nothing_is_taken_from_an_equal_a_floor_or_one_that_must_not_be_touched(giver: ModelNow) -> None:
    needy = split(2, 2, windows(4.0, RAG), priority=10)
    assert not any(each.takes for each in propose(fleet(needy, giver), NOW).proposals)


def test_what_was_lent_goes_back_when_the_need_is_gone() -> None:
    lent = Lent("1", "batch", "llama", "mixed", 2, NOW - 7200)
    giver = whole(6, windows(1.0), name="batch", priority=1)
    quiet = split(4, 2, windows(0.5, RAG), priority=10)
    (found,) = [each for each in propose(fleet(quiet, giver, lent=(lent,)), NOW).proposals if each.model == "llama"]
    assert found.cause == "give_back"
    assert found.gives_back == (lent,)
    assert found.then.gpus == found.now.gpus - 8
    assert [each.engines for each in found.giver_pools] == [8]
    busy = split(4, 2, windows(4.0, RAG), priority=10)
    assert not any(each.gives_back for each in propose(fleet(busy, giver, lent=(lent,)), NOW).proposals)


# --- frontier and accuracy ---------------------------------------------------------------------------------------------


def test_the_frontier_has_no_layout_that_another_beats() -> None:
    found = frontier(split(2, 2, windows(4.0, RAG)), 4.0, RAG, {"h100-sxm": 64})
    costs = [each.estimate.cost_per_hour for each in found]
    strains = [each.estimate.strain for each in found]
    assert costs == sorted(costs)
    assert strains == sorted(strains, reverse=True)
    assert any(not each.why_not for each in found)


def test_accuracy_is_the_median_miss_and_needs_three() -> None:
    rows = [Outcome(str(n), 100.0, 10.0, 100.0 * (1 + n / 10), 10.0) for n in range(5)]
    found = accuracy(rows)
    assert found.ttft == pytest.approx(1 - 1 / 1.2)
    assert found.itl == 0.0
    assert accuracy(rows[:2]).ttft is None


def test_chat_and_documents_want_other_splits() -> None:
    def best(mix: Any, rate: float) -> int:
        model = split(2, 14, windows(rate, mix))
        found = [
            each
            for each in frontier(model, rate, mix, {"h100-sxm": 64})
            if sum(pool.gpus for pool in each.pools) == 64 or not each.why_not
        ]
        first = found[0].pools
        return first[0].gpus * 100 // sum(pool.gpus for pool in first)

    assert best(RAG, 6.0) > best(CHAT, 40.0)


# --- many splits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("best", [1, 2, 700, 2048, 4094, 4095])
def test_the_best_of_many_splits_is_found_with_few_looks(best: int) -> None:
    splits = [(PoolPlan("prefill", count, 1, "h100-sxm"),) for count in range(1, 4096)]
    looks: list[int] = []

    def badness(pools: tuple[PoolPlan, ...]) -> tuple[float, ...]:
        looks.append(pools[0].engines)
        return (float(abs(pools[0].engines - best)),)

    found = near_best(splits, badness)
    assert best in [pools[0].engines for pools in found]
    assert len(found) <= FEW_SPLITS and len(looks) < 100
    assert near_best(splits[:FEW_SPLITS], badness) == splits[:FEW_SPLITS], "few are all told"


def test_the_frontier_of_many_gpus_is_that_of_all_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    model = split(1, 1, windows(1.0))
    model = replace(model, pools=tuple(replace(each, tensor_parallel=1, degrees=(2,)) for each in model.pools))
    model = replace(model, shape=shape("llama-3.1-8b"))
    found = frontier(model, 40.0, RAG, {"h100-sxm": 300})
    monkeypatch.setattr(planner_search, "FEW_SPLITS", 1 << 20)
    assert found == frontier(model, 40.0, RAG, {"h100-sxm": 300})
