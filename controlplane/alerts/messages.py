"""What a channel is told of an alert. Pure but for the rows it reads."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from controlplane.alerts.models import Alert
from controlplane.core.alertrules import RULES, summary

VERSION = 1
WORDS = {"warn": "warning", "bad": "critical"}


def message(message_id: str, event: str, alert: Alert, origin: str) -> dict[str, Any]:
    """`event`: fired or resolved. `origin`: of the console."""
    line = summary(alert.rule, alert.label, alert.value, alert.threshold)
    rule = RULES.get(alert.rule)
    head = "Resolved" if event == "resolved" else WORDS[alert.severity].capitalize()
    return {
        "version": VERSION,
        "id": message_id,
        "event": event,
        "text": f"{head}: {line}",
        "url": f"{origin}/alerts/{alert.pk}",
        "alert": {
            "id": alert.pk,
            "rule": alert.rule,
            "title": rule.title if rule else alert.rule,
            "severity": alert.severity,
            "subject": alert.subject,
            "model": alert.model or None,
            "label": alert.label,
            "value": alert.value,
            "threshold": alert.threshold,
            "unit": rule.unit if rule else "",
            "facts": alert.facts,
            "remedy": rule.remedy if rule else "",
            "began_at": _utc(alert.began_at),
            "fired_at": _utc(alert.fired_at),
            "resolved_at": _utc(alert.resolved_at),
            "reason": alert.reason,
        },
    }


def trial_message(message_id: str, channel: str, origin: str) -> dict[str, Any]:
    return {
        "version": VERSION,
        "id": message_id,
        "event": "test",
        "text": f"Test of the channel {channel}: alerts of Twinpool arrive here",
        "url": f"{origin}/alerts",
        "alert": None,
    }


def _utc(at: datetime | None) -> str | None:
    return at.isoformat(timespec="seconds").replace("+00:00", "Z") if at else None
