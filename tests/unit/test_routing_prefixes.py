"""Choices that know of prefixes, pulls, room for KV and the harm to running answers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.core import routing
from controlplane.core.kvindex import KvIndex
from controlplane.core.pairing import may_pair
from controlplane.core.protocol import EngineRoute, ModelRoute
from controlplane.core.routing import Links, Load, Path, Rates, Reason, Request
from controlplane.core.scoring import DEFAULT_LINK_BYTES_PER_S, FULL_SAMPLE_BYTES, MAX_LINKS, Source, estimate


@dataclass
class Engine:
    route: EngineRoute
    load: Load = field(default_factory=Load)
    rates: Rates = field(default_factory=Rates)
    links: Links = field(default_factory=Links)
    kv_tokens: int = 0
    usable: bool = True

    @property
    def salt(self) -> int:
        return sum(self.route.id.encode()) * 0x9E3779B97F4A7C15


def engine(id: str, role: Any = "mixed", **fields: Any) -> Engine:
    return Engine(EngineRoute(id, "http://x", role), rates=Rates(prefill=10_000, decode=1000), **fields)


def request(**fields: Any) -> Request:
    return Request(**{"prompt_tokens": 10_000, "output_tokens": 200, "session": 1, **fields})


D = engine("d", "decode")


# --- prefixes ---


@pytest.mark.parametrize(
    ("cached", "queued_tokens", "chosen"),
    [
        ({}, 0, "either"),
        ({"warm": 5000}, 0, "warm"),
        ({"warm": 5000}, 24_000, "warm"),
        ({"warm": 5000}, 26_000, "cold"),
        ({"warm": 5000, "cold": 4000}, 6000, "cold"),
        ({"warm": 1_000_000}, 0, "warm"),
    ],
)  # fmt: skip
def test_a_prefix_is_worth_five_times_its_seconds_of_queue(cached: Any, queued_tokens: int, chosen: str) -> None:
    warm, cold = engine("warm", "prefill"), engine("cold", "prefill")
    warm.load.reserve(queued_tokens, 0)
    found = {
        choice.route.id
        for session in range(40)
        if (choice := routing.choose("prefill", [warm, cold, D], request(cached=cached, session=session * 7919)).engine)
    }
    assert found == ({"warm", "cold"} if chosen == "either" else {chosen})


@pytest.mark.parametrize(("queue_s", "chosen"), [(24, "warm"), (26, "cold")])
def test_nobody_waits_much_longer_for_a_long_prefix_than_to_compute_it(queue_s: int, chosen: str) -> None:
    """200,000 tokens, 20 s to compute: 5 s more are waited for the engine that holds them, not 80."""
    warm, cold = engine("warm", "prefill"), engine("cold", "prefill")
    warm.load.reserve(queue_s * 10_000, 0)
    need = request(prompt_tokens=200_000, cached={"warm": 200_000})
    choice = routing.choose("prefill", [warm, cold, D], need).engine
    assert choice is not None
    assert choice.route.id == chosen


def test_a_hot_prompt_does_not_pile_up_on_one_engine() -> None:
    """One system prompt of 4,000 tokens in front of 200 new ones, faster than one engine can compute."""
    engines, index = [engine(f"p{number}", "prefill") for number in range(4)], KvIndex()
    holders = {each.route.id: index.add(each.route.id) for each in engines}
    taken, widest = Counter[str](), 0
    keys = list(range(1, 9))
    for number in range(2000):
        cached = {holder.name: 500 * blocks for holder, blocks in index.match(keys).items()}
        need = request(prompt_tokens=4200, cached=cached, session=number * 7919)
        choice = routing.choose("prefill", [*engines, D], need)
        assert choice.engine is not None
        choice.engine.load.reserve(need.uncached(choice.engine.route.id), 0)
        holders[choice.engine.route.id].insert(keys, number)
        taken[choice.engine.route.id] += 1
        queues = [each.load.prefill_tokens for each in engines]
        widest = max(widest, max(queues) - min(queues))
        for each in engines:
            each.load.prefill_tokens = max(0, each.load.prefill_tokens - 40)
    assert max(taken.values()) < 1.3 * 2000 / 4
    assert widest < 5 * 4000 + 4200
    assert index.match(keys).keys() == set(holders.values())


def test_the_best_rejected_engines_are_told_with_their_scores() -> None:
    engines = [engine(name, "prefill") for name in "abcd"]
    for number, each in enumerate(engines):
        each.load.reserve(10_000 * number, 0)
    choice = routing.choose("prefill", [*engines[::-1], D], request())
    assert choice.engine is engines[0]
    assert choice.seconds == pytest.approx(1.0)
    assert [(id, pytest.approx(score)) for id, score in choice.others] == [("b", 6.0), ("c", 7.0)]
    assert routing.choose("prefill", [engines[0], D], request()).others == ()


def test_the_others_do_not_name_a_chosen_engine_that_only_tied() -> None:
    engines = [engine(name) for name in "abc"]
    for session in range(30):
        choice = routing.choose("whole", engines, request(session=session * 7919))
        assert choice.engine
        assert sorted([choice.engine.route.id, *(id for id, _ in choice.others)]) == ["a", "b", "c"]


# --- decode: pulls and room ---


def kv_bytes(tokens: int) -> int:
    return 300_000 * tokens


def test_a_decode_engine_that_has_to_pull_less_is_preferred() -> None:
    one, two = engine("one", "decode"), engine("two", "decode")
    need = request(cached={"two": 8000})
    assert routing.choose("decode", [one, two], need, source=Source("p", kv_bytes)).engine is two
    assert estimate("decode", one, need, Source("p", kv_bytes)).own == pytest.approx(3e9 / DEFAULT_LINK_BYTES_PER_S)
    assert estimate("decode", two, need, Source("p", kv_bytes)).own == pytest.approx(0.6e9 / DEFAULT_LINK_BYTES_PER_S)


def test_a_slow_pair_is_avoided() -> None:
    near, far = engine("near", "decode"), engine("far", "decode")
    far.links.saw("p", 1_000_000_000, 1.0)
    for session in range(20):
        assert routing.choose("decode", [near, far], request(session=session), source=Source("p", kv_bytes)).engine is near
    assert {
        choice.route.id
        for session in range(40)
        if (choice := routing.choose("decode", [near, far], request(session=session), source=Source("q", kv_bytes)).engine)
    } == {"near", "far"}


def test_bandwidth_is_the_highest_seen_of_large_pulls() -> None:
    links = Links()
    links.saw("p", 1000, 0.1)
    assert links.bytes_per_s("p") == DEFAULT_LINK_BYTES_PER_S
    links.saw("p", FULL_SAMPLE_BYTES, 0.01)
    links.saw("p", 1000, 0.1)
    assert links.bytes_per_s("p") == pytest.approx(6.4e9)
    for _ in range(100):
        links.saw("p", FULL_SAMPLE_BYTES, 1.0)
    assert links.bytes_per_s("p") == pytest.approx(6.4e7)
    links.saw("p", 0, 1.0)
    links.saw("p", 1000, 0.0)
    for number in range(MAX_LINKS + 10):
        links.saw(str(number), FULL_SAMPLE_BYTES, 1.0)
    assert links.bytes_per_s("p") == DEFAULT_LINK_BYTES_PER_S


def test_an_engine_without_room_for_the_kv_waits_until_answers_have_ended() -> None:
    full, free = engine("full", "decode", kv_tokens=50_000), engine("free", "decode", kv_tokens=50_000)
    full.load.reserve(0, 1000, 45_000)
    free.load.reserve(0, 1050, 20_000)
    assert routing.choose("decode", [full, free], request()).engine is free
    full.kv_tokens = 0
    assert routing.choose("decode", [full, free], request()).engine is full


# --- conditional ---

MODEL = ModelRoute("m", "conditional", kv_bytes_per_token=300_000)


def conditional(need: Request, busy_decodes: int = 0, prefill_queue: int = 0) -> Reason:
    prefill, decode = engine("p", "prefill"), engine("d", "decode")
    prefill.load.reserve(prefill_queue, 0)
    for _ in range(busy_decodes):
        decode.load.reserve(0, 20)
    decision = routing.decide_path(MODEL, [prefill, decode], need)
    assert (decision.path is Path.DISAGGREGATED) == (decision.reason is Reason.CONDITIONAL_REMOTE)
    return decision.reason


@pytest.mark.parametrize(
    ("need", "state", "reason"),
    [
        ({"prompt_tokens": 511}, {"busy_decodes": 9}, Reason.CONDITIONAL_SHORT),
        ({"prompt_tokens": 512}, {"busy_decodes": 9}, Reason.CONDITIONAL_REMOTE),
        ({"cached": {"d": 9489}}, {"busy_decodes": 9}, Reason.CONDITIONAL_SHORT),
        ({"cached": {"d": 7001}}, {"busy_decodes": 9}, Reason.CONDITIONAL_CACHED),
        ({"cached": {"d": 7000}}, {"busy_decodes": 9}, Reason.CONDITIONAL_REMOTE),
        ({"cached": {"p": 9000}}, {}, Reason.CONDITIONAL_REMOTE),
        ({}, {}, Reason.CONDITIONAL_LOCAL),
        ({}, {"busy_decodes": 1}, Reason.CONDITIONAL_REMOTE),
        ({}, {"busy_decodes": 1, "prefill_queue": 20_000}, Reason.CONDITIONAL_LOCAL),
        ({}, {"busy_decodes": 4, "prefill_queue": 20_000}, Reason.CONDITIONAL_REMOTE),
    ],
)  # fmt: skip
def test_conditional_mode_splits_by_what_is_uncached_and_what_it_costs_all(need: Any, state: Any, reason: Reason) -> None:
    assert conditional(request(**need), **state) is reason


# --- rates ---


def test_a_queue_ahead_is_not_taken_for_a_slow_engine_and_short_prompts_count_less() -> None:
    rates, load = Rates(), Load()
    first = load.reserve(10_000, 0)
    second = load.reserve(10_000, 0)
    rates.saw_prefill(first.ahead_tokens + 10_000, 1.0)
    rates.saw_prefill(second.ahead_tokens + 10_000, 2.0)
    assert rates.prefill == pytest.approx(10_000)
    rates.saw_prefill(10, 0.1)
    assert rates.prefill > 9980


# --- what choices never do ---

ENGINES = st.lists(
    st.builds(
        lambda role, state, arm, compat, peers, usable, queued, number: Engine(
            EngineRoute(f"e{number}", "http://x", role, state=state, arm=arm, compat=compat, peers=peers),
            usable=usable,
            load=queued,
        ),
        st.sampled_from(("prefill", "decode", "mixed")),
        st.sampled_from(("ready", "ready", "draining")),
        st.sampled_from(("main", "main", "canary")),
        st.sampled_from(("", "1")),
        st.sampled_from(((), (), ("e7",), ("e8", "e9"))),
        st.sampled_from((True, True, False)),
        st.builds(Load, prefill_tokens=st.integers(0, 50_000), decode_tokens=st.integers(0, 5000)),
        st.integers(0, 99),
    ),
    max_size=8,
    unique_by=lambda each: each.route.id,
)


@settings(max_examples=300, deadline=None)
@given(
    ENGINES,
    st.sampled_from(("prefill", "decode", "whole")),
    st.integers(0, 2**64 - 1),
    st.integers(0, 99),
    st.builds(EngineRoute, st.sampled_from(("e7", "e8")), st.just("http://x"), st.just("prefill"), compat=st.just("1")),
)
def test_only_fitting_engines_are_chosen_and_else_each_is_refused_for_a_reason(
    engines: list[Engine], leg: Any, session: int, failed: int, prefill: EngineRoute
) -> None:
    exclude = {f"e{failed}"}
    source = prefill if leg == "decode" else None
    choice = routing.choose(leg, engines, request(session=session), exclude=exclude, prefill=source)
    if choice.engine is None:
        assert [id for id, _ in choice.rejected] == [each.route.id for each in engines]
        assert all(why for _, why in choice.rejected)
        return
    route = choice.engine.route
    roles = {"prefill": ("prefill",), "decode": ("decode",), "whole": ("mixed", "decode", "prefill")}[leg]
    listed = [each.route for each in engines if (each.route.state, each.route.arm) == ("ready", "main")]
    moved_on = leg == "decode" and not any(each.role == "decode" and each.id != prefill.id for each in listed)
    assert (route.role in roles and route.arm == "main") or moved_on
    assert (route.state, choice.engine.usable) == ("ready", True)
    assert route.id not in exclude
    assert leg != "decode" or may_pair(prefill, route)
    assert leg != "prefill" or any(may_pair(route, each) for each in listed if each.role == "decode")
    assert all(score >= choice.estimate.score - routing.TIE_S for _, score in choice.others)
    assert route.id not in dict(choice.others)
