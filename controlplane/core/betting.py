"""Anytime-valid comparison of two arms by betting: how strong the evidence is, whenever one looks. Pure.

Sessions that ended at about the same time are dealt into blocks, each with sessions of both arms. X, the share of a block's
canary sessions that had the outcome (were over the SLO, say) less that of its main sessions, lies in -1..1. Whoever doubts
"X is at most `by` on average" stakes a fixed fraction f of what he has on every block; his wealth is multiplied by
1 - f + f (1 + X) / (1 + by), which is 1 on average where the doubt is unfounded and less where X is smaller. So his
wealth passes 1/alpha with a chance of at most alpha, however often anybody looks and whenever they stop (Ville 1939). As
nobody knows the best fraction, the wealth is split over several from the start (Robbins 1970); that it may be, and the
bounds of a mean that follow, is in Waudby-Smith & Ramdas, "Estimating means of bounded random variables by betting", JRSS B
86 (2024); that blocks of both arms may be used while outcomes drift in both, as loads do, in Turner, Ly & Grünwald, "Generic
E-variables for exact sequential k-sample tests that allow for optional stopping", J. Stat. Plan. Inference 230 (2024).

Blocks with the same outcomes multiply wealth by the same: a tally of blocks is all that need be kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

FRACTIONS = tuple(0.98 * 2.0**-power for power in range(8))
"""Of the wealth that is staked, from for large effects to for small ones. Never all: one block must not ruin anybody."""
MAX_PER_BLOCK = 9
"""Sessions of the larger arm in a block: more hardly make the mean of that arm steadier, and would wait for each other."""

Claim = Literal["above", "below"]
"""What the wealth is evidence for: that X is on average more than `by`, or less."""


@dataclass(frozen=True)
class Block:
    """`canary` and `main` sessions, of which `canary_hits` and `main_hits` had the outcome."""

    canary: int
    main: int
    canary_hits: int
    main_hits: int

    @property
    def difference(self) -> float:
        return self.canary_hits / self.canary - self.main_hits / self.main


Tally = Mapping[Block, int]
"""How often each kind of block was seen."""


def block_shape(share: float) -> tuple[int, int]:
    """Canary and main sessions of a block while the canary has `share` (0 to 1) of sessions: one of the smaller arm, and as
    many whole ones of the other as come with it."""
    if share <= 0.5:
        return 1, _bounded((1 - share) / max(share, 1e-6))
    return _bounded(share / max(1 - share, 1e-6)), 1


def _bounded(ratio: float) -> int:
    return max(1, min(MAX_PER_BLOCK, int(ratio + 1e-9)))


def log_wealth(tally: Tally, claim: Claim, by: float = 0.0) -> float:
    """Natural logarithm of what was won by doubting the opposite of `claim`. `by` must lie between -1 and 1."""
    return _log_mean_exp(_log_wealths(tally, claim, by))


def log_wealth_since_any(tallies: Iterable[Tally], stages: int, claim: Claim, by: float = 0.0) -> float:
    """The same for somebody who put an equal part of his wealth aside for each of `stages`, to be staked from then on: a
    change that comes with a late stage is not outweighed by all that was well before. `tallies`: of the stages so far."""
    sums = [0.0] * len(FRACTIONS)
    wealths = [0.0] * stages
    for index, tally in enumerate(reversed(list(tallies))):
        sums = [before + gained for before, gained in zip(sums, _log_wealths(tally, claim, by), strict=True)]
        wealths[index] = _log_mean_exp(sums)
    return _log_mean_exp(wealths)


def bounds(tally: Tally, alpha: float) -> tuple[float, float]:
    """Lower and upper bound of the mean difference; each is wrong, ever, with a chance of at most `alpha`."""
    limit = -math.log(alpha)
    return _edge(tally, "above", limit), _edge(tally, "below", limit)


def _edge(tally: Tally, claim: Claim, limit: float) -> float:
    """The last `by` at which the wealth reaches `limit`: it falls (above) or rises (below) with `by`."""
    low, high = -1.0, 1.0  # `above`: reached at low, not at high; `below`: the other way round
    for _ in range(24):
        middle = (low + high) / 2
        if (log_wealth(tally, claim, middle) >= limit) == (claim == "above"):
            low = middle
        else:
            high = middle
    return low if claim == "above" else high


def _log_wealths(tally: Tally, claim: Claim, by: float) -> list[float]:
    """One for each of FRACTIONS."""
    sums = [0.0] * len(FRACTIONS)
    for block, count in tally.items():
        for index, gained in enumerate(_gains(block.difference, claim, by)):
            sums[index] += count * gained
    return sums


@lru_cache(maxsize=8192)
def _gains(difference: float, claim: Claim, by: float) -> tuple[float, ...]:
    """Logarithm of what a block multiplies wealth by, for each of FRACTIONS."""
    odds = (1 + difference) / (1 + by) if claim == "above" else (1 - difference) / (1 - by)
    return tuple(math.log1p(fraction * (odds - 1)) for fraction in FRACTIONS)


def _log_mean_exp(values: list[float]) -> float:
    largest = max(values)
    return largest + math.log(math.fsum(math.exp(value - largest) for value in values) / len(values))
