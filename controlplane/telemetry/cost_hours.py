"""Hours of GPUs held and of tokens used, added up once no record of the hour is awaited any more: what costs are made from.

Runs as often as it likes and in several processes, as `telemetry.hours` does; where it stands is a row of its own, so that
it makes every hour for which there are still minutes, also of before it was first run.
"""

from __future__ import annotations

from typing import Any

from django.db import connection, transaction

from controlplane.core import names
from controlplane.telemetry.hours import AT_ONCE, HOUR_S, SETTLED_S, claimed, note_made, write_rows
from controlplane.telemetry.partitions import Partitions
from controlplane.telemetry.tables import COST_HOUR, USAGE_HOUR, Table, moment

POSITION = "cost_hours"
"""In telemetry_position; `at`: hours that end by then are made."""
LONGEST_REQUEST_S = 6 * HOUR_S
"""A request that took longer is not counted."""

OLDEST = """
SELECT extract(epoch FROM least(
    (SELECT min(at) FROM telemetry_gpu_minute WHERE at >= %(since)s),
    (SELECT min(at) FROM telemetry_request WHERE at >= %(since)s)
))::float8
"""
COSTS = """
WITH tenths AS (
    SELECT engine, date_trunc('minute', at) AS minute, at, model, state, running_max + waiting_max AS requests
    FROM telemetry_engine_10s WHERE at >= %(start)s AND at < %(end)s
), serving AS (
    SELECT engine, minute, avg((state <> 'ready')::int)::float8 AS stranded,
           avg((state = 'ready' AND requests = 0)::int)::float8 AS idle
    FROM tenths GROUP BY engine, minute
), named AS (
    SELECT engine, (array_agg(model ORDER BY at DESC))[1] AS model FROM tenths GROUP BY engine
), held AS (
    SELECT g.at, coalesce(n.model, m.name, '') AS model, g.role, coalesce(k.kind, '') AS kind, g.busy,
           coalesce(s.idle, 0.0) AS idle, coalesce(s.stranded, 1.0) AS stranded
    FROM telemetry_gpu_minute g
    LEFT JOIN serving s ON s.engine = g.engine AND s.minute = g.at
    LEFT JOIN named n ON n.engine = g.engine
    LEFT JOIN fleet_engine e ON e.id = g.engine
    LEFT JOIN fleet_model m ON m.id = e.model_id
    LEFT JOIN fleet_gpu k ON k.uuid = g.uuid
    WHERE g.at >= %(start)s AND g.at < %(end)s
)
SELECT model, CASE WHEN model = '' THEN '' ELSE role END AS role, kind, %(start)s::timestamptz, 60.0 * count(*),
       60.0 * sum(least(coalesce(busy, 0.0), greatest(1.0 - idle - stranded, 0.0))),
       60.0 * sum(idle), 60.0 * sum(stranded),
       60.0 * sum(CASE WHEN busy IS NULL THEN greatest(1.0 - idle - stranded, 0.0) ELSE 0.0 END),
       count(DISTINCT at)
FROM held GROUP BY 1, 2, 3
"""
USAGE = """
SELECT model, team, api_key, %(start)s::timestamptz, sum(requests), sum(estimated), sum(prompt), sum(output), sum(cached)
FROM (
    SELECT model, team, api_key, stands AS requests, stands - 1 AS estimated, stands * coalesce(prompt_tokens, 0) AS prompt,
           stands * coalesce(output_tokens, 0) AS output,
           stands * least(coalesce(cached_tokens, 0), coalesce(prompt_tokens, 0)) AS cached
    FROM (
        SELECT *, at + make_interval(secs => coalesce(total_ms, 0.0) / 1000.0) AS ended,
               CASE WHEN others_told THEN 1 ELSE weight END AS stands FROM telemetry_request
        WHERE at >= %(first)s AND at < %(end)s AND outcome <> 'client_error'
    ) AS told WHERE ended >= %(start)s AND ended < %(end)s
    UNION ALL
    SELECT model, team, api_key, requests, 0, prompt_tokens, output_tokens, cached_tokens
    FROM telemetry_usage WHERE at >= %(start)s AND at < %(end)s
) AS used GROUP BY model, team, api_key
"""


def roll_up_costs(partitions: Partitions, at_once: int = AT_ONCE) -> int:
    """Make up to `at_once` hours that are due, the oldest first; returns how many. Raises django.db.Error."""
    made = 0
    while made < at_once and _next_hour(partitions):
        made += 1
    return made


def _next_hour(partitions: Partitions) -> bool:
    with transaction.atomic(), connection.cursor() as cursor:
        if not claimed(cursor, POSITION):
            return False
        start = _due(cursor)
        if start is None:
            return False
        _make(cursor, partitions, COST_HOUR, COSTS, start)
        _make(cursor, partitions, USAGE_HOUR, USAGE, start)
        note_made(cursor, POSITION, start + HOUR_S)
    return True


def _make(cursor: Any, partitions: Partitions, table: Table, query: str, start: int) -> None:
    between = {"first": start - LONGEST_REQUEST_S, "start": start, "end": start + HOUR_S}
    cursor.execute(query, {name: moment(at) for name, at in between.items()})
    write_rows(cursor, partitions, table, [list(row) for row in cursor.fetchall()])


def _due(cursor: Any) -> int | None:
    """Where the next hour begins, if it may be made: the hour of the oldest record that is in none, so that a time in which
    nothing was recorded is skipped. A request that began in a made hour may have ended in the next one."""
    cursor.execute("SELECT stream, extract(epoch FROM at)::float8 FROM telemetry_position")
    places = dict(cursor.fetchall())
    read_to, done = places.get(names.TELEMETRY_STREAM), places.get(POSITION)
    if read_to is None or (done is not None and done + HOUR_S + SETTLED_S > read_to):
        return None  # most of the time: nothing is looked for
    start = done if done is not None and _unfinished(cursor, done) else _oldest(cursor, done or 0.0)
    if start is None or start + HOUR_S + SETTLED_S > read_to:
        return None
    return int(start)


def _oldest(cursor: Any, since: float) -> float | None:
    cursor.execute(OLDEST, {"since": moment(since)})
    found: float | None = cursor.fetchone()[0]
    return None if found is None else found // HOUR_S * HOUR_S


def _unfinished(cursor: Any, done: float) -> bool:
    """Whether a request that came before `done` ended in the hour after it."""
    cursor.execute(
        "SELECT EXISTS (SELECT 1 FROM telemetry_request WHERE at >= %s AND at < %s "
        "AND at + make_interval(secs => coalesce(total_ms, 0.0) / 1000.0) >= %s)",
        [moment(done - LONGEST_REQUEST_S), moment(done), moment(done)],
    )
    found: bool = cursor.fetchone()[0]
    return found
