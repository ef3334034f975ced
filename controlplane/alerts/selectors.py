"""Reads of alerts: what is open, who is silent about what, and how each rule is set. Raise django.db.Error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from django.db.models import Q
from django.utils import timezone

from controlplane.alerts.models import Alert, AlertState, RuleSetting, Silence
from controlplane.core.alertrules import RULES
from controlplane.core.alerts import SEVERITIES, Course, Open, Phase, Setting, Severity, Verdict

OPEN = Q(state__in=[AlertState.PENDING, AlertState.FIRING])
FIELDS = ("threshold", "for_s", "clear_s", "severity", "enabled")


@dataclass(frozen=True)
class Settings:
    """All rules as they are set now."""

    rows: Mapping[tuple[str, str], RuleSetting] = field(default_factory=dict)

    def of(self, rule: str, model: str = "") -> Setting | None:
        """None: there is no such rule. What a model has no setting for is that of all models, else the default."""
        known = RULES.get(rule)
        if known is None:
            return None
        rows = [row for key in ((rule, model), (rule, "")) if (row := self.rows.get(key)) is not None]
        given: dict[str, Any] = {}
        for name in FIELDS:
            values = [getattr(row, name) for row in rows]
            given[name] = next((value for value in values if value not in (None, "")), None)
        return known.setting(**given)

    def models_of(self, rule: str) -> list[str]:
        """Those for which it is set otherwise than for all."""
        return sorted(model for key, model in self.rows if key == rule and model)

    def own(self, rule: str, model: str = "") -> dict[str, Any]:
        """What of it is set just there, and not more widely."""
        return set_in(self.rows.get((rule, model)))


def set_in(row: RuleSetting | None) -> dict[str, Any]:
    """What a row sets; nothing without one."""
    return {name: value for name in FIELDS if row and (value := getattr(row, name)) not in (None, "")}


def read_settings() -> Settings:
    return Settings({(row.rule, row.model): row for row in RuleSetting.objects.all()})


def open_alerts() -> list[Alert]:
    """Pending and firing, the oldest first."""
    return list(Alert.objects.filter(OPEN).order_by("pk"))


def as_open(row: Alert) -> Open:
    course = Course(cast(Phase, row.state), row.streak_s, row.looked_at, cast(Verdict, row.last))
    return Open(row.pk, row.rule, row.subject, row.model, course)


def silences_now() -> list[Silence]:
    return list(Silence.objects.filter(until__gt=timezone.now()))


def silence_of(alert: Alert, silences: Sequence[Silence]) -> Silence | None:
    """The one that lasts longest of those that cover it."""
    return max((each for each in silences if each.covers(alert)), key=lambda each: each.until, default=None)


def loud(alert: Alert, least: str) -> bool:
    """Whether it is as severe as a channel asks for."""
    return SEVERITIES.index(cast(Severity, alert.severity)) >= SEVERITIES.index(cast(Severity, least))


def loud_now() -> dict[str, int]:
    """How many alerts fire that nobody silenced, and how many of those are critical."""
    firing = list(Alert.objects.filter(state=AlertState.FIRING))
    silences = silences_now() if firing else []
    found = [alert for alert in firing if silence_of(alert, silences) is None]
    return {"firing": len(found), "critical": sum(alert.severity == "bad" for alert in found)}
