"""The best layout of each mode on up to N GPUs under limits of TTFT and TPOT, and which mode wins by how much. Pure.

All engines that keep the limits (core/splitengines) are combined: one pool of equal engines that serve whole requests, or a
prefill and a decode pool of any sizes that together have at most N GPUs. The rate of two pools is that of the slower one.

With one kind of GPU the layout with the most output tokens/s on N GPUs wins (idle ones count too). With two kinds
a GPU is no measure: the layout with the least cost per token wins, and `ratio` compares costs.

These are steady means by the factors of core/comparison: no queue, no KV transfer. The forecast has both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from controlplane.core.comparison import VLLM, Conventions, Lengths
from controlplane.core.gpus import Gpu
from controlplane.core.layout import monolithic, split
from controlplane.core.modelconfig import Shape
from controlplane.core.perf import PhaseModel
from controlplane.core.splitengines import REFERENCE_GRID, Candidates, Engine, Grid, Limits, Question, candidates, ms
from controlplane.core.splitplan import NoLayout, Objective, Plan, SearchResult

__all__ = ["MAX_GPUS", "REFERENCE_GRID", "Grid", "Limits", "NoLayout", "Plan", "SearchResult", "search"]

MAX_GPUS = 4096


def search(
    shape: Shape,
    gpus: int,
    lengths: Lengths,
    limits: Limits,
    gpu: Gpu,
    *,
    decode_gpu: Gpu | None = None,
    kv_dtype: str | None = None,
    conventions: Conventions = VLLM,
    grid: Grid | None = None,
    prices: Mapping[str, float] | None = None,
    keep: int = 5,
) -> SearchResult:
    """The best layouts of both modes for a model on up to `gpus` GPUs.

    `gpu` is the kind of all engines, with `decode_gpu` that of prefill engines only; one pool is then tried on both kinds.
    `prices`: US$ per GPU-hour by kind, where the table's list price is not meant. `keep`: layouts per mode.
    Raises ValueError for counts out of range, NoLayout when neither mode keeps the limits.
    """
    if not 1 <= gpus <= MAX_GPUS:
        raise ValueError(f"GPUs must be 1 to {MAX_GPUS:,}, got {gpus}")
    decode_gpu = decode_gpu or gpu
    kinds = (gpu,) if decode_gpu == gpu else (gpu, decode_gpu)
    question = Question(shape, lengths, limits, conventions, grid or Grid(), gpus, kv_dtype)
    mixed = [candidates(question, "mixed", kind) for kind in kinds]
    prefill, decode = candidates(question, "prefill", gpu), candidates(question, "decode", decode_gpu)
    choice = _Choice(question, "cost" if len(kinds) > 1 else "throughput", _prices(kinds, prices or {}))
    aggregated = choice.best((plan for found in mixed for plan in choice.one_pool(found)), keep)
    disaggregated = choice.best(choice.two_pools(prefill, decode), keep)
    missing = _missing(question, mixed, prefill, decode, bool(aggregated), bool(disaggregated))
    if not aggregated and not disaggregated:
        reasons = "; ".join(f"{mode}: {reason}" for mode, reason in missing.items())
        raise NoLayout(f"no layout of up to {gpus:,} GPUs keeps the limits; {reasons}")
    ratio = choice.ratio(aggregated[0], disaggregated[0]) if aggregated and disaggregated else None
    every = [*mixed, prefill, decode]
    return SearchResult(
        winner="disaggregated" if not aggregated or (ratio or 0) > 1 else "monolithic",
        ratio=ratio,
        objective=choice.objective,
        aggregated=aggregated,
        disaggregated=disaggregated,
        missing=missing,
        refused=tuple(refusal for found in every for refusal in found.refusals),
        evaluated={
            "aggregated": sum(found.evaluated for found in mixed),
            "prefill": prefill.evaluated,
            "decode": decode.evaluated,
            "layouts": choice.layouts,
        },
        gpus=gpus,
        lengths=lengths,
        limits=limits,
        conventions=conventions,
        guesses=tuple(dict.fromkeys(guess for kind in kinds for guess in PhaseModel(shape, kind, 1, kv_dtype).guesses)),
        guessed_prices=any(kind.name not in (prices or {}) for kind in kinds),
    )


def _prices(kinds: Iterable[Gpu], given: Mapping[str, float]) -> dict[str, float]:
    prices = {kind.name: given.get(kind.name, kind.price_per_hour) for kind in kinds}
    for name, price in prices.items():
        if not (math.isfinite(price) and price > 0):
            raise ValueError(f"the price of {name} must be above 0 US$ per hour, got {price}")
    return prices


class _Choice:
    """Combines engines to layouts and ranks them."""

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


def _missing(
    question: Question, mixed: Iterable[Candidates], prefill: Candidates, decode: Candidates, one: bool, two: bool
) -> dict[str, str]:
    """By mode without a layout, why."""
    missing = {}
    if not one:
        missing["aggregated"] = " / ".join(_lack(found, question.limits) for found in mixed)
    if not two:
        lacks = [
            f"{role} engines: {_lack(found, question.limits)}"
            for role, found in (("prefill", prefill), ("decode", decode))
            if not found.engines
        ]
        missing["disaggregated"] = ", ".join(lacks) or _too_large(question.gpus, prefill, decode)
    return missing


def _lack(found: Candidates, limits: Limits) -> str:
    if not found.evaluated:
        fitting = [refusal for refusal in found.refusals if refusal.limit != "gpus"] or list(found.refusals)
        return fitting[-1].reason
    lacks = [
        f"{name} is {ms(least.seconds)} at best (TP{least.tensor_parallel}, batch {least.batch}), the limit is {ms(limit)}"
        for name, least, limit in (
            ("TTFT", found.least_ttft, limits.ttft_s),
            ("TPOT", found.least_tpot, limits.tpot_s),
        )
        if least and least.seconds > limit
    ]
    return " and ".join(lacks) or "no degree and batch keep both limits at once"


def _too_large(gpus: int, prefill: Candidates, decode: Candidates) -> str:
    least = min(engine.tensor_parallel for engine in prefill.engines), min(e.tensor_parallel for e in decode.engines)
    return (
        f"the smallest pair that keeps the limits (TP{least[0]} and TP{least[1]}) needs {sum(least)} GPUs, there are {gpus}"
    )
