"""The layouts that suffice for a model, and the splits of what it has: the planner's search. Pure.

Sizes are found role by role: the fewest answering engines that keep the ITL target, then the fewest prefill engines with
which the first token is in time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

from controlplane.core.capacity import TAIL, Answering, Load, met
from controlplane.core.planner_inputs import Demand
from controlplane.core.planner_layouts import BUSY_MOST, MOST_ENGINES, Layouted, Layouts, Option, Pools, sides
from controlplane.core.planner_types import ModelNow, PoolNow, PoolPlan
from controlplane.core.protocol import Mode, Role
from controlplane.core.workload import Mix

NOT_KEPT = 3
"""Worse than any number of missed targets that are out of reach."""
FEW, LINKS = 4, 2
BEST = 8
"""Splits of one mode that are looked at closely."""
FEW_SPLITS, LOOKED_AT = 64, 16
"""Of a pair of options: so many are all told; of more, so many are looked at in each turn of the search for their best."""


class Search(Layouts):
    """Sizes of one model under one mix."""

    def smallest(self, mode: Mode, rate: float, room: Mapping[str, int]) -> Iterator[Layouted]:
        """For each pair of options the smallest layout that keeps the targets on `room` GPUs by kind."""
        for answer in self.options("mixed" if mode == "monolithic" else "decode"):
            most = min(answer.ceiling, min(self.most_gpus, room.get(answer.gpu, 0)) // answer.tensor_parallel)

            def enough(count: int, answer: Option = answer) -> bool:
                return self._answers(mode, answer, count, rate)

            engines = _fewest(answer.floor, most, enough)
            if engines is None:
                continue
            if mode == "monolithic":
                pools: tuple[PoolPlan, ...] = (answer.plan(engines),)
                yield Layouted(mode, pools, self.estimate(mode, pools, rate))
                continue
            # With few answering engines their links may hold prompts up: one or two more can save several prefill engines.
            last = min(most, engines + LINKS) if engines <= FEW else engines
            found = [
                layout
                for count in range(engines, last + 1)
                for layout in self._with_prefill(mode, answer.plan(count), rate, room)
            ]
            yield from found or self._widened(mode, answer, last, most, rate, room)

    def _widened(
        self, mode: Mode, answer: Option, engines: int, most: int, rate: float, room: Mapping[str, int]
    ) -> list[Layouted]:
        """With more than `engines` answering engines: the links of so few hold prompts up, however many prefill engines."""

        def layouts(count: int) -> list[Layouted]:
            return list(self._with_prefill(mode, answer.plan(count), rate, room))

        reach = engines
        while reach < most:
            reach = min(2 * reach, most)
            if layouts(reach):
                enough = _fewest(engines + 1, reach, lambda count: bool(layouts(count)))
                return layouts(enough) if enough else []
        return []

    def _with_prefill(self, mode: Mode, answer: PoolPlan, rate: float, room: Mapping[str, int]) -> Iterator[Layouted]:
        for prefill in self.options("prefill"):
            left = room.get(prefill.gpu, 0) - (answer.gpus if answer.gpu == prefill.gpu else 0)
            left = min(left, self.most_gpus - answer.gpus)
            most = min(prefill.ceiling, left // prefill.tensor_parallel)

            def enough(count: int, prefill: Option = prefill) -> bool:
                return self._enough(mode, answer, prefill.plan(count), rate)

            engines = _fewest(prefill.floor, most, enough)
            if engines is not None:
                pools = prefill.plan(engines), answer
                yield Layouted(mode, pools, self.estimate(mode, pools, rate))

    def _enough(self, mode: Mode, answer: PoolPlan, prefill: PoolPlan | None, rate: float) -> bool:
        """`keeps` of such a layout."""
        if not self.mix.cells or rate <= 0:
            return True
        found = met(*self._question(mode, answer, prefill, rate))
        lost = self.out_of_reach(mode)
        if found.busy > BUSY_MOST or not ("ttft" in lost or found.ttft) or not ("itl" in lost or found.itl):
            return False
        if not self.traffic or "ttft" in lost:
            return True
        return self._course(mode, answer, prefill, rate).later_than(self.model.slo.ttft_ms / 1e3) <= TAIL

    def _answers(self, mode: Mode, option: Option, engines: int, rate: float) -> bool:
        """Whether so many answering engines keep what is theirs: ITL, and of monolithic serving TTFT too."""
        if mode == "monolithic":
            return self._enough(mode, option.plan(engines), None, rate)
        if not self.mix.cells or rate <= 0:
            return True
        speed = self.speed(option.gpu, option.tensor_parallel)
        pool = Answering(Load(rate, self.mix, self.burst), speed, engines, self._local(mode))
        if pool.saturated or pool.busy > BUSY_MOST:
            return False
        itl_s = self.model.slo.itl_ms / 1e3
        lost = "itl" in self.out_of_reach(mode)
        if not (lost or pool.itl_p99_s <= itl_s) or pool.slot.longer_than(self.model.slo.ttft_ms / 2e3) >= TAIL / 2:
            return False
        return lost or not self.traffic or self._quick(mode, option.plan(engines), rate)

    def _quick(self, mode: Mode, answer: PoolPlan, rate: float) -> bool:
        """Whether answers are, however many prefill engines send them on."""
        prefill = next(iter(self.options("prefill")), None)
        if prefill is None:
            return True
        course = self._course(mode, answer, prefill.plan(1), rate, MOST_ENGINES)
        return course.slower_than(self.model.slo.itl_ms / 1e3) <= TAIL

    def splits(
        self, mode: Mode, rate: float, room: Mapping[str, int], allowed: Callable[[Pools], bool] = lambda pools: True
    ) -> list[Layouted]:
        """The splits that fill `room` (GPUs by kind), by pairs of options, floors and ceilings kept, of many only those near
        the best; under traffic the BEST of them, by requests in time."""
        in_time = cache(partial(self._in_time, mode))

        def badness(pools: Pools) -> tuple[float, ...]:
            found = self._told(self._given(mode, *sides(pools), rate), mode, 0, 0.0, rate)
            fewest = min(pool.engines for pool in pools)
            return -in_time(pools), math.isinf(found.ttft_p99_ms), found.strain, -fewest

        found: dict[Pools, None] = {}
        for splits in self._filling(mode, room):
            found |= dict.fromkeys(near_best([pools for pools in splits if allowed(pools)], badness))
        kept = list(found)
        if self.traffic and len(kept) > BEST:
            kept = sorted(kept, key=lambda pools: -in_time(pools))[:BEST]
        return [Layouted(mode, pools, self.estimate(mode, pools, rate)) for pools in kept]

    def _filling(self, mode: Mode, room: Mapping[str, int]) -> Iterator[list[Pools]]:
        """By pair of options, fewer prefill engines first."""
        if mode == "monolithic":
            for option in self.options("mixed"):
                engines = min(option.ceiling, room.get(option.gpu, 0) // option.tensor_parallel)
                if engines >= option.floor:
                    yield [(option.plan(engines),)]
            return
        for answer in self.options("decode"):
            for prefill in self.options("prefill"):
                yield list(_filled(answer, prefill, room))


def near_best(splits: Sequence[Pools], badness: Callable[[Pools], tuple[float, ...]]) -> Sequence[Pools]:
    """All of up to FEW_SPLITS in their order. Of more those around the one with the least badness: some evenly spread ones
    are looked at, then as many between the neighbours of the best of them. A split with too few prefill engines is the worse
    the fewer they are, and one with too few answering engines likewise."""
    first, end = 0, len(splits)
    while end - first > FEW_SPLITS:
        places = [first + (end - 1 - first) * number // (LOOKED_AT - 1) for number in range(LOOKED_AT)]
        best = min(range(LOOKED_AT), key=lambda number: badness(splits[places[number]]))
        first, end = places[max(0, best - 1)], places[min(LOOKED_AT - 1, best + 1)] + 1
    return splits[first:end]


def _filled(answer: Option, prefill: Option, room: Mapping[str, int]) -> Iterator[Pools]:
    shared = answer.gpu == prefill.gpu
    for engines in range(prefill.floor, min(prefill.ceiling, room.get(prefill.gpu, 0) // prefill.tensor_parallel) + 1):
        left = room.get(answer.gpu, 0) - (engines * prefill.tensor_parallel if shared else 0)
        answering = min(answer.ceiling, left // answer.tensor_parallel)
        if answering < answer.floor:
            if shared:
                return
            continue
        yield prefill.plan(engines), answer.plan(answering)


def search_for(model: ModelNow, load: Demand, prices: Mapping[str, float]) -> Search:
    """Of the model under its demand."""
    inputs = load.inputs
    return Search(model, inputs.mix, inputs.burst, load.corrections, prices, traffic=load.traffic)


def present(pools: Sequence[PoolNow]) -> tuple[PoolPlan, ...]:
    """The pools as they are."""
    return tuple(PoolPlan(pool.role, pool.engines, pool.tensor_parallel, pool.gpu) for pool in pools)


def needed_gpus(model: ModelNow, rate: float, mix: Mix, burst: float = 1.0) -> int | None:
    """The fewest GPUs with which the model keeps its targets in its mode, whatever there are; None: it never does."""
    search = Search(model, mix, burst)
    room = {kind: MOST_ENGINES for pool in model.pools for kind in (pool.gpu, *pool.kinds)}
    return min((each.estimate.gpus for each in search.smallest(model.mode, rate, room)), default=None)


def rank(layout: Layouted, search: Search) -> tuple[float, float, float, float]:
    """Small is good: targets kept, then the lower cost, then more requests in time, then the lower strain. Where targets are
    missed, more requests in time come first."""
    found = layout.estimate
    share = round(found.attained if layout.in_time is None else layout.in_time, 2)
    if search.keeps(layout.mode, found):
        return float(missed(layout, search)), round(found.cost_per_hour, 6), -share, found.strain
    return float(NOT_KEPT), -share, 0.0, found.strain


def missed(layout: Layouted, search: Search) -> int:
    """How many of both targets it misses."""
    slo, found = search.model.slo, layout.estimate
    return (found.ttft_p99_ms > slo.ttft_ms) + (found.itl_p99_ms > slo.itl_ms)


def spread_room(model: ModelNow, spare: Mapping[str, int]) -> dict[str, int]:
    """GPUs by kind that the model has or may take."""
    room = dict(spare)
    for pool in model.pools:
        room[pool.gpu] = room.get(pool.gpu, 0) + pool.gpus
    return room


def _fewest(least: int, most: int, enough: Callable[[int], bool]) -> int | None:
    """The smallest count from `least` to `most` that is enough, if more never are worse; None: not even `most`."""
    if most < least or not enough(most):
        return None
    low, high = least, most
    step = 1
    while low < high and step < most:
        probe = min(least + step - 1, high)
        if enough(probe):
            high = probe
            break
        low, step = probe + 1, step * 2
    while low < high:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle + 1
    return high


def with_counts(pools: Sequence[PoolPlan], counts: Mapping[Role, int]) -> tuple[PoolPlan, ...]:
    """The pools with other numbers of engines."""
    return tuple(replace(pool, engines=counts.get(pool.role, pool.engines)) for pool in pools)
