"""How many engines a change moves, and how far it goes with fewer moves. Pure.

An engine that takes another role, starts or stops is one move. A change between `mixed` and `decode` is none: it goes on
answering as before and only gets no more prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from controlplane.core.planner_layouts import Layouted
from controlplane.core.planner_search import Search, rank
from controlplane.core.planner_types import PoolPlan
from controlplane.core.protocol import Mode, Role

Shape = tuple[str, str, int]
"""(what it does, kind of GPU, tensor parallel)."""


def moves_between(before: Sequence[PoolPlan], after: Sequence[PoolPlan]) -> int:
    """Engines that must move. Equal shapes change role as they run; others are stopped and started."""
    old, new = _counts(before), _counts(after)
    total = 0
    for hardware in {(shape[1], shape[2]) for shape in (*old, *new)}:
        change = [new.get(shape, 0) - old.get(shape, 0) for shape in {*old, *new} if (shape[1], shape[2]) == hardware]
        total += max(sum(each for each in change if each > 0), -sum(each for each in change if each < 0))
    return total


def within(
    search: Search, mode: Mode, before: Sequence[PoolPlan], after: Sequence[PoolPlan], rate: float, budget: int
) -> Layouted | None:
    """The change as far as `budget` moves carry it, the most useful moves first; None where it cannot be cut (another mode,
    other hardware) or nothing can be done."""
    if {(pool.role, pool.gpu, pool.tensor_parallel) for pool in before} != {
        (pool.role, pool.gpu, pool.tensor_parallel) for pool in after
    }:
        return None
    pools = tuple(before)
    for _ in range(budget):
        steps = [Layouted(mode, step, search.estimate(mode, step, rate)) for step in _steps(pools, after)]
        if not steps:
            break
        pools = min(steps, key=lambda step: rank(step, search)).pools
    return Layouted(mode, pools, search.estimate(mode, pools, rate)) if pools != tuple(before) else None


def _steps(pools: tuple[PoolPlan, ...], after: Sequence[PoolPlan]) -> Iterator[tuple[PoolPlan, ...]]:
    """Every single move towards `after`."""
    wanted = {pool.role: pool.engines for pool in after}
    over = [pool for pool in pools if pool.engines > wanted[pool.role]]
    under = [pool for pool in pools if pool.engines < wanted[pool.role]]
    pairs = [
        (give, take)
        for give in over
        for take in under
        if (give.gpu, give.tensor_parallel) == (take.gpu, take.tensor_parallel)
    ]
    if pairs:
        for give, take in pairs:
            yield _changed(pools, {give.role: -1, take.role: 1})
        return
    for pool in over:
        yield _changed(pools, {pool.role: -1})
    for pool in under:
        yield _changed(pools, {pool.role: 1})


def _changed(pools: tuple[PoolPlan, ...], by: dict[Role, int]) -> tuple[PoolPlan, ...]:
    return tuple(PoolPlan(pool.role, pool.engines + by.get(pool.role, 0), pool.tensor_parallel, pool.gpu) for pool in pools)


def _counts(pools: Sequence[PoolPlan]) -> dict[Shape, int]:
    found: dict[Shape, int] = {}
    for pool in pools:
        does = "prefill" if pool.role == "prefill" else "answer"
        key = does, pool.gpu, pool.tensor_parallel
        found[key] = found.get(key, 0) + pool.engines
    return found
