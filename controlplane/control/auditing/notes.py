"""Audit entries of what changed nothing: who signed in or could not, what was refused, which secrets were shown.

Anybody on the network can cause these, so each kind and each source of it may make so many an hour, and the kind so many a
day; what is left out is counted and told in one entry an hour. Nothing that was typed is kept unless it is a known name.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import Error as DatabaseError
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from controlplane.control.models import AuditBudget
from controlplane.core.secretwords import hide
from controlplane.core.storable import storable, storable_text
from controlplane.fleet.models import AuditEntry

log = logging.getLogger(__name__)

SOURCES = 64
"""Buckets of sources: so many rows of budgets there are of a kind at most."""
WHOLE_KIND = -1
TOLD_EVERY = timedelta(hours=1)
LEFT_OUT = "left_out"


@dataclass(frozen=True)
class Limit:
    """Entries of one source in an hour and of all of a kind in a day."""

    hourly: int
    daily: int


LIMITS: Mapping[str, Limit] = {
    "login": Limit(60, 5000),
    "login_failed": Limit(10, 1000),
    "refused": Limit(30, 3000),
    "secret_shown": Limit(60, 5000),
}
"""By verb. An entry takes about half a kilobyte: all of them together are at most 7 MB a day."""


def note(
    verb: str, actor: str, subject: str, *, source: str = "", reason: str = "", after: Mapping[str, Any] | None = None
) -> bool:
    """Make an entry unless the budget of `verb` for this source is used up; whether one was made. A database that does not
    answer is logged: whoever signs in is not kept out by it here."""
    try:
        with transaction.atomic():
            if not _may(verb, source or actor, timezone.now()):
                return False
            AuditEntry.objects.create(
                actor=storable_text(actor)[:150],
                verb=verb,
                subject=storable_text(hide(subject))[:255],
                reason=storable_text(hide(reason))[:500],
                after=storable(hide(dict(after or {}))),
            )
            return True
    except DatabaseError as error:
        log.warning("%s is not in the audit: PostgreSQL cannot be used: %s", verb, type(error).__name__)
        return False


def _may(verb: str, source: str, now: datetime) -> bool:
    """Take one from both budgets, or count it as left out."""
    limit = LIMITS[verb]
    hour, day = int(now.timestamp() // 3600), int(now.timestamp() // 86400)
    bucket = zlib.crc32(storable_text(source).encode()) % SOURCES
    own = _budget(verb, bucket, hour)
    if own.kept >= limit.hourly:
        AuditBudget.objects.filter(pk=own.pk).update(left_out=F("left_out") + 1)
        return False
    whole = _budget(verb, WHOLE_KIND, day)
    if whole.kept >= limit.daily:
        AuditBudget.objects.filter(pk=whole.pk).update(left_out=F("left_out") + 1)
        return False
    AuditBudget.objects.filter(pk__in=(own.pk, whole.pk)).update(kept=F("kept") + 1)
    return True


def _budget(verb: str, source: int, span: int) -> AuditBudget:
    """The row, locked, of the present span."""
    rows = AuditBudget.objects.select_for_update()
    row = rows.filter(kind=verb, source=source).first()
    if row is None:
        new = AuditBudget(kind=verb, source=source, span=span)
        AuditBudget.objects.bulk_create([new], ignore_conflicts=True)
        row = rows.get(kind=verb, source=source)
    if row.span < span:
        row.span, row.kept = span, 0
        row.save(update_fields=["span", "kept"])
    return row


def tell_left_out() -> int:
    """One entry for each kind of which some were left out, at most once an hour; how many. Raises django.db.Error."""
    told = 0
    for verb in LIMITS:
        with transaction.atomic():
            rows = AuditBudget.objects.select_for_update().filter(kind=verb, left_out__gt=0).order_by("-source")
            missing = sum(row.left_out for row in rows)
            subject = f"audit:{verb}"
            recent = AuditEntry.objects.filter(subject=subject, verb=LEFT_OUT, at__gt=timezone.now() - TOLD_EVERY)
            if missing and not recent.exists():
                AuditEntry.objects.create(actor="twinpool", verb=LEFT_OUT, subject=subject, after={"entries": missing})
                AuditBudget.objects.filter(pk__in=[row.pk for row in rows]).update(left_out=0)
                told += 1
    return told
