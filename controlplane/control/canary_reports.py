"""What routers tell of a canary's sessions (control -> rows): read from its stream, one row per session, counted once.

Reports may come twice, late or in any order: a row only ever gains, and one that is counted does not change any more.
Where reading stopped is kept in the same transaction as the rows (by `control.canaries`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import redis
from django.db import connection
from django.utils import timezone

from controlplane.core import names
from controlplane.core.codec import decode
from controlplane.core.protocol import CanaryReport, SessionSeen
from controlplane.core.signing import Secret, unseal
from controlplane.core.trial import Session
from controlplane.fleet import models

log = logging.getLogger(__name__)

PAGE = 50
"""Reports read in one tick at most; there is one a second from each router process."""
LATE_S = 3.0
"""How long a report may take from a router to us."""
KNOWN_FOR = timedelta(hours=1)
"""A session that comes back later counts again."""
MAX_REPORT_BYTES = 1 << 20
MAX_MS = 1e9
_SESSION = re.compile(r"[0-9a-f]{16}")

GAIN = """
INSERT INTO fleet_canarysession AS known
    (canary_id, session, in_canary, seen_at, over, failed, kv_lost, fell_back, ttft_ms, itl_ms, counted)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, false)
ON CONFLICT (canary_id, session) DO UPDATE SET
    over = known.over OR excluded.over, failed = known.failed OR excluded.failed,
    kv_lost = known.kv_lost OR excluded.kv_lost, fell_back = known.fell_back OR excluded.fell_back,
    ttft_ms = greatest(known.ttft_ms, excluded.ttft_ms), itl_ms = greatest(known.itl_ms, excluded.itl_ms)
WHERE NOT known.counted AND known.in_canary = excluded.in_canary
"""


def read_reports(valkey: redis.Redis, key: Secret, canary: int, after: str) -> tuple[list[SessionSeen], str]:
    """The next sessions told of, and the position behind them. Raises redis errors."""
    entries: Any = valkey.xrange(names.canary_stream(canary), min=f"({after}", count=PAGE)
    seen: list[SessionSeen] = []
    for position, fields in entries:
        seen += _read(key, canary, fields.get(b"r", b""))
        after = position.decode()
    return seen, after


def _read(key: Secret, canary: int, envelope: bytes) -> Iterable[SessionSeen]:
    try:
        if len(envelope) > MAX_REPORT_BYTES:
            raise ValueError("too long")
        report = decode(CanaryReport, unseal(key, envelope))
    except ValueError as error:  # BadSignature, WrongShape
        log.warning("a report of canary %d was refused: %s", canary, error)
        return ()
    return (each for each in report.sessions if report.canary == canary and _plausible(each))


def _plausible(seen: SessionSeen) -> bool:
    known = [value for value in (seen.ttft_ms, seen.itl_ms) if value is not None]
    return bool(_SESSION.fullmatch(seen.session)) and all(0 <= value < MAX_MS for value in known)


def newest_position(valkey: redis.Redis, canary: int, otherwise: str) -> str:
    """Behind everything that was told so far. Raises redis errors."""
    newest: Any = valkey.xrevrange(names.canary_stream(canary), count=1)
    return str(newest[0][0].decode()) if newest else otherwise


def forget_stream(valkey: redis.Redis, canary: int) -> None:
    valkey.delete(names.canary_stream(canary))


def keep_sessions(canary: models.Canary, seen: Iterable[SessionSeen], since: float) -> None:
    """Rows of what was seen of sessions by requests that came after `since` (Unix seconds)."""
    now = timezone.now()
    rows = [_row(canary.pk, each, now) for each in seen if each.at >= since]
    if rows:
        with connection.cursor() as cursor:
            cursor.executemany(GAIN, rows)


def _row(canary: int, seen: SessionSeen, now: datetime) -> tuple[Any, ...]:
    flags = (seen.over, seen.failed, seen.kv_lost, seen.fell_back)
    return (canary, seen.session, seen.canary, now, *flags, seen.ttft_ms, seen.itl_ms)


def take_settled(canary: models.Canary, session_s: float) -> list[Session]:
    """Sessions whose time to be counted has come, in the order in which they were first told of. Each is given out once."""
    settled = timezone.now() - timedelta(seconds=session_s + LATE_S)
    rows = list(canary.sessions.filter(counted=False, seen_at__lte=settled).order_by("seen_at", "id"))
    models.CanarySession.objects.filter(pk__in=[row.pk for row in rows]).update(counted=True)
    canary.sessions.filter(counted=True, seen_at__lt=timezone.now() - KNOWN_FOR).delete()
    return [
        Session(row.in_canary, row.over, row.failed, row.kv_lost, row.fell_back, row.ttft_ms, row.itl_ms) for row in rows
    ]


def drop_unsettled(canary: models.Canary) -> None:
    """Sessions that something disturbed before they were counted; they count if they come again."""
    canary.sessions.filter(counted=False).delete()
