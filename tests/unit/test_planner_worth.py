"""Small gains and bottlenecks: what a change must bring, that none is undone on the same traffic, who is named as short."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.core.planner import FleetNow, Guards, ModelNow, Proposal, propose
from controlplane.core.planner_inputs import demand
from controlplane.core.planner_layouts import Layouted, PastHour
from controlplane.core.planner_search import Search, search_for
from controlplane.core.planner_types import PoolPlan
from controlplane.core.planner_worth import LEAST_GAIN, STEADY_GAIN, SURE_GAIN, shown, worth
from controlplane.core.protocol import Slo
from controlplane.core.workload import Cell, Mix, Window
from tests.planner_kit import CHAT, NOW, RAG, fleet, pool, shape, split, windows

MINUTES = 60
KEEP = Guards(give_up=False)


def split_plan(prefills: int, decodes: int) -> tuple[PoolPlan, ...]:
    return PoolPlan("prefill", prefills, 4, "h100-sxm"), PoolPlan("decode", decodes, 4, "h100-sxm")


def tight(seen: Sequence[Window], prefills: int = 5, decodes: int = 3, **more: object) -> ModelNow:
    return split(prefills, decodes, seen, guards=KEEP, **more)


def judged(search: Search, prefills: int, decodes: int) -> Layouted:
    pools = split_plan(prefills, decodes)
    assert search.traffic is not None
    return search.judged(
        Layouted("disaggregated", pools, search.estimate("disaggregated", pools, search.traffic.rate * 1.1))
    )


def search_of(model: ModelNow) -> Search:
    load = demand(model, model.windows[-1].until_s)
    assert load is not None
    return search_for(model, load, {})


# --- small gains -------------------------------------------------------------------------------------------------------


def bursts(every: int) -> list[Window]:
    """An hour of 3.5 long prompts/s, of 12 in one minute of so many."""
    seen = windows(3.5, RAG, MINUTES, burst=2.0)
    return [replace(each, rate=12.0) if index % every == 3 else each for index, each in enumerate(seen)]


def test_a_small_gain_counts_where_a_whole_hour_shows_it() -> None:
    model = tight(bursts(30))
    search = search_of(model)
    here, best = judged(search, 5, 3), judged(search, 6, 2)
    assert STEADY_GAIN < (best.in_time or 0.0) - (here.in_time or 0.0) < LEAST_GAIN
    assert not search.keeps(best.mode, best.estimate), "it is a small gain on missed targets"
    assert worth(best, here, search, 0.1)
    assert not worth(here, best, search, 0.1)
    dearer = replace(best, estimate=replace(best.estimate, cost_per_hour=2 * here.estimate.cost_per_hour))
    assert not worth(dearer, here, search, 0.1), "GPUs are not added for so little"
    short = search_of(replace(model, windows=model.windows[-40:]))
    assert short.past_hour(judged(short, 5, 3)) is None, "40 minutes are no hour"


def test_hours_of_traffic_that_comes_and_goes_alike_see_one_change() -> None:
    model, changes = tight(bursts(30)), 0
    for tick in range(0, 120, 8):
        now = NOW + 60 * tick
        seen = [replace(each, since_s=each.since_s + 60 * tick, until_s=each.until_s + 60 * tick) for each in bursts(30)]
        turned = tuple(
            replace(one, rate=other.rate) for one, other in zip(seen, seen[tick % 30 :] + seen[: tick % 30], strict=True)
        )
        for found in propose(FleetNow((replace(model, windows=turned, metrics_at_s=now),)), now).proposals:
            model, changes = carried_out(model, found), changes + 1
    assert changes == 1


SHARES = st.lists(st.floats(0, 1), min_size=4, max_size=4)


@given(SHARES, SHARES, st.lists(st.floats(0, 10), min_size=4, max_size=4), st.integers(0, 3))
def test_an_hour_never_shows_a_gain_both_ways_nor_one_that_a_quarter_denies(
    old: list[float], new: list[float], weights: list[float], moves: int
) -> None:
    total = math.fsum(weights) or 1.0

    def hour(shares: list[float]) -> PastHour:
        return PastHour(math.fsum(w * share for w, share in zip(weights, shares, strict=True)) / total, tuple(shares))

    there, back = shown(hour(old), hour(new), moves), shown(hour(new), hour(old), moves)
    assert not (there and back)
    if there:
        assert all(late >= early - SURE_GAIN for early, late in zip(old, new, strict=True))
        assert max(late - early for early, late in zip(old, new, strict=True)) > SURE_GAIN, "which denies the way back"


UNEVEN = st.lists(st.tuples(st.floats(0.5, 14), st.sampled_from([CHAT, RAG])), min_size=4, max_size=12)


def carried_out(model: ModelNow, found: Proposal) -> ModelNow:
    counts = {each.role: each.engines for each in found.pools}
    return replace(model, pools=tuple(replace(each, engines=counts[each.role]) for each in model.pools))


@settings(max_examples=20, deadline=None)
@given(UNEVEN, st.floats(1, 6), st.integers(1, 7))
def test_no_change_is_undone_on_the_traffic_it_was_made_for(
    spans: list[tuple[float, Mix]], burst: float, prefills: int
) -> None:
    each_s = -(-MINUTES // len(spans))
    seen = [
        replace(each, rate=spans[index // each_s][0], mix=spans[index // each_s][1], burst=burst, samples=100)
        for index, each in enumerate(windows(1.0, CHAT, MINUTES))
    ]
    model = tight(seen, prefills, 8 - prefills)
    been = [model.pools]
    for _ in range(4):
        decision = propose(FleetNow((model,)), NOW)
        if not decision.proposals:
            return
        model = carried_out(model, decision.proposals[0])
        assert model.pools not in been, "it goes back to where it was"
        been.append(model.pools)
    raise AssertionError("it does not come to rest")


# --- the bottleneck ----------------------------------------------------------------------------------------------------

LONG, ANSWERS = Mix((Cell(1.0, 4000.0, 16.0),)), Mix((Cell(1.0, 100.0, 200.0),))


@pytest.mark.parametrize("since", [12, 20])
def test_prompts_that_wait_for_room_among_the_answers_are_no_lack_of_prefill(since: int) -> None:
    """As in the ten minutes in real time: first tokens were late, because two decode engines were full."""
    seen = [
        replace(each, rate=1.45, mix=ANSWERS, samples=87)
        if index >= 30 - since
        else replace(each, rate=2.4, mix=LONG, samples=144)
        for index, each in enumerate(windows(1.0))
    ]
    kinds = {"gpu": "l4", "tensor_parallel": 1}
    model = replace(
        split(1, 1, seen, slo=Slo(4000.0, 300.0), guards=KEEP),
        shape=shape("llama-3.1-8b"),
        max_num_seqs=8,
        pools=(pool("prefill", 4, **kinds), pool("decode", 2, **kinds)),
    )
    (found,) = propose(FleetNow((model,)), NOW).proposals
    assert {each.role: each.engines for each in found.pools}["decode"] > 2
    assert found.now.ttft_p99_ms > 4000
    assert found.now.bottleneck == "decode"
    assert "the decode pool is the bottleneck" in found.reasons[0]
    search = search_of(model)
    assert judged_l4(search).estimate.bottleneck == "decode", "without a proposal too"


def judged_l4(search: Search) -> Layouted:
    pools = PoolPlan("prefill", 4, 1, "l4"), PoolPlan("decode", 2, 1, "l4")
    return Layouted("disaggregated", pools, search.estimate("disaggregated", pools, 1.6))


MIXES = st.builds(lambda size, answer: Mix((Cell(1.0, size, answer),)), st.floats(64, 16_000), st.floats(2, 800))


@settings(max_examples=40, deadline=None)
@given(st.floats(0.5, 40), MIXES, MIXES, st.integers(1, 7), st.integers(0, 29), st.integers(0, 32))
def test_the_bottleneck_that_is_named_is_the_pool_that_grows(
    rate: float, before: Mix, after: Mix, prefills: int, since: int, spare: int
) -> None:
    seen = [replace(each, mix=before if index < since else after) for index, each in enumerate(windows(rate))]
    model = tight(seen, prefills, 8 - prefills)
    for found in propose(fleet(model, spare=spare), NOW).proposals:
        old = {each.role: each.engines for each in found.before}
        grown = [each.role for each in found.pools if each.engines > old[each.role]]
        if len(grown) == 1:
            assert found.now.bottleneck == grown[0]
