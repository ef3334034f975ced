"""The forecast's histogram of token gaps and its counted blocks."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.blocks import BlockPool
from controlplane.core.forecast import Arrival, Gaps
from controlplane.core.forecast_blocks import BlockCounts, Known
from controlplane.core.forecast_engine import Leg
from controlplane.core.forecast_network import Network
from controlplane.core.links import SharedLink


def test_a_run_of_steps_is_entered_as_its_tokens_one_by_one_would_be() -> None:
    run, single = Gaps(), Gaps()
    run.add_run(0.020, 0.021, steps=300, sequences=7)
    for step in range(300):
        single.add(0.020 + 0.001 * step / 299, 7)
    assert run.count == single.count == 2100
    assert run.total_s == pytest.approx(single.total_s)
    for q in (0.01, 0.25, 0.5, 0.9, 0.99):
        assert run.quantile(q) == pytest.approx(single.quantile(q), rel=0.005)  # 1/16 of the growth, and a bucket


def test_quantiles_are_right_within_a_twentieth_of_a_percent() -> None:
    dice, gaps = random.Random(1), Gaps()
    values = sorted(dice.lognormvariate(-4, 1) for _ in range(5000))
    for value in values:
        gaps.add(value, 1)
    for q in (0.001, 0.5, 0.99, 1.0):
        assert gaps.quantile(q) == pytest.approx(values[max(0, round(q * 5000) - 1)], rel=0.0006)


def test_merged_gaps_are_those_of_both() -> None:
    one, two = Gaps(), Gaps()
    one.add(0.1, 99)
    two.add(0.4, 1)
    one.merge(two)
    assert one.quantile(0.5) == pytest.approx(0.1, rel=0.001)
    assert one.quantile(1.0) == pytest.approx(0.4, rel=0.001)
    assert one.share_within(0.2) == 0.99


def test_gaps_of_nothing_have_no_quantile() -> None:
    assert Gaps().share_within(0.1) == 1.0
    with pytest.raises(ValueError, match="no token"):
        Gaps().quantile(0.5)


actions = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(0, 8), st.booleans()), max_size=60)


@given(blocks=st.integers(1, 25), actions=actions)
def test_counted_blocks_behave_as_the_block_pool(blocks: int, actions: list[tuple[int, int, int, bool]]) -> None:
    """Owners come with a prefix of one of four families, take what they lack, and leave in any order."""
    pool, counts = BlockPool(blocks), BlockCounts(blocks, prefix_caching=True)
    owners: list[tuple[list[int], int, list[Known]]] = []
    for family, wanted, keyed, leave in actions:
        if leave and owners:
            ids, private, known = owners.pop(wanted % len(owners))
            pool.give_back(ids)
            counts.give_back(private, known)
        else:
            keys = [family * 100 + index for index in range(min(keyed, wanted))]
            hit, also = pool.hit(keys, len(keys)), counts.hit(keys, len(keys))
            assert len(hit) == len(also) == counts.hits(keys, len(keys))
            assert pool.idle_among(hit) == counts.idle_among(also)
            if wanted - len(hit) + pool.idle_among(hit) > pool.free:
                continue
            pool.share(hit)
            counts.share(also)
            taken = pool.take(wanted - len(hit))
            assert taken is not None
            counts.take(wanted - len(hit))
            ids = hit + taken
            for index in range(len(hit), len(keys)):
                pool.remember(ids[index], keys[index])
            also += counts.remember(keys[len(hit) :])
            owners.append((ids, wanted - len(also), also))
        assert counts.free == pool.free


class PairsOfLinks:
    """Transfers as the simulated engines run them: the receiver's link, told the sender's share whenever that changes."""

    def __init__(self, rates: list[float]) -> None:
        self.rates = rates
        self.links = [SharedLink[int](rate) for rate in rates]
        self.sending: list[dict[int, int]] = [{} for _ in rates]

    def start(self, now: float, number: int, source: int, destination: int, size: float) -> None:
        self.sending[source][number] = destination
        self.links[destination].start(now, number, size)
        self._tell(now, source)

    def next_end(self) -> tuple[float, int, int]:
        ends = ((link.next_end(), destination) for destination, link in enumerate(self.links))
        return min(((end[0], end[1], destination) for end, destination in ends if end), default=(math.inf, 0, 0))

    def stop(self, now: float, number: int, destination: int) -> None:
        self.links[destination].stop(now, number)
        for source, sent in enumerate(self.sending):
            if sent.pop(number, None) is not None:
                self._tell(now, source)

    def _tell(self, now: float, source: int) -> None:
        for number, destination in self.sending[source].items():
            self.links[destination].limit(now, number, self.rates[source] / len(self.sending[source]))


@given(
    rates=st.lists(st.floats(1, 10), min_size=4, max_size=4),
    transfers=st.lists(
        st.tuples(st.floats(0, 3), st.integers(0, 1), st.integers(2, 3), st.floats(0.1, 50)), min_size=1, max_size=12
    ),
)
def test_transfers_end_when_they_would_on_shared_links(
    rates: list[float], transfers: list[tuple[float, int, int, float]]
) -> None:
    network, links = Network(rates), PairsOfLinks(rates)
    ends: dict[int, float] = {}
    expected: dict[int, float] = {}
    now, starts = 0.0, []
    for number, (gap, source, destination, size) in enumerate(transfers):
        now += gap
        starts.append((now, number, source, destination, size))
    for at, number, source, destination, size in [*starts, (math.inf, 0, 0, 0, 0.0)]:
        while network.next_end_s < at:
            end = network.next_end_s
            ends[network.pop(end)[0].number] = end
        while links.next_end()[0] < at:
            end, ended, where = links.next_end()
            links.stop(end, ended, where)
            expected[ended] = end
        if at < math.inf:
            network.start(at, Leg(number, Arrival(at, 1, 1), (), 0), source, destination, size)
            links.start(at, number, source, destination, size)
    assert ends == {number: pytest.approx(end, rel=1e-6) for number, end in expected.items()}
