"""Seals the audit in batches, each over the one before, and checks them. Entries themselves are only read."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.db import connection, transaction

from controlplane.control.leases import lease
from controlplane.control.models import AuditSeal
from controlplane.core.auditchain import GENESIS, Broken, Sealed, broken_rows, broken_seal, canonical, digest_row, seal
from controlplane.fleet.models import AuditEntry

log = logging.getLogger(__name__)

LEASE = "audit"
HOLD_S = 60.0
BATCH = 1000
MAX_BATCHES = 50
"""Of one run; what is left is sealed by the next."""
AUDIT_LOCK = 0x61756474
"""PostgreSQL's advisory lock that writers of entries share (migration 0004_audit_guard)."""
TRIES = 100
RETRY_S = 0.02
FIELDS = ("id", "at", "actor", "verb", "subject", "reason", "before", "after", "operation_id")
"""In the order of `canonical`: what is added to the table later goes to the end, and only for entries that have it."""


def fields_of(entry: AuditEntry) -> list[Any]:
    """The entry as it is sealed and exported: numbers, texts and JSON values."""
    return [_plain(getattr(entry, name)) for name in FIELDS]


def _plain(value: Any) -> Any:
    return value.astimezone(UTC).isoformat(timespec="microseconds") if isinstance(value, datetime) else value


def run_sealing(holder: str) -> int:
    """Seal what is not sealed yet, if nobody else does; how many entries. Raises django.db.Error."""
    with lease(LEASE, holder, HOLD_S) as mine:
        return seal_all() if mine else 0


def seal_all() -> int:
    """Seal every entry there is by now, in batches; how many. Raises django.db.Error."""
    sealed = 0
    for _ in range(MAX_BATCHES):
        count = _seal_batch()
        sealed += count
        if count < BATCH:
            break
    return sealed


def _seal_batch() -> int:
    with transaction.atomic():
        # While the lock is held nobody is between drawing an id and committing the entry that has it.
        if not _alone():
            log.warning("the audit is not sealed now: somebody writes to it all the time")
            return 0
        newest = AuditSeal.objects.order_by("-number").first()
        after = newest.last if newest else 0
        entries = list(AuditEntry.objects.filter(pk__gt=after).order_by("pk")[:BATCH])
        if not entries:
            return 0
        rows = [(entry.pk, digest_row(canonical(fields_of(entry)))) for entry in entries]
        previous = newest.digest if newest else GENESIS
        made = AuditSeal.objects.create(
            number=newest.number + 1 if newest else 1,
            first=rows[0][0],
            last=rows[-1][0],
            previous=previous,
            digest=seal(previous, rows),
            rows=rows,
        )
    log.info("the audit is sealed up to entry %d: seal %d is %s", made.last, made.number, made.digest)
    return len(rows)


def _alone() -> bool:
    """Whether no writer is at work, until the transaction ends. Asked again and again rather than waited for: writers would
    queue behind who waits."""
    with connection.cursor() as cursor:
        for _ in range(TRIES):
            cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [AUDIT_LOCK])
            if cursor.fetchone() == (True,):
                return True
            time.sleep(RETRY_S)
    return False


@dataclass(frozen=True)
class Verdict:
    """`entries`: sealed ones that were checked; `unsealed`: newer ones; `newest`: the last seal that holds, "" for none."""

    broken: Broken | None
    seals: int
    entries: int
    unsealed: int
    newest: str


def verify(known: str = "") -> Verdict:
    """Check every seal and every entry under one, up to the first that is broken. `known`: the digest of a seal that was
    kept elsewhere, which must be among them. Raises django.db.Error."""
    before: Sealed | None = None
    seals = entries = last = 0
    seen = known in ("", GENESIS)
    # One view of all: entries that are sealed meanwhile must not count as missing.
    inside = connection.in_atomic_block
    with transaction.atomic():
        if not inside:
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        for row in AuditSeal.objects.order_by("number").iterator(chunk_size=20):
            found = Sealed(row.number, row.previous, tuple((int(id), str(digest)) for id, digest in row.rows), row.digest)
            broken = broken_seal(found, before) or _broken_span(row, found, last)
            broken = broken or next(broken_rows(found, _digests(last, row.last)), None)
            if broken:
                return Verdict(broken, seals, entries, 0, before.digest if before else "")
            before, last = found, row.last
            seals, entries, seen = seals + 1, entries + len(found.rows), seen or found.digest == known
        unsealed = AuditEntry.objects.filter(pk__gt=last).count()
    missing = None if seen else Broken(seals, None, f"is the newest, and the one you know is not there: {known[:64]}")
    return Verdict(missing, seals, entries, unsealed, before.digest if before else "")


def _broken_span(row: AuditSeal, found: Sealed, last: int) -> Broken | None:
    """Whether the seal's own columns are those of its rows, which its digest is over."""
    ids = [id for id, _ in found.rows]
    if not ids or ids != sorted(set(ids)) or (row.first, row.last) != (ids[0], ids[-1]) or row.first <= last:
        return Broken(found.number, None, "names other entries than its rows")
    return None


def _digests(after: int, last: int) -> dict[int, str]:
    """By id; `after` 0: from the very first, whatever its id was made."""
    rows = AuditEntry.objects.filter(pk__lte=last).order_by("pk")
    rows = rows.filter(pk__gt=after) if after else rows
    return {entry.pk: digest_row(canonical(fields_of(entry))) for entry in rows.iterator(chunk_size=BATCH)}


def export() -> Iterator[dict[str, Any]]:
    """Every entry as JSON values, the oldest first, and after each batch its seal. Raises django.db.Error."""
    last = 0
    for row in AuditSeal.objects.order_by("number").iterator(chunk_size=20):
        yield from _entries(last, row.last)
        yield {"seal": row.number, "last": row.last, "previous": row.previous, "digest": row.digest, "at": _plain(row.at)}
        last = row.last
    yield from _entries(last, None)


def _entries(after: int, last: int | None) -> Iterator[dict[str, Any]]:
    rows = AuditEntry.objects.filter(pk__gt=after).order_by("pk")
    for entry in (rows.filter(pk__lte=last) if last else rows).iterator(chunk_size=BATCH):
        yield dict(zip(FIELDS, fields_of(entry), strict=True))
