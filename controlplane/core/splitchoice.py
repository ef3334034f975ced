"""Engines combined to layouts of one pool and of two, and ranked. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from controlplane.core.layout import monolithic, split
from controlplane.core.splitengines import Candidates, Engine, Question
from controlplane.core.splitplan import Objective, Plan


class Choice:
    """Combines engines to layouts and ranks them. `layouts` counts those that were ranked."""

    def __init__(self, question: Question, objective: Objective, prices: Mapping[str, float]) -> None:
        self.gpus, self.lengths, self.sizes = question.gpus, question.lengths, question.grid.split_sizes
        self.objective, self.prices = objective, prices
        self.layouts = 0

    def best(self, plans: Iterable[Plan], keep: int) -> tuple[Plan, ...]:
        return tuple(sorted(plans, key=self._rank)[:keep])

    def ratio(self, aggregated: Plan, disaggregated: Plan) -> float:
        if self.objective == "cost":
            return aggregated.dollars_per_million_tokens / disaggregated.dollars_per_million_tokens
        return disaggregated.tokens_per_second / aggregated.tokens_per_second

    def _rank(self, plan: Plan) -> tuple[float, float, float]:
        """Small is good. Equal but for rounding: the smaller (by cost: the larger) layout, then the quicker one."""
        if self.objective == "cost":
            return _rounded(plan.dollars_per_million_tokens), -plan.tokens_per_second, plan.tpot_s
        return -_rounded(plan.tokens_per_second), plan.layout.gpus, plan.tpot_s

    def one_pool(self, found: Candidates) -> Iterator[Plan]:
        """The best engine of each degree, as often as there is room."""
        for engine in _fastest(found.engines):
            count = self.gpus // engine.tensor_parallel
            self.layouts += 1
            rate = engine.requests_per_second * count
            yield Plan(
                layout=monolithic(count, engine.tensor_parallel, engine.gpu.name),
                batches=(engine.batch,),
                chunk=engine.chunk,
                ttft_s=engine.ttft_s,
                tpot_s=engine.tpot_s,
                requests_per_second=rate,
                tokens_per_second=rate * (self.lengths.output - 1),
                dollars_per_hour=self.prices[engine.gpu.name] * count * engine.tensor_parallel,
            )

    def two_pools(self, prefill: Candidates, decode: Candidates) -> Iterator[Plan]:
        """The best numbers of engines for each pair of degrees."""
        for first in prefill.engines:
            for second in _fastest(decode.engines):
                counts = min(self._counts(first, second), default=None)
                if counts:
                    yield self._pair(first, second, *counts[-2:], decode)

    def _counts(self, first: Engine, second: Engine) -> Iterator[tuple[float, float, int, int]]:
        """Numbers of prefill and decode engines worth a look, each behind its rank."""
        price = self.prices[first.gpu.name] * first.tensor_parallel, self.prices[second.gpu.name] * second.tensor_parallel
        for decodes in range(1, (self.gpus - first.tensor_parallel) // second.tensor_parallel + 1):
            for prefills in self._prefills(first, second, decodes):
                self.layouts += 1
                rate = min(prefills * first.requests_per_second, decodes * second.requests_per_second)
                if self.objective == "cost":
                    yield _rounded((prefills * price[0] + decodes * price[1]) / rate), -rate, prefills, decodes
                else:
                    used = prefills * first.tensor_parallel + decodes * second.tensor_parallel
                    yield -_rounded(rate), used, prefills, decodes

    def _prefills(self, first: Engine, second: Engine, decodes: int) -> set[int]:
        """Numbers of prefill engines to try beside `decodes` engines: just below and just above their rate, or all there is
        room for (no other can be better); where sizes are given, those that fill one."""
        used = decodes * second.tensor_parallel
        if self.sizes is not None:
            left = [size - used for size in self.sizes if used < size <= self.gpus]
            return {gpus // first.tensor_parallel for gpus in left if gpus % first.tensor_parallel == 0}
        room = (self.gpus - used) // first.tensor_parallel
        matched = decodes * second.requests_per_second / first.requests_per_second
        return {min(room, max(1, math.floor(matched))), min(room, math.ceil(matched))}

    def _pair(self, first: Engine, second: Engine, prefills: int, decodes: int, decode: Candidates) -> Plan:
        rate = min(prefills * first.requests_per_second, decodes * second.requests_per_second)
        second = _smallest_batch(decode.engines, second, rate / decodes)
        layout = split((prefills, first.tensor_parallel, first.gpu.name), (decodes, second.tensor_parallel, second.gpu.name))
        return Plan(
            layout=layout,
            batches=(first.batch, second.batch),
            chunk=0,
            ttft_s=first.ttft_s,
            tpot_s=second.tpot_s,
            requests_per_second=rate,
            tokens_per_second=rate * self.lengths.output,
            dollars_per_hour=sum(self.prices[kind] * count for kind, count in layout.gpus_by_kind.items()),
        )


def _fastest(engines: Iterable[Engine]) -> list[Engine]:
    """The engine of the highest rate, of each degree."""
    best: dict[int, Engine] = {}
    for engine in engines:
        held = best.get(engine.tensor_parallel)
        if held is None or engine.requests_per_second > held.requests_per_second:
            best[engine.tensor_parallel] = engine
    return list(best.values())


def _smallest_batch(engines: Iterable[Engine], like: Engine, rate: float) -> Engine:
    """Of `like`'s degree, the quickest engine that keeps up with `rate`: a prefill-bound split needs no larger batch."""
    enough = rate * (1 - 1e-9)
    fitting = [e for e in engines if e.tensor_parallel == like.tensor_parallel and e.requests_per_second >= enough]
    return min(fitting, key=lambda engine: engine.batch)


def _rounded(value: float) -> float:
    """To nine digits, so that multiples of a layout tie."""
    return float(f"{value:.9g}")
