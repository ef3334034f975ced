"""When a model is left alone, and why: each guard returns the code and one plain sentence, or None. Pure."""

from __future__ import annotations

from controlplane.core.counts import some
from controlplane.core.planner_inputs import MIX_S, Demand, inside
from controlplane.core.planner_types import HoldCode, ModelNow
from controlplane.core.predict import RECENT_S

HOUR_S = 3600.0
Held = tuple[HoldCode, str]


def before_looking(model: ModelNow, now_s: float) -> Held | None:
    """Guards that need no look at the load."""
    if model.level == "off":
        return "off", "The planner is off for this model."
    if model.obstacle:
        return "no_hardware", f"It cannot be planned for: {model.obstacle}."
    if not model.pools or not any(pool.engines for pool in model.pools):
        return "no_hardware", "It has no engines to plan with."
    if not model.windows:
        return "empty", "Nothing was measured yet."
    if model.metrics_at_s is None or now_s - model.metrics_at_s > model.guards.stale_s:
        age = "never came" if model.metrics_at_s is None else f"are {now_s - model.metrics_at_s:,.0f} s old"
        return "stale", f"Its metrics {age}: without knowing the load nothing is changed."
    if model.operation:
        return "operation", f"An operation runs on it: {model.operation}."
    if model.warming:
        return "warming", f"{model.warming} of its engines are not ready yet."
    return None


def before_changing(model: ModelNow, demand: Demand, now_s: float, missed: bool) -> Held | None:
    """Guards of the time: freezes, change windows, a person's change, cool-down. `missed`: users miss a target now."""
    guards = model.guards
    freeze = inside(guards.freezes, now_s)
    if freeze:
        return "freeze", f"Changes are frozen{_why(freeze.why)}."
    if guards.slots and inside(guards.slots, now_s) is None:
        return "window", "It is outside of the change windows."
    manual = model.manual
    if manual and now_s - manual.at_s < guards.manual_s and not missed:
        minutes = (manual.at_s + guards.manual_s - now_s) / 60
        return (
            "manual",
            f"{manual.by} changed it by hand{_why(manual.reason)}: that is the plan now, for {minutes:,.0f} more minutes "
            f"unless a target is missed.",
        )
    if model.changed_at_s is not None and now_s - model.changed_at_s < guards.cooldown_s:
        left = guards.cooldown_s - (now_s - model.changed_at_s)
        return "cooldown", f"It changed {now_s - model.changed_at_s:,.0f} s ago: the next change waits {left:,.0f} s."
    seen, wanted = demand.inputs.window_s, RECENT_S if missed else MIX_S
    if seen < wanted - 1:
        return "few_samples", f"Its traffic has been seen for {some(seen / 60, 'minute')}, {wanted / 60:,.0f} are needed."
    if not demand.idle and demand.inputs.samples < guards.min_samples:
        few = f"{some(demand.inputs.samples, 'request')} in {some(demand.inputs.window_s / 60, 'minute')}"
        return "few_samples", f"{few} are too few to judge by; {guards.min_samples:,} are needed."
    return None


def moves_left(model: ModelNow, now_s: float) -> int:
    """Engine moves that the hour's budget still has."""
    recent = sum(1 for at_s in model.moved_at_s if now_s - at_s < HOUR_S)
    return max(0, model.guards.moves_per_hour - recent)


def no_budget(model: ModelNow) -> Held:
    return "budget", f"The hour's {model.guards.moves_per_hour} moves are used up."


def _why(reason: str) -> str:
    return f" ({reason})" if reason else ""
