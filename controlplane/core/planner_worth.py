"""Whether a layout is enough better than the present one to be worth its moves. Pure; nothing is remembered between ticks.

A change must neither follow the noise of an estimate nor cost more than it brings. The share in time that is expected for
the next minutes may be off by 0.025 (docs/planner.md): a gain that is told by it alone must exceed LEAST_GAIN. A smaller one
counts where it takes no more GPUs and the last hour shows it by itself: over the hour it pays for the moves, and in no
quarter of it was the new layout worse. Whoever changed for such a gain is not changed back for one before the quarter that
brought it is an hour old, as that quarter speaks against the way back.
"""

from __future__ import annotations

from controlplane.core.planner_layouts import Layouted, PastHour
from controlplane.core.planner_moves import moves_between
from controlplane.core.planner_search import Search, missed

LEAST_GAIN = 0.03
"""Share of requests in time that a change must win at once where no layout keeps the targets."""
STEADY_GAIN = 0.01
"""The same for each move, over an hour that shows it throughout. A move takes an engine away for about a minute, in which up
to half of the requests come late: as much as a hundredth of an hour's."""
SURE_GAIN = 0.005
"""The same where the new layout keeps the targets. Less is no difference."""
HOPELESS = 0.05
"""Share of requests in time below which less overload is worth a change, though still few are in time."""


def worth(best: Layouted, here: Layouted, search: Search, hysteresis: float) -> bool:
    """Whether `best` wins enough over all loads of late. Where it keeps the targets and `here` does not, it need not be
    worse; else it must win clearly, or a little all of the time."""
    was = here.in_time or 0.0
    won = (best.in_time or 0.0) - was
    eased = best.estimate.strain <= here.estimate.strain * (1 - hysteresis)
    if search.keeps(best.mode, best.estimate):
        mends = missed(best, search) < missed(here, search) or not search.keeps(here.mode, here.estimate)
        return mends and (won >= SURE_GAIN or (won >= -SURE_GAIN and eased))
    if was < HOPELESS and won >= 0 and eased:
        return True
    least = hysteresis * (1 - was)
    return won >= max(LEAST_GAIN, least) or (won >= least and _steady(best, here, search))


def _steady(best: Layouted, here: Layouted, search: Search) -> bool:
    if best.estimate.cost_per_hour > here.estimate.cost_per_hour * (1 + 1e-9):
        return False
    now, then = search.past_hour(here), search.past_hour(best)
    return shown(now, then, moves_between(here.pools, best.pools))


def shown(now: PastHour | None, then: PastHour | None, moves: int) -> bool:
    """Whether the last hour shows that `then` wins enough for so many moves, and is worse in no part of it."""
    if now is None or then is None:
        return False
    enough = then.whole - now.whole >= STEADY_GAIN * max(1, moves)
    return enough and all(new >= old - SURE_GAIN for old, new in zip(now.parts, then.parts, strict=True))
