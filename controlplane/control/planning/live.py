"""Proposals as pages list them and live topics tell them. Reads only; raises django.db.Error."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Q, QuerySet

from controlplane.control.models import Proposal, ProposalState
from controlplane.telemetry.rows import ProposalRow

NEWEST = 20
BULKY = ("inputs", "alternatives", "trade")
"""What a line does not show: kilobytes that would be read every second."""


def live_proposals() -> tuple[ProposalRow, ...]:
    """Those that are open, and the NEWEST of all: pages must see how one ended. One query."""
    newest = Proposal.objects.order_by("-pk").values("pk")[:NEWEST]
    found = Proposal.objects.filter(Q(state=ProposalState.OPEN) | Q(pk__in=newest))
    return rows(found.select_related("model", "giver"))


def rows(found: QuerySet[Proposal], limit: int | None = None) -> tuple[ProposalRow, ...]:
    """One query, if their models come with them."""
    return tuple(map(row_of, found.defer(*BULKY)[:limit]))


def row_of(row: Proposal) -> ProposalRow:
    """One line of a list."""
    return ProposalRow(
        id=f"proposal:{row.pk}",
        type="proposal",
        number=row.pk,
        model=row.model.name,
        giver=row.giver.name if row.giver else "",
        state=row.state,
        level=row.level,
        cause=row.cause,
        mode_before=row.mode_before,
        mode=row.modified.get("mode", row.mode),
        before={pool["role"]: pool["engines"] for pool in row.before},
        sizes=row.sizes,
        title=row.title,
        moves=row.moves,
        reason=next(iter(row.reasons), ""),
        ttft_p99_ms=(row.present.get("ttft_p99_ms"), row.predicted.get("ttft_p99_ms")),
        itl_p99_ms=(row.present.get("itl_p99_ms"), row.predicted.get("itl_p99_ms")),
        created_at=row.created_at.timestamp(),
        seen_at=row.seen_at.timestamp(),
        expires_at=row.expires_at.timestamp(),
        hindrance=row.hindrance,
        decided_at=_unix(row.decided_at),
        decided_by=row.decided_by,
        decision=row.decision,
        operation=row.operation_id,
        measured=bool(row.actual),
    )


def _unix(moment: datetime | None) -> float | None:
    return moment.timestamp() if moment else None
