"""Times between tokens, weighted by how many tokens waited them, without one number per token. Pure; seconds.

Logarithmic buckets 0.1% wide, each remembered by its middle: a quantile is off by at most 0.05%. A run of steps whose times
grow evenly is entered as at most eight pieces, which adds at most 1/16 of its growth (a run that grows by 2%: 0.13%).
"""

from __future__ import annotations

import math

WIDTH = 0.001
MOST_PIECES = 8


class Gaps:
    """A histogram of durations. `total_s` and `count` are exact."""

    __slots__ = ("buckets", "count", "total_s")

    def __init__(self) -> None:
        self.buckets: dict[int, int] = {}
        self.count = 0
        self.total_s = 0.0

    def add(self, seconds: float, tokens: int) -> None:
        """`tokens` tokens that came `seconds` (more than 0) after the one before."""
        index = math.floor(math.log(seconds) / WIDTH)
        self.buckets[index] = self.buckets.get(index, 0) + tokens
        self.count += tokens
        self.total_s += seconds * tokens

    def add_run(self, first_s: float, last_s: float, steps: int, sequences: int) -> None:
        """`steps` steps of `sequences` sequences each, whose times grow evenly from `first_s` to `last_s`."""
        growth = last_s / first_s - 1
        pieces = min(MOST_PIECES, steps, 1 + int(growth / WIDTH))
        if pieces <= 1:
            self.add((first_s + last_s) / 2, steps * sequences)
            return
        done = 0
        for piece in range(1, pieces + 1):
            upto = steps * piece // pieces
            middle = (done + upto - 1) / 2 / (steps - 1)
            self.add(first_s + (last_s - first_s) * middle, (upto - done) * sequences)
            done = upto

    def merge(self, other: Gaps) -> None:
        for index, count in other.buckets.items():
            self.buckets[index] = self.buckets.get(index, 0) + count
        self.count += other.count
        self.total_s += other.total_s

    def quantile(self, q: float) -> float:
        """The duration that a share `q` (0..1) of all tokens do not exceed. Raises ValueError when there are none."""
        if not self.count:
            raise ValueError("no token was counted")
        rank, seen = q * self.count - 1e-9, 0
        ordered = sorted(self.buckets)
        for index in ordered:
            seen += self.buckets[index]
            if seen >= rank:
                return _middle(index)
        return _middle(ordered[-1])

    def share_within(self, seconds: float) -> float:
        """Share of the tokens that came at most `seconds` after the one before; 1 when there are none."""
        if not self.count:
            return 1.0
        return sum(count for index, count in self.buckets.items() if _middle(index) <= seconds) / self.count


def _middle(index: int) -> float:
    return math.exp((index + 0.5) * WIDTH)
