"""What is kept of a canary's sessions: totals of each arm, and step by step the blocks that are compared. Pure.

It grows with kinds of blocks, not with sessions, and is kept in one row as JSON.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from controlplane.core.betting import Block, Tally, block_shape
from controlplane.core.codec import decode, encode
from controlplane.core.sketches import bucket_index, bucket_value

Measure = Literal["over", "failed", "kv_lost"]
MEASURES: tuple[Measure, ...] = ("over", "failed", "kv_lost")

KEPT_BLOCKS = 2
"""How many blocks' worth of sessions of one arm wait for the other: older ones met another load."""


@dataclass(frozen=True)
class Session:
    """What a session showed. `fell_back`: of the canary, but main had to serve it: it tells nothing of either."""

    canary: bool
    over: bool = False
    failed: bool = False
    kv_lost: bool = False
    fell_back: bool = False
    ttft_ms: float | None = None
    """Of its slowest request."""
    itl_ms: float | None = None
    """Mean time between tokens of its slowest stream."""

    @property
    def bits(self) -> int:
        """The three measures, first one lowest."""
        return sum(1 << index for index, measure in enumerate(MEASURES) if getattr(self, measure))


@dataclass(frozen=True)
class Spread:
    """Counts per logarithmic bucket (core.sketches), by the bucket's number as text."""

    buckets: Mapping[str, int] = field(default_factory=dict)

    def with_values(self, values: Iterable[float | None]) -> Spread:
        more = Counter(str(bucket_index(value)) for value in values if value is not None)
        return Spread(dict(Counter(self.buckets) + more)) if more else self

    @property
    def p99(self) -> float | None:
        """None when empty."""
        rank, seen = math.ceil(0.99 * sum(self.buckets.values())), 0
        for index in sorted(map(int, self.buckets)):
            seen += self.buckets[str(index)]
            if seen >= rank:
                return bucket_value(index)
        return None


@dataclass(frozen=True)
class Arm:
    """Totals since the canary began. `sessions` are those compared or to be compared; `fell_back` come on top."""

    sessions: int = 0
    over: int = 0
    failed: int = 0
    kv_lost: int = 0
    fell_back: int = 0
    ttft_ms: Spread = Spread()
    itl_ms: Spread = Spread()

    @property
    def asked(self) -> int:
        return self.sessions + self.fell_back

    @property
    def fallback_share(self) -> float:
        return self.fell_back / self.asked if self.asked else 0.0

    def with_sessions(self, seen: list[Session]) -> Arm:
        served = [session for session in seen if not session.fell_back]
        return Arm(
            sessions=self.sessions + len(served),
            over=self.over + sum(session.over for session in served),
            failed=self.failed + sum(session.failed for session in served),
            kv_lost=self.kv_lost + sum(session.kv_lost for session in served),
            fell_back=self.fell_back + len(seen) - len(served),
            ttft_ms=self.ttft_ms.with_values(session.ttft_ms for session in served),
            itl_ms=self.itl_ms.with_values(session.itl_ms for session in served),
        )


@dataclass(frozen=True)
class Counted:
    """`times` blocks of one kind."""

    block: Block
    times: int


@dataclass(frozen=True)
class Step:
    """Blocks of one step, measure by measure; no two entries of a measure are of the same kind."""

    over: tuple[Counted, ...] = ()
    failed: tuple[Counted, ...] = ()
    kv_lost: tuple[Counted, ...] = ()

    def tally(self, measure: Measure) -> Tally:
        return {each.block: each.times for each in getattr(self, measure)}


@dataclass(frozen=True)
class Evidence:
    """Everything that a verdict is made from."""

    canary: Arm = Arm()
    main: Arm = Arm()
    steps: tuple[Step, ...] = (Step(),)
    """The last is the present one."""
    step_canary: int = 0
    step_main: int = 0
    """Sessions of the present step."""
    waiting_canary: tuple[int, ...] = ()
    waiting_main: tuple[int, ...] = ()
    """Session.bits of those not in a block yet, oldest first."""

    @classmethod
    def read(cls, stored: object) -> Evidence:
        """Raises ValueError if it is no `written` evidence."""
        return decode(cls, stored)

    def written(self) -> dict[str, Any]:
        """As JSON."""
        document: dict[str, Any] = encode(self)
        return document

    def step(self, measure: Measure) -> Tally:
        return self.steps[-1].tally(measure)

    def stages(self, measure: Measure) -> list[Tally]:
        return [step.tally(measure) for step in self.steps]

    def next_step(self) -> Evidence:
        """A step is over; sessions that still wait belong to none."""
        return replace(self, steps=(*self.steps, Step()), step_canary=0, step_main=0, waiting_canary=(), waiting_main=())

    def with_sessions(self, seen: Iterable[Session], share: float) -> Evidence:
        """More sessions whose outcome is settled, in the order in which they began, while the canary has `share`."""
        mine: list[Session] = []
        others: list[Session] = []
        for session in seen:
            (mine if session.canary else others).append(session)
        served = [session.bits for session in mine if not session.fell_back]
        counted = [session.bits for session in others]
        shape = block_shape(share)
        blocks, canary, main = deal([*self.waiting_canary, *served], [*self.waiting_main, *counted], shape)
        step = self.steps[-1]
        return replace(
            self,
            canary=self.canary.with_sessions(mine),
            main=self.main.with_sessions(others),
            steps=(*self.steps[:-1], _with_blocks(step, blocks)) if blocks else self.steps,
            step_canary=self.step_canary + len(served),
            step_main=self.step_main + len(counted),
            waiting_canary=tuple(canary[-KEPT_BLOCKS * shape[0] :]),
            waiting_main=tuple(main[-KEPT_BLOCKS * shape[1] :]),
        )


Dealt = tuple[list[int], list[int]]


def deal(canary: list[int], main: list[int], shape: tuple[int, int]) -> tuple[list[Dealt], list[int], list[int]]:
    """Blocks of `shape` from sessions in order, and what is left of each arm. Nothing here looks at an outcome."""
    mine, others = shape
    whole = min(len(canary) // mine, len(main) // others)
    blocks = [
        (canary[index * mine : (index + 1) * mine], main[index * others : (index + 1) * others]) for index in range(whole)
    ]
    return blocks, canary[whole * mine :], main[whole * others :]


def _with_blocks(step: Step, blocks: list[Dealt]) -> Step:
    tallies = [Counter(step.tally(measure)) for measure in MEASURES]
    for canary, main in blocks:
        for bit, tally in enumerate(tallies):
            hits = (sum(session >> bit & 1 for session in arm) for arm in (canary, main))
            tally[Block(len(canary), len(main), *hits)] += 1
    over, failed, kv_lost = (tuple(Counted(block, times) for block, times in tally.items()) for tally in tallies)
    return Step(over, failed, kv_lost)
