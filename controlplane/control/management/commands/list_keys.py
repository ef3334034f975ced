"""`manage.py list_keys`: the API keys there are, one JSON object a line, without the keys themselves."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone

from controlplane.fleet.models import InferenceKey


class Command(BaseCommand):
    help = "List API keys, oldest first, as one JSON object a line. The keys themselves are stored nowhere."

    def handle(self, *args: Any, **options: Any) -> None:
        now = timezone.now()
        for row in InferenceKey.objects.all():
            self.stdout.write(json.dumps(_shown(row, now)))


def _shown(row: InferenceKey, now: datetime) -> dict[str, Any]:
    expired = row.expires_at is not None and row.expires_at <= now
    return {
        "name": row.name,
        "team": row.team,
        "state": "revoked" if row.revoked else "expired" if expired else "valid",
        "models": row.model_names,
        "requests_per_minute": row.requests_per_minute,
        "tokens_per_minute": row.tokens_per_minute,
        "max_priority": row.max_priority,
        "created_at": row.created_at.isoformat(timespec="seconds"),
        "expires_at": row.expires_at.isoformat(timespec="seconds") if row.expires_at else None,
    }
