"""Which split of the GPUs to simulate next: all sensible ones, a start, and a climb to the best. No simulation in here.

The best split is found by simulating: start where both pools would be equally loaded, then go to the better neighbour until
there is none. Two layouts are compared by what a dollar buys within the SLO, and near a tie by how far they stay from its
limits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from controlplane.core.forecast import Forecast, Settings
from controlplane.core.layout import Layout, split
from controlplane.core.perf import PhaseModel
from controlplane.core.protocol import Mode, Slo

NEAR = 0.005
"""Goodput per dollar that differs by less is a tie."""


@dataclass(frozen=True)
class Score:
    """How good a layout is under a workload. `value`: requests within the SLO per US$; `strain`: the larger of TTFT and ITL,
    each over its limit, at p99 or (in steady state) on average; infinite when nothing was served."""

    value: float
    strain: float

    def beats(self, other: Score) -> bool:
        """Whether this one is the better choice."""
        return self.strain < other.strain if self.ties(other) else self.value > other.value

    def ties(self, other: Score) -> bool:
        """Whether the values are too near to choose by."""
        return abs(self.value - other.value) <= NEAR * max(self.value, other.value)


def mean_score(scores: Sequence[Score]) -> Score:
    """Over seeds."""
    return Score(fmean(each.value for each in scores), fmean(each.strain for each in scores))


def score(forecast: Forecast, slo: Slo, rate: float) -> Score:
    """The score of a forecast for `rate` offered requests/s, made with prices above 0.

    What counts is the share of the arrivals within the SLO. After the last arrival a slow layout works on, and a rate over
    all that time would hold a short run's end against it.
    """
    per_dollar = forecast.attained.value * rate * 3600 / forecast.cost_per_hour
    if forecast.ttft_ms is None:
        return Score(per_dollar, float("inf"))
    itl = forecast.itl_ms.p99.value if forecast.itl_ms else 0.0
    return Score(per_dollar, max(forecast.ttft_ms.p99.value / slo.ttft_ms, itl / slo.itl_ms))


@dataclass(frozen=True)
class Side:
    """One pool's kind of engine, and the seconds of one engine that a mean request costs there."""

    kind: str
    tensor_parallel: int
    request_s: float


def prefill_side(model: PhaseModel, prompt_tokens: float, budget: int) -> Side:
    """Prompts one after the other, in chunks of the token budget."""
    whole, rest = divmod(max(1, round(prompt_tokens)), budget)
    seconds = sum(model.prefill(budget, past * budget).seconds for past in range(whole))
    if rest:
        seconds += model.prefill(rest, whole * budget).seconds
    return Side(model.gpu.name, model.tensor_parallel, seconds)


def decode_side(model: PhaseModel, prompt_tokens: float, output_tokens: float, settings: Settings) -> Side:
    """The full batch: as many sequences as the KV cache and max_num_seqs allow."""
    tokens = prompt_tokens + output_tokens
    room = model.kv_capacity_tokens(settings.memory_utilization, settings.max_num_batched_tokens)
    batch = max(1, min(settings.max_num_seqs, int(room / tokens)))
    step_s = model.decode(batch, prompt_tokens + output_tokens / 2).seconds
    return Side(model.gpu.name, model.tensor_parallel, step_s * output_tokens / batch)


def all_splits(gpus: int, prefill: Side, decode: Side, mode: Mode) -> list[Layout]:
    """Every split of at most `gpus` GPUs that cannot grow, from the smallest prefill pool to the largest. Empty when two
    engines do not fit."""
    found: dict[int, tuple[int, int]] = {}
    for prefills in range(1, (gpus - decode.tensor_parallel) // prefill.tensor_parallel + 1):
        decodes = (gpus - prefills * prefill.tensor_parallel) // decode.tensor_parallel
        found[decodes] = (prefills, decodes)
    return [
        split(
            (prefills, prefill.tensor_parallel, prefill.kind),
            (decodes, decode.tensor_parallel, decode.kind),
            mode,
        )
        for prefills, decodes in found.values()
    ]


def balanced(layouts: Sequence[Layout], prefill: Side, decode: Side) -> int:
    """The split whose busier pool is least busy: the place to start from."""

    def load(index: int) -> float:
        first, second = layouts[index].pools
        return max(prefill.request_s / first.engines, decode.request_s / second.engines)

    return min(range(len(layouts)), key=load)


def climb(count: int, start: int, scored: Callable[[int], Score]) -> int:
    """The index of the best of `count` neighbours in a row, found by walking uphill from `start`, in long steps first.

    Finds the best of all if the scores rise to one top and fall after it; each index is scored once.
    """
    seen: dict[int, Score] = {}

    def at(index: int) -> Score:
        if index not in seen:
            seen[index] = scored(index)
        return seen[index]

    best, step = start, max(1, count // 16)
    while True:
        better = next((near for near in (best - step, best + step) if 0 <= near < count and at(near).beats(at(best))), None)
        if better is not None:
            best = better
        elif step > 1:
            step = max(1, step // 3)
        else:
            return best
