"""What each layout of a model gives, and of what engines layouts can be: what the planner's search looks at. Pure.

A target that even an idle engine misses is out of reach: it is left out of what is asked of a layout (more GPUs would not
help), and told.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from controlplane.core import gpus as gpu_table
from controlplane.core.backlog import Backlog, Course, Traffic
from controlplane.core.capacity import Answering, Corrections, EngineSpeed, Given, Load, given, local_cells
from controlplane.core.gpus import UnknownGpu
from controlplane.core.perf import DoesNotFit, PhaseModel
from controlplane.core.planner_types import Estimate, ModelNow, PoolPlan
from controlplane.core.protocol import ROLES_OF_MODE, Mode, Role
from controlplane.core.workload import Mix

BUSY_MOST = 0.85
"""Engines are never planned to work longer than this share of the time."""
SATURATED = 10.0
"""Strain of a layout that cannot keep up, times how far it is over."""
MOST_ENGINES = 4096
MOST_GPUS = 1 << 20
HALF = 0.5
PARTS = 4
"""Of the last hour, in which a small gain is looked for: a burst of code lasts minutes, and is in one of them or two."""
PoolKind = tuple[str, int]
"""Kind of GPU, tensor parallel."""
Pools = tuple[PoolPlan, ...]
Question = tuple[Load, tuple[EngineSpeed, int], tuple[EngineSpeed, int] | None, tuple[bool, ...], tuple[float, float]]
MODEL_ERROR = 0.2
"""Half of an estimate's interval, relative: nine in ten latencies lie within it of the event simulation's."""


@dataclass(frozen=True)
class Option:
    """One kind of engine for a role."""

    role: Role
    gpu: str
    tensor_parallel: int
    floor: int
    ceiling: int

    def plan(self, engines: int) -> PoolPlan:
        return PoolPlan(self.role, engines, self.tensor_parallel, self.gpu)


@dataclass(frozen=True)
class Layouted:
    """A layout with its estimate at the load that was asked for."""

    mode: Mode
    pools: tuple[PoolPlan, ...]
    estimate: Estimate
    in_time: float | None = None
    """Share of requests in time over the traffic of the last hour and what is expected; None: not looked at."""


class PastHour(NamedTuple):
    """Shares of requests in time: of the last hour, and of each of its PARTS."""

    whole: float
    parts: tuple[float, ...]


class Layouts:
    """Estimates of one model under one mix."""

    def __init__(
        self,
        model: ModelNow,
        mix: Mix,
        burst: float = 1.0,
        corrections: Corrections | None = None,
        prices: Mapping[str, float] | None = None,
        strict: bool = False,
        most_gpus: int = MOST_GPUS,
        traffic: Traffic | None = None,
    ) -> None:
        """`strict`: a target that is out of reach counts as missed; `most_gpus`: of all kinds together. With `traffic` rates
        are those of its course, scaled; without it they are taken to last."""
        self.model, self.mix, self.burst = model, mix, burst
        self.strict, self.most_gpus = strict, most_gpus
        self.corrections = corrections or Corrections()
        self.prices = prices or {}
        self._speeds: dict[tuple[str, int], EngineSpeed | str] = {}
        self._locals: dict[Mode, tuple[bool, ...]] = {}
        self._lost: dict[Mode, frozenset[str]] = {}
        self.error = MODEL_ERROR
        self.traffic = traffic
        self._backlogs: dict[tuple[Mode, PoolKind, PoolKind | None], Backlog] = {}

    # --- what a layout gives ---------------------------------------------------------------------------------------------

    def estimate(self, mode: Mode, pools: Sequence[PoolPlan], rate: float) -> Estimate:
        """At `rate` arrivals/s. Raises DoesNotFit for a pool that cannot be, ValueError for pools of another mode."""
        by_role = {pool.role: pool for pool in pools if pool.engines}
        if set(by_role) != set(ROLES_OF_MODE[mode]):
            raise ValueError(f"mode {mode} needs engines of the roles {' and '.join(ROLES_OF_MODE[mode])}, and no others")
        cost = math.fsum(self.price(pool.gpu) * pool.gpus for pool in pools)
        gpus = sum(pool.gpus for pool in pools)
        if not self.mix.cells or rate <= 0:
            role: Role = "mixed" if mode == "monolithic" else "decode"
            return Estimate(0.0, 0.0, 1.0, 0.0, 0.0, role, gpus, cost, None, self.error)
        answer, prefill = sides(pools)
        found = self._given(mode, answer, prefill, rate)
        if self.traffic:
            found = self._gone_by(found, self._course(mode, answer, prefill, rate), any(self._local(mode)))
        return self._told(found, mode, gpus, cost, rate)

    def _gone_by(self, lasting: Given, course: Course, stalls: bool) -> Given:
        """What pools give over the traffic's course, from what they give at its mean. `stalls`: prompts among the answers,
        whose steps are the longest gaps."""
        ttft_s, itl_s = self.model.slo.ttft_ms / 1e3, self.model.slo.itl_ms / 1e3
        slowest_s = course.slower_than_all_but(itl_s)
        latest_s = math.inf if lasting.saturated else course.later_than_all_but(ttft_s)
        return replace(
            lasting,
            ttft_p99_s=latest_s,
            itl_p99_s=max(lasting.itl_p99_s, slowest_s) if stalls else slowest_s,
            attained=course.judged(ttft_s, itl_s).in_time,
            held_by_answers=course.held_by_answers(min(latest_s, ttft_s)),
        )

    def _course(self, mode: Mode, answer: PoolPlan, prefill: PoolPlan | None, rate: float, prefills: int = 0) -> Course:
        """`prefills`: instead of the engines of `prefill`."""
        assert self.traffic is not None
        kinds = (answer.gpu, answer.tensor_parallel), (prefill.gpu, prefill.tensor_parallel) if prefill else None
        if (mode, *kinds) not in self._backlogs:
            speeds = self.speed(*kinds[0]), self.speed(*kinds[1]) if kinds[1] else None
            self._backlogs[mode, *kinds] = Backlog(self.traffic, *speeds, lambda mix: local_cells(mix, mode))
        return self._backlogs[mode, *kinds].course(answer.engines, prefills or (prefill.engines if prefill else 0), rate)

    def _given(self, mode: Mode, answer: PoolPlan, prefill: PoolPlan | None, rate: float) -> Given:
        return given(*self._question(mode, answer, prefill, rate))

    def _question(self, mode: Mode, answer: PoolPlan, prefill: PoolPlan | None, rate: float) -> Question:
        return (
            Load(rate, self.mix, self.burst),
            (self.speed(answer.gpu, answer.tensor_parallel), answer.engines),
            (self.speed(prefill.gpu, prefill.tensor_parallel), prefill.engines) if prefill else None,
            self._local(mode),
            (self.model.slo.ttft_ms / 1e3, self.model.slo.itl_ms / 1e3),
        )

    def _local(self, mode: Mode) -> tuple[bool, ...]:
        if mode not in self._locals:
            self._locals[mode] = local_cells(self.mix, mode)
        return self._locals[mode]

    def _told(self, found: Given, mode: Mode, gpus: int, cost: float, rate: float) -> Estimate:
        slo = self.model.slo
        ttft, itl = found.ttft_p99_s * 1e3 / slo.ttft_ms, found.itl_p99_s * 1e3 / slo.itl_ms
        busy = max(found.prefill_busy, found.answer_busy)
        strain = SATURATED * max(1.0, busy) if found.saturated else max(ttft, itl)
        bottleneck: Role = "mixed"
        if mode != "monolithic":
            waiting = ttft >= itl and not found.held_by_answers
            late = found.prefill_busy > found.answer_busy if found.saturated else waiting
            bottleneck = "prefill" if late else "decode"
        tokens = rate * self.mix.output_tokens
        per_million = cost / (tokens * 3600) * 1e6 if tokens else None
        return Estimate(
            found.ttft_p99_s * 1e3,
            found.itl_p99_s * 1e3,
            found.attained,
            strain,
            busy,
            bottleneck,
            gpus,
            cost,
            per_million,
            self.error,
        )

    def speed(self, kind: str, degree: int) -> EngineSpeed:
        """Raises DoesNotFit, UnknownGpu."""
        key = kind, degree
        if key not in self._speeds:
            try:
                model = PhaseModel(self.model.shape, gpu_table.gpu(kind), degree, self.model.kv_dtype)
                self._speeds[key] = EngineSpeed(
                    model, self.mix, self.model.max_num_seqs, self.model.network_gbps, self.corrections
                )
            except (DoesNotFit, UnknownGpu) as misfit:
                self._speeds[key] = str(misfit)
        found = self._speeds[key]
        if isinstance(found, str):
            raise DoesNotFit(found)
        return found

    def price(self, kind: str) -> float:
        known = gpu_table.GPUS.get(kind)
        return self.prices.get(kind, known.price_per_hour if known else 0.0)

    def judged(self, layout: Layouted) -> Layouted:
        """With its share in time over the traffic as it is: no headroom, all of its lulls and bursts."""
        return replace(layout, in_time=self._in_time(layout.mode, layout.pools))

    def past_hour(self, layout: Layouted) -> PastHour | None:
        """Of the last hour alone, as it went by; None: it was not seen as a whole."""
        if not self.traffic or not self.traffic.seen or not self.mix.cells:
            return None
        course, seen = self._as_it_is(layout.mode, layout.pools), self.traffic.seen
        ends = [seen * number // PARTS for number in range(PARTS + 1)]
        parts = tuple(self._share(course.part(first, end)) for first, end in pairwise(ends))
        return PastHour(self._share(course.part(0, seen)), parts)

    def _in_time(self, mode: Mode, pools: Sequence[PoolPlan]) -> float:
        if not self.traffic or not self.mix.cells:
            return 1.0
        return self._share(self._as_it_is(mode, pools))

    def _as_it_is(self, mode: Mode, pools: Sequence[PoolPlan]) -> Course:
        assert self.traffic is not None
        return self._course(mode, *sides(pools), self.traffic.rate)

    def _share(self, course: Course) -> float:
        return course.judged(self.model.slo.ttft_ms / 1e3, self.model.slo.itl_ms / 1e3).in_time

    # --- which there are -------------------------------------------------------------------------------------------------

    def options(self, role: Role) -> tuple[Option, ...]:
        """Kinds of engine that the role's pool allows; of a role without a pool, what the model's other pools allow."""
        own = [pool for pool in self.model.pools if pool.role == role]
        found: dict[tuple[str, int], Option] = {}
        for pool in own or self.model.pools:
            floor, ceiling = (pool.floor, pool.ceiling) if own else (1, None)
            for kind in dict.fromkeys((pool.gpu, *pool.kinds)):
                for degree in dict.fromkeys((pool.tensor_parallel, *pool.degrees)):
                    if (kind, degree) not in found and self._fits(kind, degree):
                        most = MOST_ENGINES if ceiling is None else ceiling
                        found[kind, degree] = Option(role, kind, degree, max(1, floor), max(1, most))
        return tuple(found.values())

    def _fits(self, kind: str, degree: int) -> bool:
        try:
            self.speed(kind, degree)
        except DoesNotFit:
            return False
        return True

    def out_of_reach(self, mode: Mode) -> frozenset[str]:
        """The targets (ttft, itl) that no number of GPUs keeps: those an idle engine misses. Where prompts stall decoding,
        ITL at half load counts: only GPUs that mostly idle would keep it."""
        if mode not in self._lost:
            self._lost[mode] = self._out_of_reach(mode)
        return self._lost[mode]

    def _out_of_reach(self, mode: Mode) -> frozenset[str]:
        if self.strict or not self.mix.cells:
            return frozenset()
        local = local_cells(self.mix, mode)
        ttft, itl = math.inf, math.inf
        for answer in self.options("mixed" if mode == "monolithic" else "decode"):
            prefills = self.options("prefill") if mode != "monolithic" else (None,)
            speed = self.speed(answer.gpu, answer.tensor_parallel)
            itl = min(itl, half_loaded(speed, self.mix, local).itl_p99_s if any(local) else speed.step_s(1))
            for prefill in prefills:
                many = prefill.plan(64) if prefill else None
                ttft = min(ttft, self._given(mode, answer.plan(64), many, 1e-6).ttft_p99_s)
        slo = self.model.slo
        missed = (("ttft", ttft * 1e3 > slo.ttft_ms), ("itl", itl * 1e3 > slo.itl_ms))
        return frozenset(name for name, misses in missed if misses)

    def keeps(self, mode: Mode, estimate: Estimate) -> bool:
        """Whether the targets that can be kept are, and no pool works too long."""
        lost, slo = self.out_of_reach(mode), self.model.slo
        return (
            math.isfinite(estimate.ttft_p99_ms)
            and estimate.busy <= BUSY_MOST
            and ("ttft" in lost or estimate.ttft_p99_ms <= slo.ttft_ms)
            and ("itl" in lost or estimate.itl_p99_ms <= slo.itl_ms)
        )


def sides(pools: Iterable[PoolPlan]) -> tuple[PoolPlan, PoolPlan | None]:
    """The pool that answers, and that which prefills."""
    roles = {pool.role: pool for pool in pools if pool.engines}
    return roles.get("decode") or roles["mixed"], roles.get("prefill")


def half_loaded(speed: EngineSpeed, mix: Mix, local: Sequence[bool]) -> Answering:
    """One answering engine that works half of the time."""
    low, high = 0.0, 1.0
    while not (pool := _alone(speed, mix, local, high)).saturated and pool.busy < HALF:
        low, high = high, high * 2
    for _ in range(20):
        middle = (low + high) / 2
        pool = _alone(speed, mix, local, middle)
        if pool.saturated or pool.busy > HALF:
            high = middle
        else:
            low = middle
    return _alone(speed, mix, local, low)


def _alone(speed: EngineSpeed, mix: Mix, local: Sequence[bool], rate: float) -> Answering:
    return Answering(Load(rate, mix), speed, 1, tuple(local))
