"""What a model was asked for in a span of time: rate, lengths as a distribution, prefix hits, bursts. Pure.

Lengths are kept in cells of a logarithmic grid (prompt × answer), each with its own means, so that what depends on their
spread (waiting times, the share of long prompts) is not computed from averages. Rates count what *arrived*: a saturated
model completes less, which must not read as less load.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

PROMPT_CELLS_PER_DOUBLING = 3
OUTPUT_CELLS_PER_DOUBLING = 0.5
"""Prompts of a cell differ by 26% at most, answers fourfold (their spread matters less); a cell's means are exact."""
BURST_SLOT_S = 1.0
LEAST_BURST = 1.0
"""Arrivals that are more even than Poisson are planned for as Poisson."""
MOST_BURST = 50.0


class Seen(NamedTuple):
    """One request by its arrival. `cached_tokens`: of its prompt, found in a prefix cache."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0


class Cell(NamedTuple):
    """So many `requests` of alike lengths, with their means."""

    requests: float
    prompt_tokens: float
    output_tokens: float
    cached_tokens: float = 0.0


@dataclass(frozen=True)
class Mix:
    """A distribution of request lengths. Empty: nothing was seen."""

    cells: tuple[Cell, ...] = ()

    @property
    def count(self) -> float:
        return math.fsum(cell.requests for cell in self.cells)

    @property
    def prompt_tokens(self) -> float:
        return self._mean(1)

    @property
    def output_tokens(self) -> float:
        return self._mean(2)

    @property
    def cached_tokens(self) -> float:
        return self._mean(3)

    @property
    def prefix_hit_share(self) -> float:
        """Of all prompt tokens."""
        return self.cached_tokens / self.prompt_tokens if self.cells else 0.0

    def _mean(self, index: int) -> float:
        count = self.count
        return math.fsum(cell.requests * cell[index] for cell in self.cells) / count if count else 0.0


@dataclass(frozen=True)
class Window:
    """The requests that arrived in [since_s, until_s). `burst`: variance ÷ mean of the arrivals per second, at least 1
    (Poisson). `complete`: the whole span was observed; a window with a gap in its telemetry is not planned on."""

    since_s: float
    until_s: float
    rate: float
    mix: Mix
    burst: float = LEAST_BURST
    samples: int = 0
    """Requests behind the mix."""
    complete: bool = True


def mix_of(requests: Iterable[Seen]) -> Mix:
    """Of whole requests; those without a prompt or an answer are left out."""
    cells: dict[tuple[int, int], list[float]] = {}
    for each in requests:
        if each.prompt_tokens < 1 or each.output_tokens < 1:
            continue
        cell = cells.setdefault(_slots(each.prompt_tokens, each.output_tokens), [0.0, 0.0, 0.0, 0.0])
        cached = min(each.cached_tokens, each.prompt_tokens - 1)
        for index, value in enumerate((1, each.prompt_tokens, each.output_tokens, max(0, cached))):
            cell[index] += value
    return Mix(tuple(Cell(sums[0], *(total / sums[0] for total in sums[1:])) for _, sums in sorted(cells.items())))


def window_of(requests: Sequence[Seen], since_s: float, until_s: float, complete: bool = True) -> Window:
    """The window of the requests that arrived in it; others are ignored. Raises ValueError for an empty span."""
    if not until_s > since_s:
        raise ValueError(f"a window must end after it begins, got {since_s} to {until_s}")
    inside = [each for each in requests if since_s <= each.at_s < until_s]
    return Window(
        since_s,
        until_s,
        len(inside) / (until_s - since_s),
        mix_of(inside),
        burst_of([each.at_s for each in inside], since_s, until_s),
        len(inside),
        complete,
    )


def burst_of(times: Iterable[float], since_s: float, until_s: float) -> float:
    """Variance ÷ mean of the arrivals per second (index of dispersion), between 1 and MOST_BURST; 1 with too few."""
    slots = int((until_s - since_s) / BURST_SLOT_S)
    if slots < 2:
        return LEAST_BURST
    counts: dict[int, int] = {}
    for at_s in times:
        slot = int((at_s - since_s) / BURST_SLOT_S)
        if slot < slots:
            counts[slot] = counts.get(slot, 0) + 1
    mean = sum(counts.values()) / slots
    if not mean:
        return LEAST_BURST
    variance = (sum(count * count for count in counts.values()) - slots * mean * mean) / (slots - 1)
    return min(MOST_BURST, max(LEAST_BURST, variance / mean))


def merged_mix(mixes: Iterable[tuple[Mix, float]]) -> Mix:
    """Several mixes, each counted `weight` times its own count."""
    cells: dict[tuple[int, int], list[float]] = {}
    for mix, weight in mixes:
        for count, *means in mix.cells:
            sums = cells.setdefault(_slots(means[0], means[1]), [0.0, 0.0, 0.0, 0.0])
            sums[0] += count * weight
            for index, mean in enumerate(means, 1):
                sums[index] += count * weight * mean
    found = (sums for _, sums in sorted(cells.items()) if sums[0] > 0)
    return Mix(tuple(Cell(sums[0], *(total / sums[0] for total in sums[1:])) for sums in found))


def offered_rate(completed: float, open_before: float, open_after: float, seconds: float) -> float:
    """Arrivals/s where only completions and open requests are counted: what was completed and what the queue grew by. So a
    saturated model, whose completions fall while its queue grows, does not look less loaded. Never negative."""
    return max(0.0, completed + open_after - open_before) / seconds


@dataclass(frozen=True)
class Observed:
    """What a model's users and engines saw in the last window, beside what the model predicted for it. `prefill_ratio` and
    `decode_ratio`: measured time of a prefill and of a decode step ÷ predicted; None: not measured."""

    at_s: float
    ttft_p99_ms: float | None = None
    itl_p99_ms: float | None = None
    samples: int = 0
    prefill_ratio: float | None = None
    decode_ratio: float | None = None
    warming: bool = False
    """An engine was starting, loading or had just joined: its first steps are slow and say nothing of its rate."""
    waiting: float = 0.0
    """Requests in queues at the end."""


def _slots(prompt_tokens: float, output_tokens: float) -> tuple[int, int]:
    return (
        math.floor(math.log2(max(1.0, prompt_tokens)) * PROMPT_CELLS_PER_DOUBLING),
        math.floor(math.log2(max(1.0, output_tokens)) * OUTPUT_CELLS_PER_DOUBLING),
    )
