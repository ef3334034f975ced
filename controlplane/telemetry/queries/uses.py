"""When inference keys were last used, as far as records of requests and hours of use tell. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.db import connection

from controlplane.fleet.models import InferenceKey
from controlplane.telemetry.tables import moment

LOOK_BACK_S = 90 * 86_400.0
RECENT_S = 3 * 3600.0
"""Hours of use are made by then: what is newer is in records of requests alone."""
DIGITS = 16
"""Of a key's SHA-256, as records have it."""
USES = """
SELECT api_key, extract(epoch FROM max(at))::float8 FROM (
    SELECT api_key, at FROM telemetry_request WHERE at >= %(recent)s AND api_key = ANY(%(keys)s)
    UNION ALL
    SELECT api_key, at FROM telemetry_usage_hour WHERE at >= %(since)s AND api_key = ANY(%(keys)s)
) AS uses GROUP BY api_key
"""


def last_uses(digests: Iterable[str], now: float) -> dict[str, float]:
    """By the beginning of a digest: when a request with it arrived last (Unix seconds), to the hour if it was some hours
    ago. Not there: not within 90 days. Raises django.db.Error."""
    known: dict[str, Any] = {"keys": list(digests), "recent": moment(now - RECENT_S), "since": moment(now - LOOK_BACK_S)}
    with connection.cursor() as cursor:
        cursor.execute(USES, known)
        return {key: float(at) for key, at in cursor.fetchall()}


def digests_of(rows: Iterable[InferenceKey]) -> set[str]:
    """What records call these keys, also before they were rotated. Their `former_secrets` are to be prefetched."""
    return {sha256[:DIGITS] for row in rows for sha256 in _all(row)}


def last_use(row: InferenceKey, uses: Mapping[str, float]) -> float | None:
    """Of the key, whatever its secret was then."""
    return max((uses[sha256[:DIGITS]] for sha256 in _all(row) if sha256[:DIGITS] in uses), default=None)


def _all(row: InferenceKey) -> tuple[str, ...]:
    return (row.sha256, *(each.sha256 for each in row.former_secrets.all()))
