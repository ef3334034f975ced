"""How busy the simulated GPUs were lately, worked out when somebody asks: an idle engine wakes for nothing."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from controlplane.core.perf import StepCost

WINDOW_S = 1.0


class Busy(NamedTuple):
    """Averages over the window, and the highest tensor activity inside a kernel. Shares 0..1."""

    tensor: float
    tensor_peak: float
    dram: float


class Activity:
    """The steps of the last second. Times are of one monotonic clock, seconds."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, float, StepCost]] = deque()

    def record(self, start: float, end: float, cost: StepCost) -> None:
        """A step runs from `start` to `end` (which may lie ahead)."""
        self._steps.append((start, end, cost))
        while self._steps[0][1] < start - WINDOW_S:
            self._steps.popleft()

    def lately(self, now: float) -> Busy:
        """The last second before `now`; a running step counts as far as it has got."""
        since = now - WINDOW_S
        tensor = dram = peak = 0.0
        for start, end, cost in self._steps:
            seconds = min(end, now) - max(start, since)
            if seconds > 0:
                tensor += cost.tensor * seconds
                dram += cost.dram * seconds
                peak = max(peak, cost.tensor_peak)
        return Busy(min(1.0, tensor / WINDOW_S), peak, min(1.0, dram / WINDOW_S))
