"""What processes and hosts of routers tell each other: memory shared by processes, sums of metrics, loads of other hosts."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.core import ratelimit, routing
from controlplane.core.codec import WrongShape, decode, encode
from controlplane.core.kvindex import Holder, KvIndex
from controlplane.core.names import FACT_TTL_S
from controlplane.core.protocol import EngineRoute, Reservations
from controlplane.router import metrics_sum
from controlplane.router.engines import Engine
from controlplane.router.limits import Limits
from controlplane.router.peers import SAME_S, STALE_S, Peers
from controlplane.router.shared import PAGE_BYTES, RING_WORDS, Segment, entries
from controlplane.router.siblings import Siblings


def engine(id: str = "e1", incarnation: int = 1) -> Engine:
    route = EngineRoute(id, f"http://127.0.0.1:{9000 + incarnation}", "mixed", incarnation=incarnation)
    return Engine(route, "m", routing.Rates(), Holder(KvIndex(1000), id), "", Limits())


def together(number: int, *ids: str) -> tuple[Segment, list[Siblings], list[list[Engine]]]:
    """So many processes of a router, each with engines of its own making."""
    segment = Segment.create(number)
    all_siblings = [Siblings(segment, at) for at in range(number)]
    engines = [[engine(id) for id in ids] for _ in range(number)]
    for siblings, own in zip(all_siblings, engines, strict=True):
        siblings.bind(own)
    return segment, all_siblings, engines


def look(siblings: Siblings) -> None:
    siblings._read_at = 0.0  # not a moment later, but now
    siblings.refresh()


# --- loads ---


def test_each_process_sees_what_all_have_reserved_and_tells_only_its_own() -> None:
    _, (a, b, c), ((one_a,), (one_b,), (one_c,)) = together(3, "e1")
    kept = one_a.load.reserve(100, 10, 110)
    one_b.load.reserve(5, 1, 6)
    look(c)
    assert (one_c.load.in_flight, one_c.load.prefill_tokens, one_c.load.decode_tokens, one_c.load.kv_tokens) == (
        2,
        105,
        11,
        116,
    )
    assert one_c.load.own_in_flight == 0
    look(a)
    look(b)
    assert one_a.load.in_flight == one_b.load.in_flight == 2
    assert one_a.load.own == (1, 100, 10, 110)
    kept.prefill_done()
    look(b)
    assert one_b.load.prefill_tokens == 5
    kept.release()
    kept.release()
    look(b)
    assert one_b.load.own == (one_b.load.in_flight, *one_b.load.own[1:]) == (1, 5, 1, 6)


def test_what_a_dead_process_had_reserved_is_gone_and_its_successor_begins_with_nothing() -> None:
    segment, (_, b), ((one_a,), (one_b,)) = together(2, "e1")
    one_a.load.reserve(100, 10, 110)
    look(b)
    assert one_b.load.in_flight == 1
    segment.slots[0].process_died()
    look(b)
    assert one_b.load.in_flight == one_b.load.prefill_tokens == 0
    again, new = Siblings(segment, 0), engine()
    again.bind([new])
    look(b)
    assert one_b.load.in_flight == 0
    new.load.reserve(7, 0)
    look(b)
    assert one_b.load.prefill_tokens == 7


def test_another_start_of_an_engine_is_another_engine_and_columns_are_used_again() -> None:
    _, (a, b), ((one_a,), (one_b,)) = together(2, "e1")
    one_a.load.reserve(100, 10)
    new_a, new_b = engine("e1", 2), engine("e1", 2)
    a.bind([one_a, new_a])
    b.bind([new_b])
    look(b)
    assert new_b.load.in_flight == one_b.load.in_flight == 0
    new_a.load.reserve(3, 0)
    a.bind([new_a])
    look(b)
    assert new_b.load.prefill_tokens == 3


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.booleans()), max_size=60), st.randoms())
@settings(max_examples=50, deadline=None)
def test_whatever_is_reserved_released_and_bound_all_agree_in_the_end(
    steps: list[tuple[int, int, bool]], chance: random.Random
) -> None:
    _, processes, engines = together(3, "e0", "e1", "e2", "e3")
    open_legs: list[routing.Reservation] = []
    for process, number, opens in steps:
        if opens:
            open_legs.append(engines[process][number].load.reserve(number + 1, 2, 3))
        elif open_legs:
            open_legs.pop(chance.randrange(len(open_legs))).release()
        else:
            chance.shuffle(engines[process])
            processes[process].bind(engines[process])
            engines[process].sort(key=lambda each: each.route.id)
    for siblings in processes:
        look(siblings)
    for number in range(4):
        sums = {
            (each.load.in_flight, each.load.prefill_tokens, each.load.kv_tokens) for each in (own[number] for own in engines)
        }
        assert len(sums) == 1
    assert sum(engines[0][number].load.in_flight for number in range(4)) == len(open_legs)


# --- prefixes ---


def test_prefixes_are_read_once_and_those_overwritten_are_skipped() -> None:
    slot = Segment.create(1).slots[0]
    seen, told = 0, []
    for number in range(1, 3 * RING_WORDS // 1000):
        slot.tell(number, range(900))
        if number % 7 == 0:
            seen, pieces = slot.told(seen)
            told += [key for words in pieces for key, hashes in entries(words) if hashes == list(range(900))]
    assert told == list(range(1, 7 * (number // 7) + 1))
    for _ in range(RING_WORDS // 900 + 5):
        slot.tell(1, range(900))
    assert slot.told(seen)[1] == []


def test_a_new_process_learns_what_was_sent_before_it() -> None:
    segment, (a, _), ((one_a,), _) = together(2, "e1")
    a.told(one_a, [11, 12, 13])
    index = KvIndex(1000)
    route = EngineRoute("e1", "http://127.0.0.1:9001", "mixed")
    new = Engine(route, "m", routing.Rates(), Holder(index, "e1"), "", Limits())
    index.enter(new.holder)
    Siblings(segment, 1).bind([new])
    assert index.match([11, 12, 13]) == {new.holder: 3}


# --- limits ---


def test_the_windows_of_teams_add_up_and_outlive_their_process() -> None:
    segment = Segment.create(2)
    a, b = Siblings(segment, 0), Siblings(segment, 1)
    for each in (a, b):
        each.keep(frozenset({"x", "y"}))
    ratelimit.add(a.own("x"), 100, 3, 30)
    assert [ratelimit.used(cells, 100) for cells in b.elsewhere("x")] == [(3, 30)]
    assert [ratelimit.used(cells, 100) for cells in b.elsewhere("y")] == [(0, 0)]
    a.keep(frozenset({"x", "z"}))
    assert [ratelimit.used(cells, 100) for cells in b.elsewhere("x")] == [(3, 30)]
    assert b.elsewhere("y") == []
    segment.slots[0].process_died()
    again = Siblings(segment, 0)
    again.keep(frozenset({"z", "x"}))
    assert ratelimit.used(again.own("x"), 100) == (3, 30)
    assert [ratelimit.used(cells, 100) for cells in b.elsewhere("x")] == [(3, 30)]


# --- metrics ---

PAGE = b"""# HELP a_total Things.
# TYPE a_total counter
a_total{x="1"} 3
# HELP b Now.
# TYPE b gauge
b 2
# HELP twinpool_router_engine_usable 0 while set aside.
# TYPE twinpool_router_engine_usable gauge
twinpool_router_engine_usable{engine="e"} %d
"""


def test_pages_add_up_except_for_what_the_worst_decides() -> None:
    text = metrics_sum.total(
        [PAGE % 1, PAGE % 0, b'# HELP a_total Things.\n# TYPE a_total counter\na_total{x="2"} 1\n']
    ).decode()
    assert text.splitlines() == [
        "# HELP a_total Things.", "# TYPE a_total counter", 'a_total{x="1"} 6', 'a_total{x="2"} 1', "# HELP b Now.",
        "# TYPE b gauge", "b 4", "# HELP twinpool_router_engine_usable 0 while set aside.",
        "# TYPE twinpool_router_engine_usable gauge", 'twinpool_router_engine_usable{engine="e"} 0',
    ]  # fmt: skip
    assert metrics_sum.counters(PAGE % 1).decode().splitlines()[2:] == ['a_total{x="1"} 3']


def test_a_page_too_large_leaves_the_old_one() -> None:
    slot = Segment.create(1).slots[0]
    assert slot.publish(b"old")
    assert not slot.publish(b"x" * (PAGE_BYTES + 1))
    assert slot.page() == b"old"


# --- other hosts ---


def say(id: str, seq: int, host: str = "", in_flight: int = 0, **fields: object) -> Reservations:
    loads = {"e1#1": (in_flight, 10 * in_flight, in_flight, in_flight, 50)}
    return Reservations(id, host or id, "boot", seq, loads, **fields)  # type: ignore[arg-type]


def test_loads_of_other_hosts_count_while_they_are_fresh() -> None:
    peers, one = Peers("a.1", "a", "boot"), engine()
    one.load.reserve(1, 1)
    now = 100.0
    peers.hear(say("a.1", 1), now)
    peers.hear(say("a.2", 1, "a", in_flight=9), now)
    for id, flights in (("b.1", 2), ("b.2", 3), ("c", 4)):
        peers.hear(say(id, 5, id[0], flights), now)
    peers.hear(say("c", 4, in_flight=400), now)
    peers.apply([one], now)
    assert (one.load.in_flight, one.load.prefill_tokens, one.load.own_in_flight) == (10, 91, 1)
    assert (peers.hosts, peers.stale, one.load.produced_on_hosts) == (3, False, 150)
    later = now + STALE_S
    peers.hear(say("a.1", 2), later)
    peers.hear(say("c", 6, in_flight=1), later)
    peers.apply([one], later)
    assert (one.load.in_flight, peers.hosts, peers.stale) == (2, 3, True)
    gone = now + FACT_TTL_S
    peers.hear(say("a.1", 3), gone)
    peers.hear(say("c", 7, leaving=True), gone)
    peers.apply([one], gone)
    assert (one.load.in_flight, peers.hosts, peers.stale) == (1, 1, False)


def test_routers_that_cannot_hear_even_themselves_do_not_take_others_for_gone() -> None:
    peers = Peers("a", "a", "boot")
    peers.hear(say("a", 1), 100.0)
    peers.hear(say("b", 1), 100.0)
    peers.apply([], 100.0 + 100 * FACT_TTL_S)
    assert (peers.hosts, peers.stale) == (2, True)


def test_a_router_tells_changes_at_once_and_the_same_now_and_then() -> None:
    peers, one = Peers("a", "a", "boot"), engine()
    assert peers.message([one], 1.0) is not None
    assert peers.message([one], 1.1) is None
    one.load.reserve(1, 2, 3)
    told = peers.message([one], 1.2)
    assert told is not None
    assert told.loads == {"e1#1": (1, 1, 2, 3, 0)}
    assert peers.message([one], 1.2 + SAME_S) is not None
    assert decode(Reservations, encode(told)) == told


@pytest.mark.parametrize("counts", [[1], [1, 2, 3, 4, -1], [1, 2, 3, 4, 1 << 60], [1, 2, 3, 4, 5.5]])
def test_odd_loads_are_refused(counts: list[float]) -> None:
    with pytest.raises(WrongShape):
        decode(Reservations, {"router": "a", "host": "a", "boot": "b", "seq": 1, "loads": {"e": counts}})


def test_a_blind_choice_is_the_better_of_two_that_each_session_draws_for_itself() -> None:
    engines = [engine(f"e{number}") for number in range(8)]
    engines[0].load.reserve(0, 10**6)
    taken = Counter(
        routing.choose("whole", engines, routing.Request(10, 10, session, blind=True)).engine.route.id  # type: ignore[union-attr]
        for session in (routing.mix(number, 7) for number in range(800))
    )
    assert taken["e0"] == 0
    assert max(taken.values()) < 2 * min(taken[f"e{number}"] for number in range(1, 8))
    free = routing.choose("whole", engines[1:], routing.Request(10, 10, 5)).engine
    assert free is routing.choose("whole", engines[1:], routing.Request(10, 10, 5, blind=True)).engine
