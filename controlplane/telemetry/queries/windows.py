"""Spans of time that pages ask for, the level of roll-up that answers them, and their cells. Pure; times are Unix seconds.

Levels: ten seconds (engines, requests: spans up to half an hour), minutes (pools, models, pairs, GPUs), hours (pools,
models, pairs, engines: cells of an hour and more). Hours are made from finer rows and hold the same sums and sketches, so
any mixture is right."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

from controlplane.telemetry.rollups import LATE_S

MAX_SPAN_S = 400 * 86_400
MAX_CELLS = 361
STEPS_S = (10, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400, 172_800)
"""Cells that a chart may have; each is a multiple of its level."""
FINE_SPAN_S = 1800
"""Up to this long a span is answered from ten seconds."""
TOLERATED_S = 15.0
"""Beyond a roll-up's own delay: writing it, and the clocks of this host and the telemetry server."""


class Level(IntEnum):
    """Seconds that one row of this level covers."""

    TEN_SECONDS = 10
    MINUTE = 60
    HOUR = 3600


class BadWindow(ValueError):
    """The span ends before it begins, lies in the future or is too long; the text says which."""


@dataclass(frozen=True)
class Window:
    """From `since` up to (not with) `until`, asked at `now`. Raises BadWindow."""

    since: float
    until: float
    now: float

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.since, self.until, self.now))):
            raise BadWindow("a time is not a number")
        if not 0 <= self.since < self.until:
            raise BadWindow("the end must be later than the beginning")
        if self.until - self.since > MAX_SPAN_S:
            raise BadWindow(f"at most {MAX_SPAN_S // 86_400} days can be shown at once")
        if self.since > self.now:
            raise BadWindow("it begins in the future")

    @classmethod
    def last(cls, span_s: float, now: float) -> Window:
        """The `span_s` seconds before `now`."""
        return cls(now - span_s, now, now)

    @property
    def span_s(self) -> float:
        return self.until - self.since

    @property
    def step_s(self) -> int:
        """The width of a chart's cells: at most MAX_CELLS of them."""
        finest = Level.TEN_SECONDS if self.span_s <= FINE_SPAN_S else Level.MINUTE
        fitting = (step for step in STEPS_S if step >= finest and self.span_s / step <= MAX_CELLS - 1)
        return next(fitting, STEPS_S[-1])

    def is_stale(self, at: float | None, level: Level) -> bool:
        """Whether the window reaches to the present and its newest row, which ended at `at`, is older than it should be."""
        late_s = level + LATE_S + TOLERATED_S
        if self.until < self.now - late_s:
            return False
        return at is None or at < self.now - late_s


@dataclass(frozen=True)
class Cells:
    """The cells of a chart: multiples of `step_s` that the window touches."""

    starts: list[int]
    step_s: int

    @property
    def level(self) -> Level:
        if self.step_s < Level.MINUTE:
            return Level.TEN_SECONDS
        return Level.HOUR if self.step_s % Level.HOUR == 0 else Level.MINUTE

    @property
    def since(self) -> int:
        return self.starts[0]

    @property
    def until(self) -> int:
        return self.starts[-1] + self.step_s


def cells(window: Window, finest: Level = Level.TEN_SECONDS) -> Cells:
    """The cells of a window. `finest`: of the table that is asked."""
    step_s = max(window.step_s, int(finest))
    first, last = math.floor(window.since / step_s), math.ceil(window.until / step_s)
    return Cells([number * step_s for number in range(first, last)], step_s)


def one_cell(window: Window, level: Level) -> tuple[int, int]:
    """Where the whole rows of `level` that a window touches begin and end."""
    return math.floor(window.since / level) * level, math.ceil(window.until / level) * level
