"""What both kinds of engine of the forecast share: a leg of a request, step costs, and what an engine offers. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from controlplane.core.forecast_gaps import Gaps
from controlplane.core.forecast_types import Arrival, PoolTotals
from controlplane.core.perf import PhaseModel, StepCost

TIED_S = 1e-9
"""Times that are no further apart are the same: sums of steps are rounded, differently with merged steps."""


def nanosecond(seconds: float) -> float:
    """`seconds` so that the same times are equal; infinity stays."""
    return round(seconds, 9)


class Leg:
    """One engine's part of a request, and when its stages were. Times are NaN until they have come."""

    __slots__ = (
        "arrival",
        "began_s",
        "first_token_s",
        "hit_tokens",
        "hold",
        "keys",
        "load_began_s",
        "loaded_s",
        "number",
        "output_tokens",
        "preemptions",
        "prompt_tokens",
        "remote",
        "shared_tokens",
        "submitted_s",
    )

    def __init__(self, number: int, arrival: Arrival, keys: Sequence[int], shared_tokens: int) -> None:
        self.number = number
        self.arrival = arrival
        self.keys = keys
        """Ids of the prompt's full blocks, as far as they are known."""
        self.shared_tokens = shared_tokens
        """Leading tokens that are held apart, for all requests together: neither computed nor in this leg's blocks."""
        self.prompt_tokens = arrival.prompt_tokens - shared_tokens
        self.output_tokens = arrival.output_tokens
        self.remote = False
        """The prompt's KV comes from a prefill engine."""
        self.hold = False
        """Its blocks stay after the end, until `release`."""
        self.hit_tokens = 0
        self.preemptions = 0
        self.submitted_s = self.load_began_s = self.loaded_s = self.began_s = self.first_token_s = math.nan


class Ends(NamedTuple):
    """What the end of a run brought: legs with their first token, then legs that are through (one may be in both)."""

    first_tokens: list[Leg]
    finished: list[Leg]


class Engine(Protocol):
    """One engine. A run is one step or several equal ones. Its owner calls `advance` at a run's end, then `start`."""

    capacity_tokens: int

    @property
    def busy(self) -> bool:
        """A run is under way."""
        ...

    def submit(self, leg: Leg) -> None: ...

    def loaded(self, leg: Leg) -> None:
        """The KV of a remote leg has come."""
        ...

    def release(self, leg: Leg) -> None:
        """The blocks of a finished `hold` leg are not needed any more."""
        ...

    def start(self, now: float) -> tuple[float | None, list[Leg]]:
        """Begin the next run: when it ends (None: nothing to run), and the legs whose KV can be moved in from now on."""
        ...

    def advance(self, now: float) -> Ends:
        """The run ends now."""
        ...

    def interrupt(self, now: float) -> float | None:
        """Something came that the next step may take up: the run's new, earlier end, or None if it stays."""
        ...

    def halt(self, now: float) -> None:
        """The simulation stops here: count the steps that are through."""
        ...

    def hit_tokens(self, keys: Sequence[int], prompt_tokens: int, now: float) -> int:
        """Tokens of such a prompt that the prefix cache would give now."""
        ...


class Line(NamedTuple):
    """perf.DecodeLine with what else a run needs; it holds from a sum of contexts of `from_context` on."""

    from_context: int
    until_context: float
    base_s: float
    per_token_s: float
    tensor_s: float
    dram_base_s: float
    dram_per_token_s: float
    tensor_peak: float


class StepCosts:
    """Costs of one kind of engine's steps; decode lines are computed once."""

    def __init__(self, model: PhaseModel) -> None:
        self._model = model
        self._lines: dict[int, Line] = {}
        self.mixed = model.step

    def line(self, sequences: int, context_sum: int) -> Line:
        line = self._lines.get(sequences)
        if line is None or not line.from_context <= context_sum < line.until_context:
            line = self._found(sequences, context_sum, line)
            self._lines[sequences] = line
        return line

    def _found(self, sequences: int, context_sum: int, before: Line | None) -> Line:
        found = self._model.decode_line(sequences, context_sum)
        # A line is known to hold from where it was asked for, and further down if it was found there before.
        known_from = context_sum
        if before is not None and before.until_context == found.until_context:
            known_from = min(known_from, before.from_context)
        elif before is None and math.isinf(self._model.decode_line(sequences, 0).until_context):
            known_from = 0
        return Line(
            known_from,
            found.until_context,
            found.base_s,
            found.per_token_s,
            found.tensor_s,
            found.dram_base_s,
            found.dram_per_token_s,
            self._model.step((), sequences, context_sum).tensor_peak,
        )


class Account:
    """Adds what the steps of one engine did to its pool's totals."""

    def __init__(self, totals: PoolTotals, gaps: Gaps) -> None:
        self.totals = totals
        self.gaps = gaps

    def step(self, cost: StepCost) -> None:
        totals = self.totals
        totals.steps += 1
        totals.step_s += cost.seconds
        totals.tensor_busy_s += cost.tensor * cost.seconds
        totals.dram_busy_s += cost.dram * cost.seconds
        totals.busy_s += max(cost.tensor, cost.dram) * cost.seconds
        totals.tensor_peak = max(totals.tensor_peak, cost.tensor_peak)
        totals.dram_peak = max(totals.dram_peak, cost.dram)

    def run(self, line: Line, sequences: int, context_sum: int, steps: int) -> None:
        """`steps` decode steps, the first with contexts that sum to `context_sum`."""
        contexts = steps * context_sum + sequences * (steps * (steps - 1) // 2)
        seconds = steps * line.base_s + line.per_token_s * contexts
        tensor_s = min(seconds, steps * line.tensor_s)
        dram_s = min(seconds, steps * line.dram_base_s + line.dram_per_token_s * contexts)
        last = context_sum + sequences * (steps - 1)
        first_s = line.base_s + line.per_token_s * context_sum
        last_s = line.base_s + line.per_token_s * last
        totals = self.totals
        totals.steps += steps
        totals.step_s += seconds
        totals.tensor_busy_s += tensor_s
        totals.dram_busy_s += dram_s
        totals.busy_s += max(tensor_s, dram_s)
        totals.tensor_peak = max(totals.tensor_peak, line.tensor_peak)
        peak = max(
            (line.dram_base_s + line.dram_per_token_s * context_sum) / first_s,
            (line.dram_base_s + line.dram_per_token_s * last) / last_s,
        )
        totals.dram_peak = max(totals.dram_peak, min(1.0, peak))
        totals.output_tokens += steps * sequences
        self.gaps.add_run(first_s, last_s, steps, sequences)

    def sampled(self, gap_s: float, tokens: int) -> None:
        """`tokens` sequences got a token, `gap_s` after the one before."""
        if tokens:
            self.totals.output_tokens += tokens
            self.gaps.add(gap_s, tokens)

    def admitted(self, leg: Leg) -> None:
        """A prompt is begun here for the first time; its `hit_tokens` are known."""
        self.totals.prompt_tokens += leg.arrival.prompt_tokens
        self.totals.cached_tokens += leg.hit_tokens + leg.shared_tokens
