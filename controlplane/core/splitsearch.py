"""The best layout of each mode on up to N GPUs under limits of TTFT and TPOT, and which mode wins by how much. Pure.

All engines that keep the limits (core/splitengines) are combined: one pool of equal engines that serve whole requests, or a
prefill and a decode pool of any sizes that together have at most N GPUs. The rate of two pools is that of the slower one.

With one kind of GPU the layout with the most output tokens/s on N GPUs wins (idle ones count too). With two kinds
a GPU is no measure: the layout with the least cost per token wins, and `ratio` compares costs.

These are steady means by the factors of core/comparison: no queue, no KV transfer. The forecast has both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from controlplane.core.comparison import VLLM, Conventions, Lengths
from controlplane.core.gpus import Gpu
from controlplane.core.perf import PhaseModel
from controlplane.core.shapes import Shape
from controlplane.core.splitchoice import Choice
from controlplane.core.splitengines import REFERENCE_GRID, Candidates, Grid, Limits, Question, candidates, ms
from controlplane.core.splitplan import NoLayout, Plan, SearchResult

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
    choice = Choice(question, "cost" if len(kinds) > 1 else "throughput", _prices(kinds, prices or {}))
    aggregated = choice.best((plan for found in mixed for plan in choice.one_pool(found)), keep)
    disaggregated = choice.best(choice.two_pools(prefill, decode), keep)
    missing = _missing(question, mixed, prefill, decode, bool(aggregated), bool(disaggregated))
    if not aggregated and not disaggregated:
        raise NoLayout(f"no layout of up to {gpus:,} GPUs keeps the limits: {_together(missing)}")
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
        guesses=_guesses(question, kinds, (*aggregated, *disaggregated)),
        guessed_prices=any(kind.name not in (prices or {}) for kind in kinds),
    )


def _guesses(question: Question, kinds: Iterable[Gpu], plans: Iterable[Plan]) -> tuple[str, ...]:
    """Why the times of any engine in the plans are a guess."""
    known = {kind.name: kind for kind in kinds}
    engines = dict.fromkeys((pool.gpu, pool.tensor_parallel) for plan in plans for pool in plan.layout.pools)
    models = (PhaseModel(question.shape, known[kind], degree, question.kv_dtype) for kind, degree in engines)
    return tuple(dict.fromkeys(guess for model in models for guess in model.guesses))


def _prices(kinds: Iterable[Gpu], given: Mapping[str, float]) -> dict[str, float]:
    prices = {kind.name: given.get(kind.name, kind.price_per_hour) for kind in kinds}
    for name, price in prices.items():
        if not (math.isfinite(price) and price > 0):
            raise ValueError(f"the price of {name} must be above 0 US$ per hour, got {price}")
    return prices


def _missing(
    question: Question, mixed: Iterable[Candidates], prefill: Candidates, decode: Candidates, one: bool, two: bool
) -> dict[str, str]:
    """By mode without a layout, why."""
    missing = {}
    if not one:
        lacks = {f"on {found.gpu}": _lack(found, question.limits) for found in mixed}
        missing["aggregated"] = _together(lacks) if len(lacks) > 1 else next(iter(lacks.values()))
    if not two:
        pools = {"prefill engines": prefill, "decode engines": decode}
        lacks = {name: _lack(found, question.limits) for name, found in pools.items() if not found.engines}
        missing["disaggregated"] = _together(lacks) if lacks else _too_large(question.gpus, prefill, decode)
    return missing


def _together(reasons: Mapping[str, str]) -> str:
    """Each reason behind what it is about; one alone if they are the same."""
    if len(reasons) > 1 and len(set(reasons.values())) == 1:
        return next(iter(reasons.values()))
    return "; ".join(f"{about}: {reason}" for about, reason in reasons.items())


def _lack(found: Candidates, limits: Limits) -> str:
    if not found.evaluated:
        telling = [refusal for refusal in found.refusals if refusal.limit not in ("gpus", "degree")] or found.refusals
        return telling[-1].reason
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
