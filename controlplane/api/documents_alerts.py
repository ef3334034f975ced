"""Alerts as the API tells them. Read-only."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from rest_framework import serializers

from controlplane.alerts.models import Alert, AlertState, Severity
from controlplane.alerts.selectors import silence_of
from controlplane.api.documents import ObjectField
from controlplane.core.alertrules import RULES

ALERT_STATES = [AlertState.FIRING.value, AlertState.RESOLVED.value]
SEVERITIES = list(Severity.values)


class AlertDocument(serializers.ModelSerializer[Alert]):
    """`value` is the newest that is known, `peak` the worst since it began; what `unit` they and `threshold` have depends on
    the rule. `last` is what the newest look said: unknown, if there is no data. Its context has `silences`."""

    title = serializers.SerializerMethodField()
    unit = serializers.SerializerMethodField()
    remedy = serializers.SerializerMethodField()
    state = serializers.ChoiceField(choices=ALERT_STATES, read_only=True)
    severity = serializers.ChoiceField(choices=SEVERITIES, read_only=True)
    model = serializers.SerializerMethodField()
    last = serializers.ChoiceField(choices=["bad", "between", "good", "unknown"], read_only=True)
    facts = ObjectField(read_only=True)
    silenced_until = serializers.SerializerMethodField()

    class Meta:
        model = Alert
        fields = (
            *("id", "rule", "title", "severity", "state", "subject", "model", "label", "value", "peak", "threshold", "unit"),
            *("last", "facts", "remedy", "silenced_until", "began_at", "fired_at", "resolved_at", "reason"),
        )
        read_only_fields = fields

    def get_title(self, alert: Alert) -> str:
        return RULES[alert.rule].title if alert.rule in RULES else alert.rule

    def get_unit(self, alert: Alert) -> str:
        return RULES[alert.rule].unit if alert.rule in RULES else ""

    def get_remedy(self, alert: Alert) -> str:
        return RULES[alert.rule].remedy if alert.rule in RULES else ""

    def get_model(self, alert: Alert) -> str | None:
        return alert.model or None

    def get_silenced_until(self, alert: Alert) -> datetime | None:
        silence = silence_of(alert, self.context["silences"])
        return silence.until if silence else None


class AlertPage(serializers.Serializer[Any]):
    """A page of a list."""

    items = AlertDocument(many=True)
    next = serializers.CharField(allow_null=True, help_text="Address of the next page.")
