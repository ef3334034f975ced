"""What pages, the API and commands read of the planner. Reads only; raises django.db.Error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Q, QuerySet

from controlplane.control.models import Level, PlannerHold, PlannerSetting, Proposal, ProposalState
from controlplane.control.planning.gather import guards_of, setting_of
from controlplane.control.planning.plain import plain
from controlplane.core.codec import WrongShape
from controlplane.core.planner import Accuracy, Guards, Outcome, accuracy
from controlplane.fleet.models import Model

REMEMBERED = 200
"""Newest outcomes that the running accuracy is of."""


@dataclass(frozen=True)
class PlannerView:
    """One model's planner. `guards`: all of them, defaults too. `hold`: why nothing is proposed now, None while something is
    or nobody has looked yet. `proposal`: the open one."""

    setting: PlannerSetting
    guards: dict[str, Any]
    hold: PlannerHold | None
    proposal: Proposal | None
    accuracy: Accuracy


def planner_of(model: Model) -> PlannerView:
    """How the planner stands to one model now."""
    setting, proposal = setting_of(model), open_proposal(model)
    try:
        guards = guards_of(setting)
    except WrongShape:
        guards = Guards()  # the hold says that what is set cannot be read
    return PlannerView(setting, plain(guards), newest_hold(model, proposal), proposal, accuracy_of(model))


def all_proposals() -> QuerySet[Proposal]:
    """Of all models, the newest first."""
    return Proposal.objects.select_related("model", "giver", "operation")


def proposals_of(model: Model) -> QuerySet[Proposal]:
    """Those that change this model: its own, and those that take GPUs from it or give them back."""
    return all_proposals().filter(Q(model=model) | Q(giver=model))


def open_proposal(model: Model) -> Proposal | None:
    return all_proposals().filter(model=model, state=ProposalState.OPEN).first()


def open_count() -> int:
    """Proposals that somebody is asked to decide on now: those that the planner could not carry out by itself too."""
    asked = Q(level=Level.APPROVE) | Q(level=Level.AUTOMATIC) & ~Q(hindrance="")
    return Proposal.objects.filter(asked, state=ProposalState.OPEN).count()


def newest_hold(model: Model, proposal: Proposal | None = None) -> PlannerHold | None:
    """None if `proposal` was seen after it."""
    hold = PlannerHold.objects.filter(model=model).first()
    if hold is not None and proposal is not None and proposal.seen_at > hold.seen_at:
        return None
    return hold


def holds_of(model: Model, limit: int = 50) -> Sequence[PlannerHold]:
    """What held the planner, the newest first."""
    return list(PlannerHold.objects.filter(model=model)[:limit])


def accuracy_of(model: Model) -> Accuracy:
    """How far predictions for this model were off, over its newest carried-out proposals."""
    return accuracy(outcomes_of(model))


def outcomes_of(model: Model, limit: int = REMEMBERED) -> list[Outcome]:
    """Carried-out proposals beside what came. Predicted is for the load that really came, where that is known: whether the
    load came as expected is another question."""
    rows = Proposal.objects.filter(model=model, state=ProposalState.EXECUTED).exclude(actual={})
    found = []
    for row in rows[:limit]:
        said = row.actual.get("expected") or row.predicted
        ttft, itl = said.get("ttft_p99_ms"), said.get("itl_p99_ms")
        if ttft is not None and itl is not None:
            actual = row.actual
            found.append(Outcome(str(row.pk), ttft, itl, actual.get("ttft_p99_ms"), actual.get("itl_p99_ms")))
    return found
