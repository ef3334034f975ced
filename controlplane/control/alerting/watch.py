"""One look at everything that rules are about: observations -> core.alerts -> rows and what channels are owed.

Level-triggered: a look computes everything from rows and figures and writes in one transaction, so it may die at any line or
be skipped. A message is a row, made with the state it tells of; whoever sends it is another matter (deliver).
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache

import redis
from django.conf import settings
from django.db import Error as DatabaseError
from django.db import close_old_connections, transaction

from controlplane.alerts.models import Alert, AlertState, Notification
from controlplane.alerts.selectors import as_open, open_alerts, read_settings
from controlplane.control.alerting import observe_fleet, observe_metrics
from controlplane.control.alerting.owed import write_owed
from controlplane.control.leases import lease
from controlplane.core import names
from controlplane.core.alerts import Move, Observation, decide
from controlplane.core.sketches import BadSketch

log = logging.getLogger(__name__)

LEASE_S = 30.0
CONTROL_FRESH_S = 15.0
"""A tick this long ago means that control hears nobody, so that silence of nodes says nothing."""
HISTORY = timedelta(days=90)
Looks = Mapping[str, Sequence[Observation] | None]


class Watcher:
    """The looks of this process. `run` may be called from any thread at any time."""

    def __init__(self) -> None:
        self._holder = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._valkey = redis.Redis.from_url(settings.VALKEY_URL, socket_timeout=3, socket_connect_timeout=2)
        self._busy = threading.Lock()
        self._trouble = ""

    def run(self) -> None:
        """Look once, unless this process or another one does. PostgreSQL's absence is said once."""
        if not self._busy.acquire(blocking=False):
            return
        try:
            close_old_connections()
            with lease("alerts", self._holder, LEASE_S) as mine:
                if mine:
                    look(time.time(), self._control_ticks())
            self._say("")
        except DatabaseError as error:
            self._say(f"nobody watches for alerts now: {type(error).__name__}: {str(error).partition(chr(10))[0]:.200}")
            close_old_connections()
        finally:
            self._busy.release()

    def _control_ticks(self) -> bool:
        try:
            said = self._valkey.get(names.CONTROL_KEY)
            return isinstance(said, bytes) and time.time() - float(said) < CONTROL_FRESH_S
        except (redis.RedisError, ValueError):
            return False

    def _say(self, trouble: str) -> None:
        if trouble != self._trouble:
            log.log(logging.WARNING if trouble else logging.INFO, "%s", trouble or "alerts are watched for again")
            self._trouble = trouble


def look(now: float, control_ticks: bool) -> list[Move]:
    """One look and what came of it. Raises django.db.Error, with nothing changed."""
    looks = observe(now, control_ticks)
    with transaction.atomic():
        rows = {row.pk: row for row in open_alerts()}
        setting_of = read_settings().of
        moves = decide(looks, [as_open(row) for row in rows.values()], setting_of, now)
        for move in moves:
            _write(move, rows.get(move.id), now)
        write_owed(now)
    for move in moves:
        if move.kind in ("fire", "resolve"):
            log.warning("alert %s of %s %ss %s", move.rule, move.subject, move.kind, move.reason)
    Alert.objects.filter(state=AlertState.RESOLVED, resolved_at__lt=_moment(now) - HISTORY).delete()
    Notification.objects.filter(alert=None, created_at__lt=_moment(now) - HISTORY).delete()
    return moves


def observe(now: float, control_ticks: bool) -> Looks:
    """By rule, all that it is about. What cannot be read of one rule leaves the others alone."""
    fleet = observe_fleet.read_fleet(now)
    transfers = cache(lambda: observe_metrics.Transfers(fleet))
    asked: Mapping[str, Callable[[], Sequence[Observation]]] = {
        "slo_burn_fast": lambda: observe_metrics.burns(fleet, observe_metrics.FAST_S),
        "slo_burn_slow": lambda: observe_metrics.burns(fleet, observe_metrics.SLOW_S),
        "transfer_p99": lambda: transfers().p99(),
        "transfer_failures": lambda: transfers().failures(),
        "pool_empty": lambda: observe_fleet.empty_pools(fleet),
        "node_lost": lambda: observe_fleet.silent_nodes(fleet, control_ticks),
        "stale_metrics": lambda: observe_metrics.stale_metrics(fleet),
        "crash_loop": lambda: observe_fleet.crashing_engines(fleet),
        "stranded_kv": lambda: observe_metrics.stranded_kv(fleet),
        "pool_imbalance": lambda: observe_metrics.pool_imbalance(fleet),
        "engine_imbalance": lambda: observe_metrics.engine_imbalance(fleet),
    }
    return {rule: _asked(rule, ask) for rule, ask in asked.items()}


def _asked(rule: str, ask: Callable[[], Sequence[Observation]]) -> Sequence[Observation] | None:
    try:
        return ask()
    except BadSketch as error:
        log.error("rule %s cannot look: a stored histogram is broken: %s", rule, error)
        return None


def _write(move: Move, row: Alert | None, now: float) -> None:
    """The row as the move leaves it."""
    if move.kind == "drop":
        Alert.objects.filter(pk=move.id).delete()
        return
    row = row or Alert(rule=move.rule, subject=move.subject, began_at=_moment(now))
    if move.course is None:
        row.state, row.resolved_at, row.reason = AlertState.RESOLVED, _moment(now), move.reason
    else:
        row.state = AlertState(move.course.phase)
        row.streak_s, row.looked_at, row.last = move.course.streak_s, move.course.at, move.course.last
    if move.kind == "fire":
        row.fired_at = _moment(now)
    if move.seen is not None and move.setting is not None:
        row.model, row.label = move.seen.model, move.seen.label[:200]
        row.threshold, row.severity = move.setting.threshold, move.setting.severity
        if move.seen.value is not None:
            worse = max if move.setting.above else min
            row.value = move.seen.value
            row.peak = move.seen.value if row.peak is None else worse(row.peak, move.seen.value)
            row.facts = dict(move.seen.facts)
    row.save()


def _moment(now: float) -> datetime:
    return datetime.fromtimestamp(now, UTC)
