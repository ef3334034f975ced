"""What the planner reads of a model: minutes as routers and engines told them, and a sample of its requests. Reads only;
raises django.db.Error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import connection

from controlplane.core.observed_load import Minute, Sampled
from controlplane.core.protocol import Role
from controlplane.core.sketches import Sketch
from controlplane.core.workload import Seen
from controlplane.telemetry.tables import moment

MINUTE_S = 60
MOST_SAMPLED = 20_000
"""The newest requests are enough to know the mix by."""
REQUESTS = """
SELECT extract(epoch FROM at)::float8, (ok + engine_error + cancelled + cut) * 60.0::float8 / coalesce(told_s, 60), ttft_ms,
       itl_ms
FROM telemetry_model_minute WHERE model = %s AND at >= %s AND at < %s AND coalesce(told_s, 60) >= 30
"""
"""Of minutes of which half was told at least, as many as in a whole one."""
POOLS = """
SELECT extract(epoch FROM at)::float8, role, engines, running, waiting, requests * 60.0 / coalesce(told_s, 60), prefill_ms,
       itl_ms
FROM telemetry_pool_minute WHERE model = %s AND at >= %s AND at < %s AND engines > 0 AND coalesce(told_s, 60) >= 30
"""
SAMPLED = """
SELECT extract(epoch FROM at)::float8, prompt_tokens, output_tokens, coalesce(cached_tokens, 0), weight
FROM telemetry_request
WHERE model = %s AND at >= %s AND at < %s AND outcome = 'ok' AND prompt_tokens > 0 AND output_tokens > 0
ORDER BY at DESC LIMIT %s
"""
SHARE = """
SELECT (sum(weight * (total_ms - ttft_ms)) / nullif(sum(weight * total_ms), 0))::float8,
       stddev_samp((total_ms - ttft_ms) / nullif(total_ms, 0))::float8, count(*)
FROM telemetry_request
WHERE model = %s AND at >= %s AND at < %s AND outcome = 'ok' AND stream AND ttft_ms <= total_ms
"""
NEWEST = "SELECT extract(epoch FROM max(at))::float8 FROM telemetry_engine_10s WHERE model = %s AND at >= %s"


@dataclass(frozen=True)
class PoolMinute:
    """`prefill_ms`, `itl_ms`: means by the engines' own counters; None: nothing was counted."""

    role: Role
    engines: int
    running: float
    waiting: float
    prefill_ms: float | None
    itl_ms: float | None


@dataclass(frozen=True)
class Told:
    """One minute of a model. `streamed`: answers behind the latencies, which are clients'; None: there were none."""

    minute: Minute
    ttft_p99_ms: float | None = None
    itl_p99_ms: float | None = None
    streamed: float = 0.0
    pools: tuple[PoolMinute, ...] = field(default=())


def minutes(model: str, since: int, until: int) -> list[Told]:
    """Every minute from `since` to `until` (Unix seconds, whole minutes), those of which nothing is recorded too."""
    between: list[Any] = [model, moment(since), moment(until)]
    with connection.cursor() as cursor:
        cursor.execute(REQUESTS, between)
        requests = {int(at): row for at, *row in cursor.fetchall()}
        cursor.execute(POOLS, between)
        pools: dict[int, list[Sequence[Any]]] = {}
        for at, *row in cursor.fetchall():
            pools.setdefault(int(at), []).append(row)
    return [_told(at, requests.get(at), pools.get(at, [])) for at in range(since, until, MINUTE_S)]


def sample(model: str, since: float, until: float) -> list[Sampled]:
    """Requests that ended well by their arrival, the newest of them, each with how many it stands for."""
    with connection.cursor() as cursor:
        cursor.execute(SAMPLED, [model, moment(since), moment(until), MOST_SAMPLED])
        return [(Seen(at, prompt, output, cached), weight) for at, prompt, output, cached, weight in cursor.fetchall()]


def newest_of_engines(model: str, since: float) -> float | None:
    """When the newest ten seconds ended of which an engine of the model told; None: none since then."""
    with connection.cursor() as cursor:
        cursor.execute(NEWEST, [model, moment(since)])
        (at,) = cursor.fetchone()
    return None if at is None else float(at) + 10


def _told(at: int, request: Sequence[Any] | None, pools: Sequence[Sequence[Any]]) -> Told:
    finished, ttft, itl = request if request is not None else (None, None, None)
    found = tuple(_pool(row) for row in pools)
    is_open = sum(each.running + each.waiting for each in found) if found else None
    by_engines = max((float(row[4]) for row in pools), default=0.0)
    first = _sketch(ttft)
    return Told(
        Minute(float(at), finished, is_open, by_engines),
        first.quantile(0.99),
        _sketch(itl).quantile(0.99),
        first.count,
        found,
    )


def _pool(row: Sequence[Any]) -> PoolMinute:
    role, engines, running, waiting, _, prefill, itl = row
    return PoolMinute(role, engines, running, waiting, _mean(prefill), _mean(itl))


def _mean(stored: Any) -> float | None:
    found = _sketch(stored)
    return found.sum / found.count if found.count else None


def _sketch(stored: Any) -> Sketch:
    return Sketch() if stored is None else Sketch.from_bytes(bytes(stored))


def decode_share(model: str, since: float, until: float) -> tuple[float | None, float | None, int]:
    """Of the time of streamed requests that ended well the share after the first token, its standard deviation over
    requests, and how many records it is of; None where nothing, or one alone, was recorded."""
    with connection.cursor() as cursor:
        cursor.execute(SHARE, [model, moment(since), moment(until)])
        share, deviation, count = cursor.fetchone()
    return share, deviation, count
