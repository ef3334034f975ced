"""Alerts that are open and were, how rules are set, who is silent about what, and what is told to whom.

Alerts are written by `control.alerting`, all else by `control.actions.alerts`. No secret is in these tables but the address
of a webhook, which may hold one: nothing shows it whole (`Channel.shown`). What signs its messages is derived, not stored.
"""

from __future__ import annotations

import uuid
from urllib.parse import urlsplit

from django.db import models


class Severity(models.TextChoices):
    WARN = "warn"
    BAD = "bad"


class AlertState(models.TextChoices):
    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"


class Alert(models.Model):
    """One time that one rule was broken by one thing. The place in its course is core.alerts.Course."""

    rule = models.CharField(max_length=32)
    subject = models.CharField(max_length=200)
    """model:<name>, pool:<model>/<role>, node:<name>, engine:<id>, fleet or routers."""
    model = models.CharField(max_length=128, blank=True)
    """Name of the model whose it is; empty: nobody's."""
    label = models.CharField(max_length=200)
    state = models.CharField(max_length=16, choices=AlertState.choices)
    severity = models.CharField(max_length=8, choices=Severity.choices)
    value = models.FloatField(null=True, blank=True)
    """The newest that is known."""
    peak = models.FloatField(null=True, blank=True)
    """The worst since it began."""
    threshold = models.FloatField()
    facts = models.JSONField(default=dict, blank=True)
    streak_s = models.FloatField(default=0.0)
    looked_at = models.FloatField()
    """Unix seconds."""
    last = models.CharField(max_length=8)
    """What the newest look said; unknown: no data."""
    began_at = models.DateTimeField()
    fired_at = models.DateTimeField(null=True, blank=True)
    resolved_at = models.DateTimeField(null=True, blank=True)
    reason = models.CharField(max_length=100, blank=True)
    """Why it ended."""

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["rule", "subject"], condition=~models.Q(state="resolved"), name="one_open_alert_per_rule_and_subject"
            )
        ]
        indexes = [models.Index(fields=["state", "-id"]), models.Index(fields=["resolved_at"])]


class RuleSetting(models.Model):
    """What is set otherwise than by default, for all models or (`model`) for one; empty fields follow the wider setting."""

    rule = models.CharField(max_length=32)
    model = models.CharField(max_length=128, blank=True)
    threshold = models.FloatField(null=True, blank=True)
    for_s = models.FloatField(null=True, blank=True)
    clear_s = models.FloatField(null=True, blank=True)
    severity = models.CharField(max_length=8, choices=Severity.choices, blank=True)
    enabled = models.BooleanField(null=True, blank=True)

    class Meta:
        ordering = ["rule", "model"]
        constraints = [models.UniqueConstraint(fields=["rule", "model"], name="one_setting_per_rule_and_model")]


class Silence(models.Model):
    """Until then nobody is told of the alerts that it names; they fire all the same. An empty field means any."""

    rule = models.CharField(max_length=32, blank=True)
    model = models.CharField(max_length=128, blank=True)
    subject = models.CharField(max_length=200, blank=True)
    reason = models.CharField(max_length=500)
    actor = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)
    until = models.DateTimeField()

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["until"])]

    def covers(self, alert: Alert) -> bool:
        """Whether it names this alert."""
        pairs = ((self.rule, alert.rule), (self.model, alert.model), (self.subject, alert.subject))
        return all(wanted in ("", found) for wanted, found in pairs)


class ChannelKind(models.TextChoices):
    WEBHOOK = "webhook"
    EMAIL = "email"


class Channel(models.Model):
    """Who is told, and how."""

    name = models.SlugField(max_length=63, unique=True)
    kind = models.CharField(max_length=8, choices=ChannelKind.choices)
    target = models.CharField(max_length=1000)
    """A URL, which may hold a secret: never shown or logged whole; or addresses, separated by commas."""
    least = models.CharField(max_length=8, choices=Severity.choices, default=Severity.WARN)
    """Alerts below this severity are not told."""
    enabled = models.BooleanField(default=True)
    created_at = models.DateTimeField(auto_now_add=True)
    sent_at = models.DateTimeField(null=True, blank=True)
    error = models.CharField(max_length=300, blank=True)
    """Why the newest attempt failed; empty: it went well."""
    error_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["name"]

    @property
    def shown(self) -> str:
        """The target as anybody may see it."""
        if self.kind == ChannelKind.EMAIL:
            return self.target
        parts = urlsplit(self.target)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/…"


class NotificationState(models.TextChoices):
    WAITING = "waiting"
    SENT = "sent"
    FAILED = "failed"


class Notification(models.Model):
    """One message to one channel, sent at least once: a receiver knows a repetition by `id`."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    channel = models.ForeignKey(Channel, on_delete=models.CASCADE, related_name="notifications")
    alert = models.ForeignKey(Alert, null=True, blank=True, on_delete=models.CASCADE, related_name="notifications")
    """None: a test."""
    event = models.CharField(max_length=16)
    """fired, resolved or test."""
    body = models.JSONField()
    state = models.CharField(max_length=16, choices=NotificationState.choices, default=NotificationState.WAITING)
    attempts = models.PositiveIntegerField(default=0)
    due_at = models.DateTimeField()
    error = models.CharField(max_length=300, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    sent_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["created_at", "id"]
        constraints = [
            models.UniqueConstraint(fields=["alert", "channel", "event"], name="one_message_per_alert_channel_and_event")
        ]
        indexes = [models.Index(fields=["state", "due_at"])]
