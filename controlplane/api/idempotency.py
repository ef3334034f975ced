"""`Idempotency-Key`: a change that is sent again runs once, also when its first answer was lost or the server died.

The row is written before the action runs and in the same transaction: whoever kills the process at any point leaves either
both or neither. A refused change leaves nothing, so its key may be used again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import connection, transaction
from django.utils import timezone
from rest_framework.exceptions import ParseError
from rest_framework.request import Request

from controlplane.api.models import StoredAnswer
from controlplane.api.problems import Problem

HEADER = "Idempotency-Key"
MAX_CHARS = 255
KEPT = timedelta(hours=24)
SWEPT = 100
"""Expired rows that one change clears away."""


@dataclass(frozen=True)
class Answer:
    status: int
    body: Mapping[str, Any]
    location: str = ""
    replayed: bool = False


@dataclass(frozen=True)
class Asked:
    """One request by one actor under one key."""

    actor: str
    key: str
    method: str
    path: str
    digest: str


def read_key(request: Request, actor: str) -> Asked | None:
    """None without the header. Raises ParseError for a key that cannot be one."""
    key = request.headers.get(HEADER)
    if key is None:
        return None
    if not (0 < len(key) <= MAX_CHARS and key.isascii() and key.isprintable()):
        raise ParseError(f"{HEADER}: 1 to {MAX_CHARS} printable ASCII characters, such as a UUID.")
    asked = [sorted(request.query_params.lists()), request.data, request.headers.get("If-Match")]
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    return Asked(actor, key, request.method or "", request.path[:1024], digest)


def once(asked: Asked | None, act: Callable[[], Answer]) -> Answer:
    """The answer of `act`, run in a transaction; or the stored one if it ran before. Without a key it simply runs.

    Raises Problem: 409 while the same key's first request runs, 422 if it was another request; and what `act` raises.
    """
    with transaction.atomic():
        if asked is None:
            return act()
        _claim(asked)
        earlier = StoredAnswer.objects.filter(actor=asked.actor, key=asked.key).first()
        if earlier is not None and earlier.created_at > timezone.now() - KEPT:
            return _again(asked, earlier)
        _sweep(earlier)
        row = StoredAnswer.objects.create(
            actor=asked.actor, key=asked.key, method=asked.method, path=asked.path, digest=asked.digest
        )
        answer = act()
        StoredAnswer.objects.filter(pk=row.pk).update(status=answer.status, location=answer.location, body=answer.body)
        return answer


def _claim(asked: Asked) -> None:
    """Until the transaction ends nobody else has this key; a lock dies with its process."""
    digest = hashlib.blake2b(f"{asked.actor}\0{asked.key}".encode(), digest_size=8).digest()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [int.from_bytes(digest, signed=True)])
        claimed = cursor.fetchone() == (True,)
    if not claimed:
        raise Problem(409, "busy", f"The first request with this {HEADER} still runs: send it again soon.", retry_after_s=1)


def _again(asked: Asked, earlier: StoredAnswer) -> Answer:
    if (earlier.method, earlier.path, earlier.digest) != (asked.method, asked.path, asked.digest):
        reason = f"This {HEADER} was used for another request ({earlier.method} {earlier.path}): choose a new key."
        raise Problem(422, "invalid", reason)
    return Answer(earlier.status, earlier.body, earlier.location, replayed=True)


def _sweep(expired: StoredAnswer | None) -> None:
    """Clears away what is too old, a bounded part of it with each change; `expired` first, whose key is wanted again."""
    old = StoredAnswer.objects.filter(created_at__lt=timezone.now() - KEPT).select_for_update(skip_locked=True)
    gone = list(old.order_by("created_at").values_list("pk", flat=True)[:SWEPT])
    StoredAnswer.objects.filter(pk__in=[*gone, *([expired.pk] if expired else [])]).delete()
