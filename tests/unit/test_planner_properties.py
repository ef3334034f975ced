"""What holds of every plan, whatever the fleet: budgets, floors, ceilings, GPUs, the same answer to the same question."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from controlplane.core.backlog import Traffic
from controlplane.core.backlog_pools import Minute
from controlplane.core.planner import FleetNow, Guards, ModelNow, needed_gpus, propose
from controlplane.core.planner_search import Search
from controlplane.core.workload import Cell, Mix, Seen, merged_mix, mix_of
from tests.planner_kit import NOW, pool, shape, split, whole, windows

MIXES = st.builds(
    lambda cells: Mix(tuple(cells)),
    st.lists(
        st.builds(
            Cell,
            st.floats(0.1, 10),
            st.floats(64, 16_000),
            st.floats(2, 800),
            st.floats(0, 60),
        ),
        min_size=1,
        max_size=3,
    ),
)
RATES = st.floats(0.01, 60)
GUARDS = st.builds(
    Guards,
    moves_per_hour=st.integers(0, 12),
    hysteresis=st.floats(0, 0.3),
    headroom=st.floats(0, 0.5),
    give_up=st.booleans(),
)


@st.composite
def models(draw: st.DrawFn, name: str = "llama") -> ModelNow:
    seen = windows(draw(st.one_of(st.just(0.0), RATES)), draw(MIXES))
    more = {
        "name": name,
        "guards": draw(GUARDS),
        "priority": draw(st.integers(0, 3)),
        "moved_at_s": (NOW - 60.0,) * draw(st.integers(0, 8)),
    }
    if draw(st.booleans()):
        model = whole(draw(st.integers(1, 8)), seen, modes=("monolithic", "disaggregated"), **more)
    else:
        model = split(draw(st.integers(1, 6)), draw(st.integers(1, 6)), seen, **more)
    floors = tuple(
        replace(
            each, floor=draw(st.integers(1, each.engines)), ceiling=draw(st.one_of(st.none(), st.integers(each.engines, 12)))
        )
        for each in model.pools
    )
    return replace(model, pools=floors)


@settings(max_examples=25, deadline=None)
@given(models(), models("other"), st.integers(0, 32))
def test_plans_keep_budgets_floors_ceilings_and_the_gpus_there_are(one: ModelNow, two: ModelNow, spare: int) -> None:
    fleet = FleetNow((one, two), {"h100-sxm": spare})
    decision = propose(fleet, NOW)
    assert decision == propose(fleet, NOW), "the same question has the same answer"
    answered = [*(each.model for each in decision.proposals), *(each.model for each in decision.holds)]
    assert sorted(answered) == ["llama", "other"], "each model once"
    by_name = {each.name: each for each in fleet.models}
    taken = 0
    for each in decision.proposals:
        model = by_name[each.model]
        left = model.guards.moves_per_hour - len(model.moved_at_s)
        assert 0 < each.moves <= left
        limits = {one_pool.role: one_pool for one_pool in model.pools}
        for planned in each.pools:
            limit = limits.get(planned.role)
            assert planned.engines >= (limit.floor if limit else 1)
            assert limit is None or limit.ceiling is None or planned.engines <= limit.ceiling
        lent = sum(given.engines * 4 for given in each.takes)
        for given_engines in each.takes:
            giver = by_name[given_engines.giver]
            assert giver.priority < model.priority
            (home,) = [one_pool for one_pool in giver.pools if one_pool.role == given_engines.role]
            assert home.engines - given_engines.engines >= home.floor
        taken += max(0, each.then.gpus - sum(before.gpus for before in each.before) - lent)
    assert taken <= spare


@settings(max_examples=25, deadline=None)
@given(RATES, st.floats(1.05, 4), MIXES, st.integers(1, 3))
@example(43.0, 2.0, Mix((Cell(1.0, 10_096.0, 2.0, 0.0),)), 2)  # few decode engines, whose links are too slow
def test_more_load_never_needs_fewer_gpus(rate: float, factor: float, mix: Mix, mode: int) -> None:
    model = whole(1, windows(rate, mix)) if mode == 1 else split(1, 1, windows(rate, mix))
    less, more = needed_gpus(model, rate, mix), needed_gpus(model, rate * factor, mix)
    assert less is not None
    assert more is None or more >= less


@settings(max_examples=15, deadline=None)
@given(st.lists(RATES, min_size=1, max_size=6), st.floats(1, 9), st.floats(1.05, 4), MIXES, st.booleans())
def test_more_of_an_uneven_load_never_needs_fewer_gpus(
    rates: list[float], burst: float, factor: float, mix: Mix, together: bool
) -> None:
    model = whole(1, windows(1.0, mix)) if together else split(1, 1, windows(1.0, mix))
    minutes = tuple(Minute(60.0, rate, burst, mix, 1.0) for rate in rates)
    mean = sum(rates) / len(rates)
    search = Search(model, mix, burst, traffic=Traffic(minutes, mean))

    def needed(rate: float) -> int | None:
        room = {"h100-sxm": 4096}
        return min((each.estimate.gpus for each in search.smallest(model.mode, rate, room)), default=None)

    less, more = needed(mean), needed(mean * factor)
    assert more is None or (less is not None and more >= less)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.builds(Seen, st.floats(0, 60), st.integers(0, 9000), st.integers(0, 900), st.integers(0, 9000)), max_size=60)
)
def test_a_mix_keeps_counts_and_means(requests: list[Seen]) -> None:
    kept = [each for each in requests if each.prompt_tokens >= 1 and each.output_tokens >= 1]
    mix = mix_of(requests)
    assert round(mix.count) == len(kept)
    if kept:
        assert abs(mix.prompt_tokens - sum(each.prompt_tokens for each in kept) / len(kept)) < 1e-6 * mix.prompt_tokens
        assert abs(mix.output_tokens - sum(each.output_tokens for each in kept) / len(kept)) < 1e-6 * mix.output_tokens
    twice = merged_mix([(mix, 1.0), (mix, 1.0)])
    assert round(twice.count) == 2 * len(kept)


def test_pools_of_a_kind_the_model_does_not_fit_are_told_not_raised() -> None:
    tiny = replace(
        split(1, 1, windows(1.0)), pools=(pool("prefill", 1, gpu="l4", tensor_parallel=1), pool("decode", 1, gpu="l4"))
    )
    (hold,) = propose(FleetNow((replace(tiny, shape=shape("llama-3.1-405b")),)), NOW).holds
    assert hold.code == "no_hardware"
