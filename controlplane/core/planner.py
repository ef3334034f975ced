"""What should change in a fleet now: one proposal or one reason to hold for each model. Pure: zero I/O, no clock.

Observe → predict → search → constrain. Models are looked at in the order of their priority; what one takes of the spare
GPUs the next cannot. The same fleet and time give the same decision. Nothing is remembered between ticks: cool-down,
budget and what was lent are facts of the fleet.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from controlplane.core.planner_choice import Choice, choose
from controlplane.core.planner_guards import before_changing, before_looking, moves_left, no_budget
from controlplane.core.planner_inputs import Demand, demand
from controlplane.core.planner_layouts import Layouted
from controlplane.core.planner_moves import moves_between
from controlplane.core.planner_search import Search, needed_gpus, present, search_for
from controlplane.core.planner_types import (
    LEVELS,
    Accuracy,
    Alternative,
    Cause,
    Decision,
    Estimate,
    FleetNow,
    Guards,
    Hold,
    HoldCode,
    Inputs,
    Lent,
    Level,
    Manual,
    ModelNow,
    Outcome,
    Peak,
    PoolNow,
    PoolPlan,
    Proposal,
    Span,
)
from controlplane.core.protocol import Mode
from controlplane.core.trading import Trade, give_back, trade
from controlplane.core.workload import Mix

__all__ = [
    "LEVELS",
    "Accuracy",
    "Alternative",
    "Cause",
    "Decision",
    "Estimate",
    "FleetNow",
    "Guards",
    "Hold",
    "HoldCode",
    "Inputs",
    "Lent",
    "Level",
    "Manual",
    "ModelNow",
    "Outcome",
    "Peak",
    "PoolNow",
    "PoolPlan",
    "Proposal",
    "Span",
    "accuracy",
    "estimate",
    "frontier",
    "needed_gpus",
    "propose",
]

FEWEST_OUTCOMES = 3
WORTH = 0.02
"""By how much less a dearer layout of the frontier must strain."""


def propose(fleet: FleetNow, now_s: float) -> Decision:
    """What to do at `now_s` (seconds since the epoch)."""
    spare = dict(fleet.spare)
    taken: set[str] = set()
    found: dict[str, Proposal | Hold] = {}
    for model in sorted(fleet.models, key=lambda each: (-each.priority, each.name)):
        if model.name in taken:
            found[model.name] = Hold(model.name, "operation", "It gives GPUs to another model in this proposal.")
            continue
        answer = _one(model, fleet, spare, now_s, frozenset(found) | taken)
        found[model.name] = answer
        if isinstance(answer, Proposal):
            taken |= {lent.giver for lent in (*answer.takes, *answer.gives_back)} - {model.name}
            _settle(spare, answer)
    ordered = [found[model.name] for model in fleet.models]
    return Decision(
        now_s,
        tuple(each for each in ordered if isinstance(each, Proposal)),
        tuple(each for each in ordered if isinstance(each, Hold)),
    )


def _one(
    model: ModelNow, fleet: FleetNow, spare: Mapping[str, int], now_s: float, decided: frozenset[str]
) -> Proposal | Hold:
    held = before_looking(model, now_s)
    if held:
        return Hold(model.name, *held)
    load = demand(model, now_s)
    if load is None:
        return Hold(model.name, "empty", "No window of its traffic is complete.")
    search = search_for(model, load, fleet.prices)
    if not search.options("mixed" if model.mode == "monolithic" else "decode"):
        return Hold(model.name, "no_hardware", "The model does not fit the GPUs of its pools.", inputs=load.inputs)
    budget = moves_left(model, now_s)
    returned = give_back(model, fleet, search, load, now_s, decided)
    if returned is None:
        choice = choose(model, search, load, spare, budget)
        traded = trade(model, fleet, choice, search, load, spare, decided, now_s) if _lacks(choice) else None
    else:
        choice, traded = returned.choice, returned
    return _answer(model, search, load, choice, traded, budget, now_s)


def _lacks(choice: Choice) -> bool:
    return choice.short or (choice.why_not is not None and choice.why_not[0] == "no_gpus")


def _answer(
    model: ModelNow,
    search: Search,
    load: Demand,
    choice: Choice,
    traded: Trade | None,
    budget: int,
    now_s: float,
) -> Proposal | Hold:
    """The proposal, or what holds it."""
    if traded:
        choice = traded.choice
    if choice.best is None:
        code, reason = choice.why_not or ("good", "Nothing is to be done.")
        return Hold(model.name, code, reason, choice.now, load.inputs)  # type: ignore[arg-type]
    missed = _missed(model)
    held = before_changing(model, load, now_s, missed)
    if held:
        return Hold(model.name, *held, choice.now, load.inputs)
    before = present(model.pools)
    moves = moves_between(before, choice.best.pools)
    if budget <= 0 or moves > budget:
        return Hold(model.name, *no_budget(model), choice.now, load.inputs)
    return _proposal(model, load, choice, choice.best, traded, moves, now_s)


def _proposal(
    model: ModelNow, load: Demand, choice: Choice, best: Layouted, traded: Trade | None, moves: int, now_s: float
) -> Proposal:
    before = present(model.pools)
    cause: Cause = choice.cause
    return Proposal(
        id=f"{model.name}: {_text(model.mode, before)} → {_text(best.mode, best.pools)}",
        model=model.name,
        cause=cause,
        mode_before=model.mode,
        mode=best.mode,
        before=before,
        pools=best.pools,
        moves=moves,
        now=choice.now,
        then=best.estimate,
        reasons=choice.reasons,
        alternatives=choice.alternatives,
        inputs=load.inputs,
        expires_at_s=now_s + model.guards.lifetime_s,
        takes=traded.takes if traded else (),
        gives_back=traded.gives_back if traded else (),
        giver_now=traded.giver_now if traded else None,
        giver_then=traded.giver_then if traded else None,
        giver_pools=traded.giver_pools if traded else (),
    )


def _missed(model: ModelNow) -> bool:
    """Whether users missed a target in the last window."""
    if not model.observed:
        return False
    last = model.observed[-1]
    ttft, itl = last.ttft_p99_ms, last.itl_p99_ms
    return last.samples >= model.guards.min_samples and (
        (ttft is not None and ttft > model.slo.ttft_ms) or (itl is not None and itl > model.slo.itl_ms)
    )


def _settle(spare: dict[str, int], proposal: Proposal) -> None:
    """What the proposal takes of the spare GPUs is gone for the models after it; what it frees is not there yet."""
    before: dict[str, int] = {}
    for pool in proposal.before:
        before[pool.gpu] = before.get(pool.gpu, 0) + pool.gpus
    for pool in proposal.pools:
        before[pool.gpu] = before.get(pool.gpu, 0) - pool.gpus
    for kind, freed in before.items():
        if freed < 0:
            spare[kind] = max(0, spare.get(kind, 0) + freed)


def _text(mode: Mode, pools: Iterable[PoolPlan]) -> str:
    return f"{mode} {'+'.join(f'{pool.role} {pool.text}' for pool in pools)}"


def estimate(model: ModelNow, mode: Mode, pools: Sequence[PoolPlan], rate: float, mix: Mix, burst: float = 1.0) -> Estimate:
    """What a layout of the model gives at `rate` requests/s of `mix`. Raises DoesNotFit for a pool that cannot be, and
    ValueError for pools that are not the mode's."""
    return Search(model, mix, burst).estimate(mode, pools, rate)


def frontier(
    model: ModelNow,
    rate: float,
    mix: Mix,
    room: Mapping[str, int],
    burst: float = 1.0,
    prices: Mapping[str, float] | None = None,
) -> tuple[Alternative, ...]:
    """The layouts on `room` (GPUs by kind) that no other beats in both cost and strain, the cheapest first; those that
    cannot keep up only where all cannot. `why_not` is
    empty where the targets are kept."""
    search = Search(model, mix, burst, prices=prices)
    found: dict[tuple[Mode, tuple[PoolPlan, ...]], Layouted] = {}
    for mode in dict.fromkeys((model.mode, *model.modes)):
        for share in _shares(room):
            for each in (*search.splits(mode, rate, share), *search.smallest(mode, rate, share)):
                found[each.mode, each.pools] = each
    kept: list[Layouted] = []
    able = [each for each in found.values() if math.isfinite(each.estimate.ttft_p99_ms)] or list(found.values())
    for each in sorted(able, key=lambda one: (one.estimate.cost_per_hour, one.estimate.strain)):
        if not kept or each.estimate.strain < kept[-1].estimate.strain * (1 - WORTH):
            kept.append(each)
    return tuple(
        Alternative(
            each.mode, each.pools, each.estimate, "" if search.keeps(each.mode, each.estimate) else _misses(each, model)
        )
        for each in kept
    )


def _shares(room: Mapping[str, int]) -> Iterable[dict[str, int]]:
    """Parts of the GPUs: a layout need not use all of them."""
    for eighths in range(1, 9):
        yield {kind: count * eighths // 8 for kind, count in room.items()}


def _misses(each: Layouted, model: ModelNow) -> str:
    ttft = each.estimate.ttft_p99_ms > model.slo.ttft_ms
    itl = each.estimate.itl_p99_ms > model.slo.itl_ms
    names = " and ".join(name for name, missed in (("TTFT", ttft), ("ITL", itl)) if missed)
    return f"It misses the {names} target." if names else "Its engines would work all of the time."


def accuracy(outcomes: Sequence[Outcome]) -> Accuracy:
    """How far the predictions of carried-out proposals were off."""

    def miss(pairs: Iterable[tuple[float, float | None]]) -> float | None:
        found = [abs(predicted / actual - 1) for predicted, actual in pairs if actual]
        return median(found) if len(found) >= FEWEST_OUTCOMES else None

    return Accuracy(
        len(outcomes),
        miss((each.predicted_ttft_p99_ms, each.actual_ttft_p99_ms) for each in outcomes),
        miss((each.predicted_itl_p99_ms, each.actual_itl_p99_ms) for each in outcomes),
    )
