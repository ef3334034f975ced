"""Who is told of alerts: channels, and a message to try one."""

from __future__ import annotations

import re

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone

from controlplane.alerts import mail
from controlplane.alerts.addresses import BadTarget, parse_url, resolve
from controlplane.alerts.messages import trial_message
from controlplane.alerts.models import Channel, ChannelKind, Notification, NotificationState, Severity
from controlplane.alerts.webhook import shown_secret
from controlplane.common.outward import read_networks
from controlplane.config import config
from controlplane.control import commands
from controlplane.control.actions.change import forbid, record_change
from controlplane.control.actor import Actor
from controlplane.control.alerting.owed import origin
from controlplane.control.auditing.events import note_secret
from controlplane.control.refused import Refused
from controlplane.core.signing import webhook_key
from controlplane.core.storable import storable_text
from controlplane.fleet import models

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
MAX_CHANNELS = 50


def add_channel(
    actor: Actor, name: str, kind: str, target: str, *, least: str = Severity.WARN, reason: str = ""
) -> tuple[models.Operation, str]:
    """Tell somebody of alerts. `target`: a URL, or addresses separated by commas. Returns the operation and what a webhook's
    receiver checks signatures with, which is told this once ("" for e-mail)."""
    forbid(actor, "add_channel")
    if not NAME.fullmatch(name):
        raise Refused("invalid", f"channel name {name!r:.80}: lower-case letters, digits and '-', at most 63")
    if least not in Severity.values:
        raise Refused("invalid", f"least: one of {', '.join(Severity.values)}")
    found = _target(kind, target)
    with transaction.atomic():
        if Channel.objects.count() >= MAX_CHANNELS:
            raise Refused("invalid", f"there are {MAX_CHANNELS} channels: remove one first")
        try:
            with transaction.atomic():
                channel = Channel.objects.create(name=name, kind=kind, target=found, least=least)
        except IntegrityError as error:
            raise Refused("invalid", f"channel {name} exists already: remove it first, or choose another name") from error
        after = {"kind": kind, "to": channel.shown, "least": least}
        operation = record_change("add_channel", actor, reason, f"channel:{name}", after=after, done=True)
    if channel.kind == ChannelKind.WEBHOOK:
        note_secret(actor.name, f"channel:{name}")
    return operation, _secret(channel)


def channel_secret(name: str) -> str:
    """What a webhook's receiver checks signatures with; "" for e-mail, and where there is no such channel (any more)."""
    channel = Channel.objects.filter(name=storable_text(name)).first()
    return _secret(channel) if channel else ""


def _secret(channel: Channel) -> str:
    return shown_secret(webhook_key(config().fleet_secret(), channel.pk)) if channel.kind == ChannelKind.WEBHOOK else ""


def _target(kind: str, target: str) -> str:
    """As it is stored. Raises Refused, which does not repeat it."""
    try:
        if kind == ChannelKind.WEBHOOK:
            resolve(parse_url(target), read_networks(config().webhook_networks))
            return target
        if kind == ChannelKind.EMAIL:
            if not settings.EMAIL_HOST:
                raise Refused("invalid", mail.NO_SERVER)
            return ",".join(mail.parse_addresses(target))
    except (BadTarget, ValueError) as error:
        raise Refused("invalid", f"target: {error}") from None
    raise Refused("invalid", f"kind {kind!r:.40}: one of {', '.join(ChannelKind.values)}")


def update_channel(
    actor: Actor, name: str, *, enabled: bool | None = None, least: str | None = None, reason: str = ""
) -> models.Operation:
    """Switch a channel on or off, or change what it is told of. Its target stays: another one is another channel."""
    forbid(actor, "update_channel")
    if least is not None and least not in Severity.values:
        raise Refused("invalid", f"least: one of {', '.join(Severity.values)}")
    with transaction.atomic():
        channel = _channel(name)
        wanted = {"enabled": enabled, "least": least}
        after = {key: value for key, value in wanted.items() if value is not None and value != getattr(channel, key)}
        before = {key: getattr(channel, key) for key in after}
        Channel.objects.filter(pk=channel.pk).update(**after)
        return record_change("update_channel", actor, reason, f"channel:{name}", before=before, after=after, done=True)


def remove_channel(actor: Actor, name: str, *, reason: str = "") -> models.Operation:
    """Tell nobody through it any more, also what is still owed."""
    forbid(actor, "remove_channel")
    with transaction.atomic():
        channel = _channel(name)
        before = {"kind": channel.kind, "to": channel.shown, "least": channel.least}
        channel.delete()
        return record_change("remove_channel", actor, reason, f"channel:{name}", before=before, done=True)


def try_channel(actor: Actor, name: str) -> Notification:
    """Send a test message, once; whoever asks follows the row."""
    forbid(actor, "try_channel")
    with transaction.atomic():
        channel = _channel(name)
        if channel.notifications.filter(event="test", state=NotificationState.WAITING).exists():
            raise Refused("busy", f"a test of {name} is on its way: wait for it")
        row = Notification(channel=channel, event="test", due_at=timezone.now())
        row.body = trial_message(str(row.pk), name, origin())
        row.save(force_insert=True)
        transaction.on_commit(commands.notify)
        return row


def _channel(name: str) -> Channel:
    channel = Channel.objects.select_for_update().filter(name=storable_text(name)).first()
    if channel is None:
        known = ", ".join(Channel.objects.values_list("name", flat=True))
        raise Refused("not_found", f"there is no channel {name!r:.80}; channels: {known or 'none'}")
    return channel
