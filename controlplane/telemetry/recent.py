"""A model's traffic of late, as forecasts and operations need it: telemetry tables in, plain values out. Reads only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db import connection

from controlplane.telemetry.board import LOST_BY_US
from controlplane.telemetry.tables import moment

MINUTE_S = 60


@dataclass(frozen=True)
class Traffic:
    """Finished requests of the last `minutes` whole minutes. Tokens are means per request; `length_cv` is the prompts'
    standard deviation over their mean."""

    minutes: int
    requests: int
    rate: float
    prompt_tokens: float
    output_tokens: float
    cached_tokens: float
    length_cv: float


MINUTES = """
SELECT min(at), sum(ok) FROM telemetry_model_minute WHERE model = %s AND at >= %s AND at < %s AND ok > 0
"""
LENGTHS = """
SELECT avg(prompt_tokens), avg(output_tokens), avg(coalesce(cached_tokens, 0)), stddev_pop(prompt_tokens)
FROM telemetry_request
WHERE model = %s AND at >= %s AND at < %s AND outcome = 'ok' AND prompt_tokens > 0 AND output_tokens > 0
"""


def recent_traffic(model: str, now: float, span_s: int = 1800) -> Traffic | None:
    """None when no request ended well in that time. The rate is over the minutes since its first request."""
    until = now // MINUTE_S * MINUTE_S
    values: list[Any] = [model, moment(until - span_s), moment(until)]
    with connection.cursor() as cursor:
        cursor.execute(MINUTES, values)
        first, requests = cursor.fetchone()
        cursor.execute(LENGTHS, values)
        prompt, output, cached, deviation = cursor.fetchone()
    if not requests or prompt is None:
        return None
    minutes = max(1, round((until - first.timestamp()) / MINUTE_S))
    return Traffic(
        minutes=minutes,
        requests=int(requests),
        rate=requests / (minutes * MINUTE_S),
        prompt_tokens=float(prompt),
        output_tokens=float(output),
        cached_tokens=float(cached),
        length_cv=float(deviation / prompt),
    )


LOST = """
SELECT count(*) FROM telemetry_request
WHERE model = %(model)s AND outcome = ANY(%(lost)s) AND at >= %(since)s - interval '1 day' AND at <= %(until)s
AND at + coalesce(total_ms, 0) * interval '1 ms' BETWEEN %(since)s AND %(until)s
"""


def lost_between(model: str, since: float, until: float) -> int:
    """Requests that ended in that time because we lost or failed them."""
    values: dict[str, Any] = {"model": model, "lost": list(LOST_BY_US), "since": moment(since), "until": moment(until)}
    with connection.cursor() as cursor:
        cursor.execute(LOST, values)
        return int(cursor.fetchone()[0])
