"""`manage.py list_keys`: the API keys there are, one JSON object a line, without the keys themselves."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone

from controlplane.control.keys import former_until, state_of
from controlplane.fleet.models import InferenceKey
from controlplane.telemetry.queries.uses import digests_of, last_use, last_uses


class Command(BaseCommand):
    help = "List API keys, oldest first, as one JSON object a line. The keys themselves are stored nowhere."

    def handle(self, *args: Any, **options: Any) -> None:
        now = timezone.now()
        rows = list(InferenceKey.objects.prefetch_related("former_secrets"))
        used = last_uses(digests_of(rows), now.timestamp())
        for row in rows:
            self.stdout.write(json.dumps(_shown(row, now, last_use(row, used))))


def _shown(row: InferenceKey, now: datetime, used_at: float | None) -> dict[str, Any]:
    former = former_until(row, now)
    return {
        "name": row.name,
        "team": row.team,
        "state": state_of(row, now),
        "models": row.model_names,
        "requests_per_minute": row.requests_per_minute,
        "tokens_per_minute": row.tokens_per_minute,
        "max_priority": row.max_priority,
        "created_at": row.created_at.isoformat(timespec="seconds"),
        "expires_at": row.expires_at.isoformat(timespec="seconds") if row.expires_at else None,
        "former_until": former.isoformat(timespec="seconds") if former else None,
        "used_at": datetime.fromtimestamp(used_at, UTC).isoformat(timespec="seconds") if used_at else None,
    }
