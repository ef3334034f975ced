"""What pools of engines give at a load, in closed form: TTFT and ITL at p99, attainment, busy shares. Pure.

The event simulation (core/forecast) answers the same in seconds; this takes less than a millisecond, so that a planner can
look at every split of every model each tick. Lengths are a distribution (core/workload). The engines that answer (decode or
mixed) hold as many requests as Little's law says, with Poisson's spread; those that compute prompts are a queue with many
servers. A prompt that is computed on an answering engine (monolithic, conditional's local requests) makes a step longer for
all that decode there. Step times are core/perf's, times the live ratios of what was measured.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from controlplane.core import kvsize
from controlplane.core.perf import PhaseModel
from controlplane.core.protocol import Conditional
from controlplane.core.queueing import ENDLESS, NONE, Wait, normal_tail, waiting
from controlplane.core.workload import Cell, Mix

STEP_TOKENS = 8192
"""Tokens of one step: longer prompts are cut."""
MEMORY_UTILIZATION = 0.9
P99 = 2.326
"""Standard deviations above the mean that 1% exceeds."""
TAIL = 0.01
PRECISION = 1e-6
MOST_TURNS = 30
ANSWER_BURST = 2.0
"""Bursts that the number of running answers shows at most: those of recorded traffic are mostly short answers, and an
answer lasts longer than a burst."""
HERE_STEPS = 1.0
"""Decode steps that a prompt waits for where it is computed: at p99 nearly a whole one is still running."""
AWAY_STEPS = 2.5
"""The same after a transfer: to be noticed, to be joined to the batch (both at step ends), and its own first step."""
BATCHES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Decode steps are computed at these and drawn straight between them."""


@dataclass(frozen=True)
class Load:
    """Arrivals/s of a mix; `burst`: variance ÷ mean of arrivals per second."""

    rate: float
    mix: Mix
    burst: float = 1.0


@dataclass(frozen=True)
class Corrections:
    """Live ratios: measured ÷ predicted times of prefill and decode."""

    prefill: float = 1.0
    decode: float = 1.0


@dataclass(frozen=True)
class EngineSpeed:
    """One kind of engine under one mix. Raises DoesNotFit where the model does not."""

    model: PhaseModel
    mix: Mix
    max_num_seqs: int = 256
    gbps: float | None = None
    """For KV transfers; None: its GPU's own card."""
    corrections: Corrections = field(default_factory=Corrections)
    kv_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_tokens", self.model.kv_capacity_tokens(MEMORY_UTILIZATION, STEP_TOKENS))

    @cached_property
    def prompts_s(self) -> tuple[tuple[float, ...], ...]:
        """By cell: the steps of a prompt, seconds each."""
        return tuple(self.prompt_s(cell) for cell in self.mix.cells)

    @cached_property
    def transfers_s(self) -> tuple[float, ...]:
        """By cell: its KV on an idle link."""
        return tuple(self.transfer_s(cell) for cell in self.mix.cells)

    def transfer_s(self, cell: Cell) -> float:
        """Its KV on an idle link; the cell may be another mix's."""
        rate = (self.gbps or self.model.gpu.network_gbps) * 1e9 / 8
        return self._kv_size.bytes(max(1, round(cell.prompt_tokens - cell.cached_tokens))) / rate

    @cached_property
    def _kv_size(self) -> kvsize.KvSize:
        return kvsize.transfer_size(self.model.shape, self.model.kv_dtype)

    @cached_property
    def context(self) -> tuple[float, float]:
        """Mean context of a decoding request at any time, and the mean of its square."""
        weights = [cell.requests * cell.output_tokens for cell in self.mix.cells]
        total = math.fsum(weights)
        contexts = [cell.prompt_tokens + cell.output_tokens / 2 for cell in self.mix.cells]
        mean = math.fsum(w * c for w, c in zip(weights, contexts, strict=True)) / total
        return mean, math.fsum(w * c * c for w, c in zip(weights, contexts, strict=True)) / total

    @cached_property
    def most(self) -> float:
        """Requests that it can hold at once, on average."""
        return max(1.0, min(float(self.max_num_seqs), self.kv_tokens / self.context[0]))

    def step_s(self, batch: float) -> float:
        """A decode step of `batch` requests at the mean context."""
        if batch <= 1:
            return self._steps[0]
        above = min(bisect_right(BATCHES, batch), len(BATCHES) - 1)
        size, seconds = BATCHES[above - 1], self._steps[above - 1]
        return seconds + (self._steps[above] - seconds) * (batch - size) / (BATCHES[above] - size)

    @cached_property
    def sequence_s(self) -> tuple[float, float]:
        """What one more request adds to a step: on average, and the root of the mean square over contexts."""
        batch = max(2.0, self.most / 2)
        each = (self.step_s(batch) - self.step_s(1)) / (batch - 1)
        mean, square = self.context
        return each, each * math.sqrt(square) / mean

    @cached_property
    def _steps(self) -> tuple[float, ...]:
        """Of BATCHES."""
        ratio, context = self.corrections.decode, self.context[0]
        return tuple(ratio * self.model.decode(size, context).seconds for size in BATCHES)

    def prompt_s(self, cell: Cell) -> tuple[float, ...]:
        """The steps of a prompt, seconds each; the cell may be another mix's."""
        past, left = round(cell.cached_tokens), max(1, round(cell.prompt_tokens - cell.cached_tokens))
        steps = []
        while left > 0:
            tokens = min(left, STEP_TOKENS)
            steps.append(self.corrections.prefill * self.model.prefill(tokens, past).seconds)
            past, left = past + tokens, left - tokens
        return tuple(steps)


@dataclass(frozen=True)
class Given:
    """What pools give. Saturated: both latencies infinite, attained 0. `*_busy`: share of the time that its engines work at
    their limit (of the batch or of the clock, whichever is nearer)."""

    ttft_p99_s: float
    itl_p99_s: float
    attained: float
    prefill_busy: float
    answer_busy: float
    tpot_s: float
    """Mean time per output token."""
    held_by_answers: bool = False
    """Late first tokens wait for the answering pool (room in its batches, its prompts) rather than for prefill."""

    @property
    def saturated(self) -> bool:
        return math.isinf(self.ttft_p99_s)


def local_cells(mix: Mix, mode: str, conditional: Conditional | None = None) -> tuple[bool, ...]:
    """Which cells are computed where they are answered: all, none, or (conditional) those under its thresholds."""
    if mode != "conditional":
        return (mode == "monolithic",) * len(mix.cells)
    limits = conditional or Conditional()
    return tuple(
        (new := cell.prompt_tokens - cell.cached_tokens) < limits.min_uncached_tokens
        or new < limits.min_uncached_ratio * cell.prompt_tokens
        for cell in mix.cells
    )


def given(
    load: Load,
    answer: tuple[EngineSpeed, int],
    prefill: tuple[EngineSpeed, int] | None,
    local: tuple[bool, ...],
    targets_s: tuple[float, float],
) -> Given:
    """What `answer` (engines that decode, and how many) and `prefill` give under `load`; cells of `local` have their prompts
    computed by the answering engines. `targets_s`: TTFT and ITL. The mix must be the speeds' own and not empty."""
    answering = Answering(load, *answer, local)
    if answering.saturated:
        prompts = _Prompts(load, *prefill, local) if prefill else None
        return Given(math.inf, math.inf, 0.0, prompts.busy if prompts else 0.0, answering.busy, math.inf)
    first = _FirstTokens(load, answering, _Prompts(load, *prefill, local) if prefill else None, local)
    ttft_s, itl_s = targets_s
    if first.endless:
        return Given(math.inf, answering.itl_p99_s, 0.0, first.prefill_busy, answering.busy, answering.tpot_s)
    attained = (1 - first.later_than(ttft_s)) * (1 - answering.slower_than(itl_s))
    p99_s, busy = first.p99_s, (first.prefill_busy, answering.busy)
    return Given(p99_s, answering.itl_p99_s, attained, *busy, answering.tpot_s, first.held_by_answers(p99_s))


class Met(NamedTuple):
    """Which targets are met at p99, the busier pool's busy share (infinite: saturated), the share of requests in time."""

    ttft: bool
    itl: bool
    busy: float
    attained: float


def met(
    load: Load,
    answer: tuple[EngineSpeed, int],
    prefill: tuple[EngineSpeed, int] | None,
    local: tuple[bool, ...],
    targets_s: tuple[float, float],
) -> Met:
    """As `given`, in a tenth of the time: it only compares with the targets."""
    answering = Answering(load, *answer, local)
    if answering.saturated:
        return Met(False, False, math.inf, 0.0)
    first = _FirstTokens(load, answering, _Prompts(load, *prefill, local) if prefill else None, local)
    if first.endless:
        return Met(False, answering.itl_p99_s <= targets_s[1], math.inf, 0.0)
    late, slow = first.later_than(targets_s[0]), answering.slower_than(targets_s[1])
    busy = max(first.prefill_busy, answering.busy)
    return Met(late <= TAIL, answering.itl_p99_s <= targets_s[1], busy, (1 - late) * (1 - slow))


class Answering:
    """The engines that decode, and compute the prompts of `local` cells in between."""

    def __init__(self, load: Load, speed: EngineSpeed, engines: int, local: tuple[bool, ...]) -> None:
        self.speed, self.engines, self.local, self.burst = speed, engines, local, load.burst
        count, rate = load.mix.count, load.rate / engines
        self.rate = rate
        self.tokens = rate * load.mix.output_tokens
        """Of one engine, per second."""
        self._shares = [cell.requests / count for cell in load.mix.cells]
        self._stalls = [
            (rate * share, seconds)
            for share, steps, here in zip(self._shares, speed.prompts_s, local, strict=True)
            if here
            for seconds in steps
        ]
        self.stall_rate = math.fsum(each for each, _ in self._stalls)
        self.stalled = math.fsum(each * seconds for each, seconds in self._stalls)
        """Share of the time in steps with a prompt, those that decode along not counted."""
        self.batch = self._batch()
        busy = max(self.batch / speed.most, self.stalled) if self.batch < math.inf else self._overload()
        self.busy = busy

    @property
    def saturated(self) -> bool:
        return math.isinf(self.batch)

    def _batch(self) -> float:
        """Requests that an engine holds on average: each waits `step` for a token, prompts' steps included."""
        if self.stalled >= 1:
            return math.inf
        low, high = 0.0, self.speed.most
        short, over = -self.tokens, self._surplus(high)
        if over < 0:
            return math.inf
        # Between two points of the table tokens/s are nearly straight in the batch: find the points, then draw the line.
        for size in BATCHES[bisect_right(BATCHES, high) - 1 :: -1]:
            found = self._surplus(size)
            if found < 0:
                low, short = size, found
                break
            high, over = size, found
        for _ in range(MOST_TURNS):
            middle = low - short * (high - low) / (over - short) if over > short else high
            found = self._surplus(middle)
            if abs(found) <= PRECISION * self.tokens:
                return middle
            if found < 0:
                low, short = middle, found
            else:
                high, over = middle, found
        return high

    def _surplus(self, batch: float) -> float:
        """Tokens/s that `batch` requests get more than arrive."""
        step_s = self.speed.step_s(batch)
        free = 1 - self.stalled - self.stall_rate * (step_s - self.speed.step_s(1.0))
        return batch * (self.stall_rate + max(0.0, free) / step_s) - self.tokens

    def _overload(self) -> float:
        """At least 1: what arrives ÷ what it could do."""
        step_s = self.speed.step_s(self.speed.most)
        return max(1.0, self.stalled + self.tokens * step_s / self.speed.most)

    @property
    def step_s(self) -> float:
        """A decode step on average, without a prompt in it."""
        return self.speed.step_s(max(1.0, self.batch))

    @property
    def tpot_s(self) -> float:
        return self.batch / self.tokens if self.tokens else self.step_s

    @property
    def _spread_s(self) -> float:
        """Standard deviation of a decode step, as the batch comes and goes."""
        return self.speed.sequence_s[1] * math.sqrt(self.batch * (1 + min(self.burst, ANSWER_BURST)) / 2)

    @property
    def itl_p99_s(self) -> float:
        along = self.step_s - self.speed.step_s(1.0)
        steps = self.stall_rate + self._plain_rate
        plain = self.step_s + P99 * self._spread_s
        left = TAIL - self.stall_rate / steps if steps else TAIL
        if left > 0 or not self._stalls:
            return plain
        # More than 1% of the gaps hold a prompt: the p99 is the step of a long one.
        longest = sorted(self._stalls, key=lambda stall: -stall[1])
        seen = 0.0
        for rate, seconds in longest:
            seen += rate / steps
            if seen >= TAIL:
                return max(plain, seconds + along)
        return max(plain, longest[-1][1] + along)

    @property
    def _plain_rate(self) -> float:
        """Steps without a prompt, per second, while it decodes."""
        along = self.step_s - self.speed.step_s(1.0)
        return max(0.0, 1 - self.stalled - self.stall_rate * along) / self.step_s

    def slower_than(self, itl_s: float) -> float:
        """Share of answers whose mean time per token is longer."""
        spread = max(self._spread_s, 1e-3 * self.step_s)
        return normal_tail((itl_s - self.tpot_s) / spread)

    @property
    def slot(self) -> Wait:
        """The wait for room in a full batch."""
        spread = math.sqrt(max(self.batch, 1e-9) * (1 + self.burst) / 2)
        chance = normal_tail((self.speed.most - self.batch) / spread)
        answer_s = self.tpot_s * max(1.0, self.tokens / self.rate if self.rate else 1.0)
        return Wait(chance, answer_s / max(1e-9, self.speed.most - self.batch))

    @property
    def prompts(self) -> Wait:
        """The wait of a prompt that is computed here for those before it."""
        return _wait(self.engines, [(rate * self.engines, s) for rate, s in self._whole], self.burst)

    @property
    def _whole(self) -> list[tuple[float, float]]:
        along = self.step_s - self.speed.step_s(1.0)
        return [
            (self.rate * share, math.fsum(steps) + along * len(steps))
            for share, steps, here in zip(self._shares, self.speed.prompts_s, self.local, strict=True)
            if here
        ]


class _Prompts:
    """The prefill pool: a queue of prompts, and the links that their KV leaves by."""

    def __init__(self, load: Load, speed: EngineSpeed, engines: int, local: tuple[bool, ...]) -> None:
        self.speed, self.engines = speed, engines
        count = load.mix.count
        kept = [
            (load.rate * cell.requests / count, math.fsum(steps), moved)
            for cell, steps, moved, here in zip(load.mix.cells, speed.prompts_s, speed.transfers_s, local, strict=True)
            if not here
        ]
        self.busy = math.fsum(rate * seconds for rate, seconds, _ in kept) / engines
        self.moved = math.fsum(rate * moved for rate, _, moved in kept)
        """Link-seconds per second, of one link."""
        self.wait = _wait(engines, [(rate, seconds) for rate, seconds, _ in kept], load.burst)


class _FirstTokens:
    """TTFT as a mixture over the cells: a constant each, and a wait."""

    def __init__(self, load: Load, answering: Answering, prompts: _Prompts | None, local: tuple[bool, ...]) -> None:
        self.prefill_busy = prompts.busy if prompts else answering.stalled
        self._slot, here_wait = answering.slot, answering.prompts
        link = prompts.moved / min(prompts.engines, answering.engines) if prompts else 0.0
        self.endless = link >= 1 or bool(prompts and prompts.wait == ENDLESS)
        along, step_s = answering.step_s - answering.speed.step_s(1.0), answering.step_s
        count = load.mix.count
        self._here = [each or prompts is None for each in local]
        self._parts: list[tuple[float, float, Wait]] = []
        for index, cell in enumerate(load.mix.cells):
            share = cell.requests / count
            if local[index] or prompts is None:
                steps = answering.speed.prompts_s[index]
                seconds = math.fsum(steps) + along * len(steps) + HERE_STEPS * step_s
                self._parts.append((share, seconds, here_wait))
            else:
                moved = prompts.speed.transfers_s[index] / max(1e-9, 1 - link)
                seconds = math.fsum(prompts.speed.prompts_s[index]) + moved + AWAY_STEPS * step_s
                self._parts.append((share, seconds, prompts.wait))

    def later_than(self, seconds: float) -> float:
        late = math.fsum(share * wait.longer_than(seconds - fixed) for share, fixed, wait in self._parts)
        return min(1.0, late + self._no_room(seconds))

    def held_by_answers(self, seconds: float) -> bool:
        """Whether of those who wait longer more wait for the answering engines than for the prefill pool."""
        away, here = 0.0, self._no_room(seconds)
        for (share, fixed, wait), at_answers in zip(self._parts, self._here, strict=True):
            late = share * wait.longer_than(seconds - fixed)
            away, here = (away, here + late) if at_answers else (away + late, here)
        return here > away

    def _no_room(self, seconds: float) -> float:
        mean = math.fsum(share * fixed for share, fixed, _ in self._parts)
        return self._slot.longer_than(max(0.0, seconds - mean))

    @property
    def p99_s(self) -> float:
        low, high = 0.0, 1.0
        while self.later_than(high) > TAIL:
            low, high = high, high * 2
            if high > 1e7:
                return math.inf
        for _ in range(30):
            middle = (low + high) / 2
            if self.later_than(middle) > TAIL:
                low = middle
            else:
                high = middle
        return high


def _wait(engines: int, work: list[tuple[float, float]], burst: float) -> Wait:
    """Of (rate, seconds) each, for all engines together."""
    rate = math.fsum(each for each, _ in work)
    if not rate:
        return NONE
    mean = math.fsum(each * seconds for each, seconds in work) / rate
    square = math.fsum(each * seconds * seconds for each, seconds in work) / rate
    return waiting(engines, rate, mean, max(0.0, square / mean**2 - 1), burst)
