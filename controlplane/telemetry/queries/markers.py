"""Operations as vertical lines of charts. Reads only."""

from __future__ import annotations

from datetime import datetime

from django.db.models import F, Q
from django.db.models.functions import Coalesce, Now

from controlplane.fleet.models import Operation
from controlplane.telemetry.queries.records import Marker
from controlplane.telemetry.queries.windows import Window
from controlplane.telemetry.tables import moment

MOST = 50


def operation_markers(window: Window, model: str | None = None) -> list[Marker]:
    """Operations that ran in the window, the oldest first, the newest MOST at most: of a model with those that concern no
    model (nodes), or of all. Raises django.db.Error."""
    ended = Coalesce("finished_at", Now())
    found = Operation.objects.alias(ended=ended).filter(created_at__lt=moment(window.until), ended__gte=moment(window.since))
    if model is not None:
        found = found.filter(Q(model__name=model) | Q(model=None))
    shown = found.annotate(of=F("model__name")).order_by("-created_at", "-pk")[:MOST]
    return [
        Marker(
            number=each.pk,
            verb=each.verb,
            label=each.verb.replace("_", " "),
            model=each.of or "",
            state=each.state,
            actor=each.actor,
            reason=each.reason,
            started_at=each.created_at.timestamp(),
            finished_at=_unix(each.finished_at),
        )
        for each in reversed(shown)
    ]


def _unix(at: datetime | None) -> float | None:
    return at.timestamp() if at else None
