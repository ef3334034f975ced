"""Sends what channels are owed, at least once and the oldest first, in threads beside the worker's tasks.

A message stays waiting until somebody said that it arrived, so whoever is killed in between has it sent again, with the same
id. One process sends at a time (lease `notify`); a channel that is away holds up its own messages only."""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from django.db import Error as DatabaseError
from django.db import close_old_connections, connections
from django.db.models import Exists, OuterRef, QuerySet
from django.utils import timezone

from controlplane.alerts import mail, webhook
from controlplane.alerts.models import Channel, ChannelKind, Notification, NotificationState
from controlplane.alerts.webhook import NotDelivered
from controlplane.common.outward import read_networks
from controlplane.config import config
from controlplane.control.leases import hold, lease
from controlplane.core.alerts import retry_after_s
from controlplane.core.signing import webhook_key

log = logging.getLogger(__name__)

HOLD_S = 60.0
"""Longer than one message may take; renewed before each."""
AT_ONCE = 8
"""Channels that are told at the same time."""
MOST = 500
LEASE = "notify"


class Notifier:
    """The sending of one worker. `start` returns at once; what is asked for while it runs is done right after."""

    def __init__(self) -> None:
        self._holder = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._lock = threading.Lock()
        self._running = False
        self._again = False

    def start(self) -> None:
        with self._lock:
            self._again = True
            if self._running:
                return
            self._running = True
        threading.Thread(target=self._run, name="notify", daemon=True).start()

    def _run(self) -> None:
        try:
            while self._more():
                self._deliver()
        except BaseException:
            with self._lock:
                self._running = False  # so that the next beat begins anew
            raise
        finally:
            connections.close_all()

    def _deliver(self) -> None:
        try:
            close_old_connections()
            deliver_due(self._holder)
        except DatabaseError as error:
            log.warning("messages of alerts are not sent now: PostgreSQL cannot be used: %s", type(error).__name__)

    def _more(self) -> bool:
        with self._lock:
            self._running, self._again = self._again, False
            return self._running


def deliver_due(holder: str) -> int:
    """Send what is due, if nobody else does; how many arrived. Raises django.db.Error."""
    with lease(LEASE, holder, HOLD_S) as mine:
        by_channel = _due() if mine else {}
        if not by_channel:
            return 0
        with ThreadPoolExecutor(min(AT_ONCE, len(by_channel)), thread_name_prefix="notify") as pool:
            return sum(pool.map(lambda rows: _tell(rows, holder), by_channel.values()))


def _due() -> dict[int, list[Notification]]:
    """By channel. The end of an alert waits until its beginning was told or given up."""
    now = timezone.now()
    waiting = Notification.objects.filter(state=NotificationState.WAITING)
    first = waiting.filter(alert=OuterRef("alert"), channel=OuterRef("channel"), event="fired", due_at__gt=now)
    rows = waiting.filter(due_at__lte=now).exclude(Exists(first), event="resolved").select_related("channel")
    found: dict[int, list[Notification]] = {}
    for row in rows.order_by("created_at", "event")[:MOST]:
        found.setdefault(row.channel_id, []).append(row)
    return found


def _tell(rows: Sequence[Notification], holder: str) -> int:
    """One channel's, until one shows that it is away."""
    arrived, held_up = 0, set()
    try:
        for row in rows:
            if row.alert_id is not None and row.alert_id in held_up:
                continue
            if not hold(LEASE, holder, HOLD_S):
                break
            try:
                send(row.channel, row)
            except NotDelivered as error:
                _failed(row, error)
                held_up.add(row.alert_id)
                if error.away:
                    break
            else:
                _sent(row)
                arrived += 1
    finally:
        connections.close_all()
    return arrived


def send(channel: Channel, row: Notification) -> None:
    """Raises NotDelivered."""
    if channel.kind == ChannelKind.EMAIL:
        mail.send(channel.target.split(","), str(row.pk), row.body)
        return
    body = json.dumps(row.body, separators=(",", ":"), ensure_ascii=False).encode()
    key = webhook_key(config().fleet_secret(), channel.pk)
    webhook.post(channel.target, key, str(row.pk), body, read_networks(config().webhook_networks))


def _sent(row: Notification) -> None:
    now = timezone.now()
    _mine(row).update(state=NotificationState.SENT, sent_at=now, attempts=row.attempts + 1, error="")
    Channel.objects.filter(pk=row.channel_id).update(sent_at=now, error="", error_at=None)


def _failed(row: Notification, error: NotDelivered) -> None:
    now, attempts, why = timezone.now(), row.attempts + 1, str(error)[:300]
    wait_s = None if row.event == "test" else retry_after_s(attempts)
    if wait_s is None:
        _mine(row).update(state=NotificationState.FAILED, attempts=attempts, error=why)
    else:
        due_at = now + timedelta(seconds=wait_s)
        _mine(row).update(attempts=attempts, error=why, due_at=due_at)
        if error.away:
            waiting = Notification.objects.filter(channel_id=row.channel_id, state=NotificationState.WAITING)
            waiting.exclude(event="test").filter(due_at__lt=due_at).update(due_at=due_at)
    Channel.objects.filter(pk=row.channel_id).update(error=why, error_at=now)
    log.warning("channel %s was not told (attempt %d): %s", row.channel.name, attempts, why)


def _mine(row: Notification) -> QuerySet[Notification]:
    return Notification.objects.filter(pk=row.pk, state=NotificationState.WAITING)
