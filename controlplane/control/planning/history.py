"""What was changed of a model and by whom, as the planner's guards ask for it. Reads only."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db.models import Count, QuerySet

from controlplane.control.measured import VERBS
from controlplane.control.models import Proposal, ProposalState
from controlplane.core.observed_load import engine_moves
from controlplane.core.planner import Lent, Manual
from controlplane.core.planner_guards import HOUR_S
from controlplane.fleet.models import Model, Operation, Step

PLANNER = "planner"
"""Under which name the planner acts by itself."""
NOBODY = (PLANNER, "canary", "setup")
"""Names under which Twinpool itself changes models."""
FOR_PROPOSAL = "proposal"
"""Key of an operation's `after`: the proposal that it carries out as the planner made it."""
MOVES = ("start", "stop", "retask")
CHANGES = (*VERBS, "roll_out", "register_model")


@dataclass(frozen=True)
class History:
    changed_at_s: float | None
    moved_at_s: tuple[float, ...]
    manual: Manual | None


def history_of(model: Model, now_s: float) -> History:
    """Of the last hour and, for the last change, of any time."""
    last = _changes(model).filter(verb__in=CHANGES).first()
    by_hand = _changes(model).filter(verb__in=VERBS).exclude(actor__in=NOBODY).exclude(after__has_key=FOR_PROPOSAL).first()
    since = datetime.fromtimestamp(now_s, UTC) - timedelta(seconds=HOUR_S)
    steps = Step.objects.filter(operation__model=model, operation__verb__in=VERBS, operation__created_at__gte=since)
    counts = steps.filter(verb__in=MOVES).values_list("operation__created_at").annotate(count=Count("pk")).order_by()
    return History(
        (last.finished_at or last.created_at).timestamp() if last else None,
        engine_moves({at.timestamp(): count for at, count in counts}),
        Manual(by_hand.created_at.timestamp(), by_hand.actor, by_hand.reason) if by_hand else None,
    )


def lent_now() -> tuple[Lent, ...]:
    """GPUs that models took from others by a proposal and have not given back."""
    rows = Proposal.objects.filter(state=ProposalState.EXECUTED, returned=False, giver__isnull=False)
    return tuple(
        Lent(str(row.pk), each["giver"], each["taker"], each["role"], each["engines"], each["at_s"])
        for row in rows.order_by("pk")
        for each in row.trade.get("takes", ())
    )


def _changes(model: Model) -> QuerySet[Operation]:
    """Those that moved something, the newest first."""
    return Operation.objects.filter(model=model, steps__isnull=False).order_by("-pk").distinct()
