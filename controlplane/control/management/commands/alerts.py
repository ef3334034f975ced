"""`manage.py alerts`: what fires now, one JSON object a line, the worst first."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from controlplane.alerts.models import Alert, AlertState, Silence
from controlplane.alerts.selectors import silence_of, silences_now
from controlplane.core.alertrules import RULES, summary

MOST = 1000


class Command(BaseCommand):
    help = "List alerts that fire (--over: those that are over, the newest first) as one JSON object a line."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--over", action="store_true", help="those that are over instead; they are kept for 90 days")

    def handle(self, *args: Any, **options: Any) -> None:
        state = AlertState.RESOLVED if options["over"] else AlertState.FIRING
        order = ("-pk",) if options["over"] else ("severity", "-pk")
        silences = silences_now()
        for row in Alert.objects.filter(state=state).order_by(*order)[:MOST]:
            self.stdout.write(json.dumps(_shown(row, silence_of(row, silences))))


def _shown(row: Alert, silence: Silence | None) -> dict[str, Any]:
    return {
        "alert": row.pk,
        "severity": row.severity,
        "text": summary(row.rule, row.label, row.value, row.threshold),
        "rule": row.rule,
        "subject": row.subject,
        "fired_at": row.fired_at.isoformat(timespec="seconds") if row.fired_at else None,
        "resolved_at": row.resolved_at.isoformat(timespec="seconds") if row.resolved_at else None,
        "silenced_until": silence.until.isoformat(timespec="seconds") if silence else None,
        "remedy": RULES[row.rule].remedy if row.rule in RULES else "",
    }
