"""Every engine a split could be built of, by role: what it gives, or why it was refused. Pure.

A candidate is a role, a kind of GPU, a tensor-parallel degree, a batch and (whole requests) a chunk, evaluated by
core/comparison. What does not fit, or misses a limit, is counted and told: per degree and limit one refusal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from controlplane.core import comparison
from controlplane.core.comparison import Conventions, Lengths
from controlplane.core.counts import some
from controlplane.core.gpus import Gpu
from controlplane.core.perf import DoesNotFit, PhaseModel
from controlplane.core.protocol import Role
from controlplane.core.shapes import Shape

Limit = Literal["gpus", "degree", "memory", "kv", "ttft", "tpot"]
"""What refuses a candidate. `degree`: the model's heads cannot be split so."""


@dataclass(frozen=True)
class Limits:
    """What every request's mean must keep, seconds. Infinite: no limit."""

    ttft_s: float
    tpot_s: float

    def __post_init__(self) -> None:
        for name, value in (("TTFT", self.ttft_s), ("TPOT", self.tpot_s)):
            if not value > 0:
                raise ValueError(f"the limit of {name} must be above 0 ms, got {value * 1000:g} ms")


@dataclass(frozen=True)
class Grid:
    """What is tried: degrees and batches of AIConfigurator (`sweep.py`, `task_v2.py`). Batches are coarse: 2% of a step time
    can move the chosen one a step, and throughput by 10 to 20%, so compare with it on its own grid (`REFERENCE_GRID`)."""

    tensor_parallel: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Those larger than a server are tried only for a model that fits no smaller one."""
    mixed_batches: tuple[int, ...] = (
        *range(1, 16),
        *range(16, 32, 4),
        *range(32, 64, 8),
        *range(64, 256, 16),
        *range(256, 512, 32),
        *range(512, 1024, 256),
        1024,
    )
    prefill_batches: tuple[int, ...] = (1,)
    decode_batches: tuple[int, ...] = (*range(1, 16), *range(16, 32, 2), *range(32, 128, 4), *range(128, 512, 8), 512)
    split_sizes: tuple[int, ...] | None = None
    """GPUs that two pools may have together; None: any number."""

    def __post_init__(self) -> None:
        for name in ("tensor_parallel", "mixed_batches", "prefill_batches", "decode_batches"):
            values = getattr(self, name)
            if not values or min(values) < 1 or list(values) != sorted(set(values)):
                raise ValueError(f"{name} must be rising whole numbers from 1, got {values!r:.80}")


REFERENCE_GRID = Grid(tensor_parallel=(1, 2, 4, 8), split_sizes=(1, 2, 4, 8, *range(16, 129, 8)))
"""AIConfigurator's for a dense model: it splits replicas of these sizes only (`num_gpu_per_replica`)."""


class Engine(NamedTuple):
    """A candidate that keeps the limits. Times that its role does not have are 0; chunk is 0 but for whole requests."""

    gpu: Gpu
    tensor_parallel: int
    batch: int
    chunk: int
    ttft_s: float
    tpot_s: float
    requests_per_second: float


@dataclass(frozen=True)
class Refusal:
    """Why `count` candidates of one degree were refused; `reason` says what is missing."""

    role: Role
    gpu: str
    tensor_parallel: int
    limit: Limit
    count: int
    reason: str


class Reached(NamedTuple):
    """The smallest time among the candidates that fit, and where."""

    seconds: float
    tensor_parallel: int
    batch: int


@dataclass(frozen=True)
class Candidates:
    gpu: str
    engines: tuple[Engine, ...]
    refusals: tuple[Refusal, ...]
    evaluated: int
    """Candidates whose times were computed."""
    least_ttft: Reached | None
    """None: the role has no TTFT, or nothing fits."""
    least_tpot: Reached | None


@dataclass(frozen=True)
class Question:
    """What all candidates share."""

    shape: Shape
    lengths: Lengths
    limits: Limits
    conventions: Conventions
    grid: Grid
    gpus: int
    kv_dtype: str | None = None


def candidates(question: Question, role: Role, gpu: Gpu) -> Candidates:
    """All engines of `role` on `gpu` that keep the limits."""
    tally = _Tally(question, role, gpu)
    for degree in question.grid.tensor_parallel:
        if degree > gpu.server_gpus and tally.evaluated:
            break
        if degree > question.gpus:
            tally.refuse(degree, "gpus", 1, f"an engine needs {some(degree, 'GPU')}, not {question.gpus}")
            continue
        try:
            model = PhaseModel(question.shape, gpu, degree, question.kv_dtype)
        except DoesNotFit as misfit:
            tally.refuse(degree, "degree", 1, str(misfit))
            continue
        try:
            comparison.kv_tokens(model, 1, question.conventions)
        except DoesNotFit as misfit:
            tally.refuse(degree, "memory", 1, str(misfit))
            continue
        tally.try_all(model)
    return tally.result()


class _Tally:
    def __init__(self, question: Question, role: Role, gpu: Gpu) -> None:
        self.question, self.role, self.gpu = question, role, gpu
        self.engines: list[Engine] = []
        self.refusals: list[Refusal] = []
        self.evaluated = 0
        self.least: dict[str, Reached] = {}

    def refuse(self, degree: int, limit: Limit, count: int, reason: str) -> None:
        self.refusals.append(Refusal(self.role, self.gpu.name, degree, limit, count, reason))

    def try_all(self, model: PhaseModel) -> None:
        """Every batch of one degree, until the KV cache is full."""
        limits = self.question.limits
        misses: dict[Limit, int] = {"ttft": 0, "tpot": 0}
        least = {"ttft": math.inf, "tpot": math.inf}
        for engine in self._engines(model):
            self.evaluated += 1
            missed = False
            for name, seconds, most in (("ttft", engine.ttft_s, limits.ttft_s), ("tpot", engine.tpot_s, limits.tpot_s)):
                if seconds == 0:
                    continue
                least[name] = min(least[name], seconds)
                self._note_least(name, engine, seconds)
                if seconds > most:
                    misses["ttft" if name == "ttft" else "tpot"] += 1
                    missed = True
            if not missed:
                self.engines.append(engine)
        for limit, count in misses.items():
            if count:
                most = limits.ttft_s if limit == "ttft" else limits.tpot_s
                reason = f"{limit.upper()} over {ms(most)}; the least at this degree is {ms(least[limit])}"
                self.refuse(model.tensor_parallel, limit, count, reason)

    def _engines(self, model: PhaseModel) -> Iterator[Engine]:
        batches = {
            "mixed": self.question.grid.mixed_batches,
            "prefill": self.question.grid.prefill_batches,
            "decode": self.question.grid.decode_batches,
        }[self.role]
        lengths = self.question.lengths
        held = lengths.prompt if self.role == "prefill" else lengths.total
        for index, batch in enumerate(batches):
            for chunk in self._chunks(batch):
                room = self._room(model, batch, chunk)
                if batch * held <= room:
                    yield self._engine(model, batch, chunk)
                elif chunk <= lengths.prompt:
                    reason = f"the KV cache holds {room:,} tokens, {room // held:,} requests of {held:,}"
                    self.refuse(model.tensor_parallel, "kv", len(batches) - index, f"batches from {batch}: {reason}")
                    return

    def _chunks(self, batch: int) -> tuple[int, ...]:
        """Of a batch: fewer prompts per step than requests, so that some decode; 0 where the role has no mixed steps."""
        prompt = self.question.lengths.prompt
        if self.role != "mixed":
            return (0,)
        return tuple(chunk for chunk in comparison.chunks(self.question.lengths) if chunk < max(2, batch) * prompt)

    def _room(self, model: PhaseModel, batch: int, chunk: int) -> int:
        """Tokens of KV beside the largest step; 0 if the step itself does not fit."""
        lengths = self.question.lengths
        prompts = {"mixed": chunk // lengths.prompt, "prefill": batch, "decode": 0}[self.role]
        try:
            return comparison.kv_tokens(model, prompts * lengths.new + batch, self.question.conventions)
        except DoesNotFit:
            return 0

    def _engine(self, model: PhaseModel, batch: int, chunk: int) -> Engine:
        lengths, conventions, degree = self.question.lengths, self.question.conventions, model.tensor_parallel
        if self.role == "prefill":
            stage = comparison.prefill(model, lengths, batch, conventions)
            return Engine(self.gpu, degree, batch, chunk, stage.seconds, 0.0, stage.requests_per_second)
        if self.role == "decode":
            stage = comparison.decode(model, lengths, batch, conventions)
            return Engine(self.gpu, degree, batch, chunk, 0.0, stage.seconds, stage.requests_per_second)
        return Engine(self.gpu, degree, batch, chunk, *comparison.aggregated(model, lengths, batch, chunk, conventions))

    def _note_least(self, name: str, engine: Engine, seconds: float) -> None:
        if name not in self.least or seconds < self.least[name].seconds:
            self.least[name] = Reached(seconds, engine.tensor_parallel, engine.batch)

    def result(self) -> Candidates:
        least = self.least
        return Candidates(
            self.gpu.name, tuple(self.engines), tuple(self.refusals), self.evaluated, least.get("ttft"), least.get("tpot")
        )


def ms(seconds: float) -> str:
    """Milliseconds for people."""
    value = seconds * 1000
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"
