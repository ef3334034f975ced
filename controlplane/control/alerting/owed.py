"""What channels are owed: a message for each alert that fires and that nobody silenced, and one for its end where its
beginning was told. Made from what is, not from what just happened: nothing is owed twice and nothing is forgotten."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

from django.db.models import Exists, OuterRef
from django.utils import timezone

from controlplane.alerts.messages import message
from controlplane.alerts.models import Alert, AlertState, Channel, Notification
from controlplane.alerts.selectors import loud, silence_of, silences_now
from controlplane.config import config

TOLD_WITHIN = timedelta(days=1)
"""An end that lies further back is told to nobody, such as to a channel that was switched off for long."""


def origin() -> str:
    """Where people find the console."""
    return next(iter(config().origins()), "")


def write_owed(now: float) -> int:
    """Rows for every message that is owed and not written yet; how many. In the caller's transaction."""
    at = datetime.fromtimestamp(now, UTC)
    channels = list(Channel.objects.filter(enabled=True))
    if not channels:
        return 0
    found = [_notification(alert, channel, "fired") for alert, channel in _beginnings(channels)]
    found += [_notification(told.alert, told.channel, "resolved") for told in _ends(at) if told.alert]
    Notification.objects.bulk_create(found, ignore_conflicts=True)
    return len(found)


def _beginnings(channels: list[Channel]) -> list[tuple[Alert, Channel]]:
    firing = list(Alert.objects.filter(state=AlertState.FIRING).order_by("pk"))
    told = set(Notification.objects.filter(event="fired", alert__in=firing).values_list("alert_id", "channel_id"))
    silences = silences_now()
    return [
        (alert, channel)
        for alert in firing
        if silence_of(alert, silences) is None
        for channel in channels
        if loud(alert, channel.least) and (alert.pk, channel.pk) not in told
    ]


def _ends(at: datetime) -> list[Notification]:
    """The messages of beginnings whose ends are to be told."""
    same = Notification.objects.filter(alert=OuterRef("alert"), channel=OuterRef("channel"), event="resolved")
    rows = Notification.objects.filter(
        event="fired",
        alert__state=AlertState.RESOLVED,
        alert__resolved_at__gte=at - TOLD_WITHIN,
        channel__enabled=True,
    )
    return list(rows.exclude(Exists(same)).select_related("alert", "channel"))


def _notification(alert: Alert, channel: Channel, event: str) -> Notification:
    number = uuid.uuid4()
    body = message(str(number), event, alert, origin())
    return Notification(id=number, channel=channel, alert=alert, event=event, body=body, due_at=timezone.now())
