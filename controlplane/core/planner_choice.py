"""Which layout one model should have on the GPUs there are, and why. Pure; guards of time and budget are elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from controlplane.core.counts import some
from controlplane.core.planner_inputs import Demand
from controlplane.core.planner_layouts import Layouted
from controlplane.core.planner_moves import moves_between, within
from controlplane.core.planner_search import Search, missed, present, rank, spread_room
from controlplane.core.planner_types import Alternative, Cause, Estimate, ModelNow, PoolPlan
from controlplane.core.planner_worth import worth
from controlplane.core.protocol import Mode, Role

KEPT = 4
"""Alternatives that are told."""


@dataclass(frozen=True)
class Choice:
    """`best` None: stay. `why_not` then says why. `short`: even `best` misses the targets on the GPUs there are."""

    now: Estimate
    """The present layout at the load that is planned for."""
    best: Layouted | None
    cause: Cause
    reasons: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    short: bool = False
    why_not: tuple[str, str] | None = None


def choose(model: ModelNow, search: Search, demand: Demand, spare: Mapping[str, int], budget: int) -> Choice:
    """The choice for the demand; `budget`: moves that it may take."""
    before = present(model.pools)
    now = search.estimate(model.mode, before, demand.grow)
    here = Layouted(model.mode, before, now)
    if search.keeps(model.mode, now) and not _another_mode_reaches_more(model, search, here):
        return _smaller(model, search, demand, here, budget)
    return _larger(model, search, demand, here, spare, budget)


# --- the targets are missed: other split, other mode, more GPUs ---------------------------------------------------


def _larger(
    model: ModelNow, search: Search, demand: Demand, here: Layouted, spare: Mapping[str, int], budget: int
) -> Choice:
    own, room = spread_room(model, {}), spread_room(model, spare)
    modes = dict.fromkeys((model.mode, *model.modes))
    found: list[Layouted] = []
    for mode in modes:
        found += search.splits(mode, demand.grow, own, partial(_affordable, here, budget, mode))
    if not any(search.keeps(each.mode, each.estimate) for each in found):
        for mode in modes:
            found += search.smallest(mode, demand.grow, room)
            found += search.splits(mode, demand.grow, room) if room != own else ()
    found = [each for each in found if each.pools != here.pools or each.mode != here.mode]
    here, found = search.judged(here), [search.judged(each) for each in found]
    # Of equal cost the layout with the least strain wins, so that the next change is far.
    best = min(found, key=lambda each: rank(each, search), default=None)
    cause = _cause(search, demand, here, best)
    if best is None:
        return _stay(here, search, cause, ("no_gpus", "No other layout fits its GPUs, floors and ceilings."))
    if not worth(best, here, search, model.guards.hysteresis):
        return _hopeless(model, search, here, best, cause, found)
    if moves_between(here.pools, best.pools) > budget:
        cut = within(search, model.mode, here.pools, best.pools, demand.grow, budget) if best.mode == here.mode else None
        cut = search.judged(cut) if cut else None
        if cut is None or not worth(cut, here, search, model.guards.hysteresis):
            code = ("budget", f"It would take {moves_between(here.pools, best.pools)} moves, {budget} are left this hour.")
            return _stay(here, search, cause, code, found)
        best = cut
    here = _limited_by(here, best)
    return Choice(
        here.estimate,
        best,
        cause,
        _why(model, search, demand, here, best, cause),
        _alternatives(found, best, search),
        short=not search.keeps(best.mode, best.estimate),
    )


def _limited_by(here: Layouted, best: Layouted) -> Layouted:
    """With the pool as its bottleneck of which `best` has more, where that is one pool only: what helps is what was lacking,
    whatever a single p99 says."""
    roles = {each.role for each in here.pools}
    if best.mode != here.mode or roles != {each.role for each in best.pools}:
        return here
    more = [role for role in sorted(roles) if _gpus(best, role) > _gpus(here, role)]
    return replace(here, estimate=replace(here.estimate, bottleneck=more[0])) if len(more) == 1 else here


def _gpus(layout: Layouted, role: Role) -> int:
    return sum(each.gpus for each in layout.pools if each.role == role)


def _another_mode_reaches_more(model: ModelNow, search: Search, here: Layouted) -> bool:
    lost = search.out_of_reach(model.mode)
    return missed(here, search) > 0 and any(search.out_of_reach(mode) < lost for mode in model.modes)


def _affordable(here: Layouted, budget: int, mode: Mode, pools: Sequence[PoolPlan]) -> bool:
    """Another mode cannot be taken up by halves; another split can."""
    return mode == here.mode or moves_between(here.pools, pools) <= budget


def _hopeless(
    model: ModelNow, search: Search, here: Layouted, best: Layouted, cause: Cause, found: Sequence[Layouted]
) -> Choice:
    lost = search.out_of_reach(model.mode)
    if lost and not _busy(here):
        names = " and ".join(name.upper() for name in sorted(lost, reverse=True))
        code = (
            "infeasible",
            f"The {names} target cannot be kept with any number of these GPUs in this mode: more would not help.",
        )
    else:
        code = ("no_gpus", "It misses its targets, and no layout on the GPUs there are is clearly better.")
    return _stay(here, search, cause, code, found)


def _busy(here: Layouted) -> bool:
    return here.estimate.busy > 1.0 - 1e-9 or here.estimate.ttft_p99_ms == float("inf")


def _cause(search: Search, demand: Demand, here: Layouted, best: Layouted | None) -> Cause:
    if best is not None and best.mode != here.mode:
        return "mode"
    if best is not None and best.estimate.gpus == here.estimate.gpus:
        return "mix"
    if demand.inputs.peak:
        return "schedule"
    at_present = search.estimate(here.mode, here.pools, demand.inputs.rate)
    return "growth" if search.keeps(here.mode, at_present) else "slo"


# --- the targets are kept: fewer GPUs -----------------------------------------------------------------------------


def _smaller(model: ModelNow, search: Search, demand: Demand, here: Layouted, budget: int) -> Choice:
    good = ("good", f"It keeps its targets at the expected load: {_told(here.estimate, model)}.")
    if not model.guards.give_up:
        return _stay(here, search, "idle", good)
    if demand.idle:
        floors = tuple(PoolPlan(p.role, min(p.engines, p.floor), p.tensor_parallel, p.gpu) for p in model.pools)
        floors = tuple(each if each.engines else PoolPlan(each.role, 1, each.tensor_parallel, each.gpu) for each in floors)
        target: Layouted | None = Layouted(model.mode, floors, search.estimate(model.mode, floors, 0.0))
    else:
        found = [
            each
            for each in search.smallest(model.mode, demand.grow, spread_room(model, {}))
            if each.estimate.cost_per_hour < here.estimate.cost_per_hour * (1 - 1e-9)
        ]
        same = [each for each in found if _same_shapes(each.pools, here.pools)]
        target = min(same or found, key=lambda each: rank(each, search), default=None)
    if target is None or target.pools == here.pools:
        return _stay(here, search, "idle", good)
    target = _consolidated(model, search, demand, here, target, budget)
    if target is None:
        told = f"With one engine fewer, load × N/(N−1), it would miss its targets at {demand.grow:,.2f} requests/s."
        return _stay(here, search, "idle", ("consolidation", told))
    saved = 1 - target.estimate.cost_per_hour / here.estimate.cost_per_hour
    if not demand.idle and saved < model.guards.hysteresis:
        told = f"It would save {saved:.0%} of its cost, less than the {model.guards.hysteresis:.0%} a change must bring."
        return _stay(here, search, "idle", ("hysteresis", told))
    cause: Cause = "idle"
    return Choice(
        here.estimate,
        target,
        cause,
        _why(model, search, demand, here, target, cause),
        (),
    )


def _consolidated(
    model: ModelNow, search: Search, demand: Demand, here: Layouted, target: Layouted, budget: int
) -> Layouted | None:
    """As many removals as the budget and the check allow: what stays must keep its targets with a margin."""
    if not _same_shapes(target.pools, here.pools):
        safe = search.keeps(target.mode, target.estimate) and moves_between(here.pools, target.pools) <= budget
        return target if safe and _margin(model, search, target) else None
    for moves in range(min(budget, moves_between(here.pools, target.pools)), 0, -1):
        cut = within(search, model.mode, here.pools, target.pools, demand.grow, moves)
        if cut is None:
            continue
        cut = Layouted(cut.mode, cut.pools, search.estimate(cut.mode, cut.pools, 0.0 if demand.idle else demand.grow))
        if demand.idle or (search.keeps(cut.mode, cut.estimate) and _margin(model, search, cut)):
            return cut
    return None


def _margin(model: ModelNow, search: Search, layout: Layouted) -> bool:
    """Targets that can be kept are, with the hysteresis to spare."""
    lost, slo, share = search.out_of_reach(layout.mode), model.slo, 1 - model.guards.hysteresis
    found = layout.estimate
    return ("ttft" in lost or found.ttft_p99_ms <= slo.ttft_ms * share) and (
        "itl" in lost or found.itl_p99_ms <= slo.itl_ms * share
    )


def _same_shapes(one: Iterable[PoolPlan], other: Iterable[PoolPlan]) -> bool:
    return {(p.role, p.gpu, p.tensor_parallel) for p in one} == {(p.role, p.gpu, p.tensor_parallel) for p in other}


# --- words --------------------------------------------------------------------------------------------


def _stay(here: Layouted, search: Search, cause: Cause, why: tuple[str, str], found: Sequence[Layouted] = ()) -> Choice:
    return Choice(here.estimate, None, cause, (), _alternatives(found, here, search), why_not=why)


def _alternatives(found: Sequence[Layouted], best: Layouted, search: Search) -> tuple[Alternative, ...]:
    others = sorted((each for each in found if each.pools != best.pools), key=lambda each: rank(each, search))
    unique = list({each.pools: each for each in others}.values())[:KEPT]
    return tuple(Alternative(each.mode, each.pools, each.estimate, _why_not(each, best, search)) for each in unique)


def _why_not(each: Layouted, best: Layouted, search: Search) -> str:
    if search.keeps(best.mode, best.estimate) and not search.keeps(each.mode, each.estimate):
        return "It would miss its targets."
    if each.estimate.cost_per_hour > best.estimate.cost_per_hour * (1 + 1e-9):
        return f"It costs {each.estimate.cost_per_hour - best.estimate.cost_per_hour:,.2f} US$ an hour more."
    if each.estimate.attained < best.estimate.attained - 0.005:
        return f"Fewer requests are in time, {each.estimate.attained:.0%}."
    return "It is nearer to its limits."


def _why(model: ModelNow, search: Search, demand: Demand, here: Layouted, best: Layouted, cause: Cause) -> tuple[str, ...]:
    inputs = demand.inputs
    load = (
        f"{inputs.rate:,.2f} requests/s now, {inputs.expected_rate:,.2f} expected in {model.guards.horizon_s / 60:,.0f} min"
    )
    sentences = {
        "slo": f"It misses its targets at {load}.",
        "growth": f"Load grows: {load}, at which it would miss its targets.",
        "schedule": f"{inputs.peak or 'A peak'} needs {inputs.expected_rate:,.2f} requests/s.",
        "mix": f"The split does not suit the traffic ({inputs.mix.prompt_tokens:,.0f} tokens in, "
        f"{inputs.mix.output_tokens:,.0f} out): the {here.estimate.bottleneck} pool is the bottleneck.",
        "mode": f"Mode {best.mode} serves this traffic better than {here.mode} on the same GPUs.",
        "idle": "Nothing arrives."
        if demand.idle
        else f"Fewer GPUs keep the targets at up to {demand.grow:,.2f} requests/s.",
    }
    found = [sentences.get(cause, ""), f"It would give {_told(best.estimate, model)}."]
    if not search.keeps(best.mode, best.estimate):
        found.append("The targets are still missed on the GPUs there are.")
    lost = search.out_of_reach(best.mode)
    if lost:
        names = " and ".join(sorted(lost, reverse=True)).upper()
        found.append(f"The {names} target cannot be kept with any number of these GPUs: none are added for it.")
    return tuple(each for each in found if each)


def _told(found: Estimate, model: ModelNow) -> str:
    def ms(value: float) -> str:
        return "endless" if value == float("inf") else f"{value:,.0f} ms"

    return (
        f"TTFT p99 {ms(found.ttft_p99_ms)} of {model.slo.ttft_ms:,.0f}, ITL p99 {ms(found.itl_p99_ms)} of "
        f"{model.slo.itl_ms:,.0f}, on {some(found.gpus, 'GPU')}"
    )
