"""Hours of models, pools and pairs, added up from their minutes once no minute of the hour will change any more.

Runs as often as it likes and in several processes: where it stands is a row, written with the hours it made. A query takes
the hours before that place and the minutes after it, so that a late roll-up makes it slower, not wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db import connection, transaction
from psycopg import sql

from controlplane.core import names
from controlplane.telemetry.merging import merge_stored
from controlplane.telemetry.partitions import Partitions
from controlplane.telemetry.tables import (
    MODEL_HOUR,
    MODEL_MINUTE,
    PAIR_HOUR,
    PAIR_MINUTE,
    POOL_HOUR,
    POOL_MINUTE,
    Table,
    moment,
)

HOUR_S = 3600
POSITION = "hours"
"""In telemetry_position; `at`: hours that end by then are made."""
SETTLED_S = 900.0
"""The stream must be read this far beyond an hour's end: what is read again after a restart lies within that."""
AT_ONCE = 48
FOR_EVER = 1e11
MEAN_BY = {
    "tensor": "gpu_seconds",
    "dram": "gpu_seconds",
    "running": "1",
    "waiting": "1",
    "kv_usage": "engines",
}
"""Averages of a minute, and what each weighs in the hour's."""
MAXIMA = frozenset({"engines", "gpus", "waiting_max"})


@dataclass(frozen=True)
class Rollup:
    minute: Table
    hour: Table

    @property
    def sketches(self) -> tuple[str, ...]:
        return tuple(name for name in self.minute.columns if name.endswith("_ms"))


ROLLUPS = (Rollup(MODEL_MINUTE, MODEL_HOUR), Rollup(POOL_MINUTE, POOL_HOUR), Rollup(PAIR_MINUTE, PAIR_HOUR))


def roll_up(partitions: Partitions, at_once: int = AT_ONCE) -> int:
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
        for rollup in ROLLUPS:
            write_rows(cursor, partitions, rollup.hour, _hour(cursor, rollup, start))
        note_made(cursor, POSITION, start + HOUR_S)
    return True


def claimed(cursor: Any, position: str) -> bool:
    """Whether this transaction may make the next hour of `position`: no other one does at the moment."""
    cursor.execute("SELECT pg_try_advisory_xact_lock(hashtext('telemetry'), hashtext(%s))", [position])
    mine: bool = cursor.fetchone()[0]
    return mine


def note_made(cursor: Any, position: str, until: float) -> None:
    """Hours of `position` that end by then are made."""
    cursor.execute(
        "INSERT INTO telemetry_position (stream, last_id, at) VALUES (%s, '', %s) "
        "ON CONFLICT (stream) DO UPDATE SET at = excluded.at",
        [position, moment(until)],
    )


def _due(cursor: Any) -> int | None:
    """Where the next hour begins, if it may be made."""
    cursor.execute("SELECT stream, extract(epoch FROM at)::float8 FROM telemetry_position")
    places = dict(cursor.fetchall())
    if names.TELEMETRY_STREAM not in places:
        return None
    start = _first(cursor, places.get(POSITION))
    if start is None or start + HOUR_S + SETTLED_S > places[names.TELEMETRY_STREAM]:
        return None
    return start


def _first(cursor: Any, done: float | None) -> int | None:
    """The hour of the oldest minute that lies beyond `done`: a time in which nothing was recorded is skipped."""
    if done is not None and _oldest(cursor, done, done + HOUR_S) is not None:
        return int(done)
    oldest = _oldest(cursor, done or 0.0, FOR_EVER)
    return None if oldest is None else int(oldest // HOUR_S) * HOUR_S


def _oldest(cursor: Any, since: float, until: float) -> float | None:
    query = sql.SQL("SELECT extract(epoch FROM min(at))::float8 FROM ({}) AS found").format(
        sql.SQL(" UNION ALL ").join(
            sql.SQL("SELECT min(at) AS at FROM {} WHERE at >= %(since)s AND at < %(until)s").format(
                sql.Identifier(rollup.minute.name)
            )
            for rollup in ROLLUPS
        )
    )
    cursor.execute(query, {"since": moment(since), "until": moment(until)})
    found: float | None = cursor.fetchone()[0]
    return found


def _hour(cursor: Any, rollup: Rollup, start: int) -> list[list[Any]]:
    """The rows of one hour, in the order of its table's columns."""
    columns = rollup.hour.columns
    picks = sql.SQL(", ").join(_pick(rollup, column) for column in columns)
    keys = sql.SQL(", ").join(sql.Identifier(column) for column in rollup.minute.key if column != "at")
    cursor.execute(
        sql.SQL("SELECT {picks} FROM {table} WHERE at >= %(start)s AND at < %(end)s GROUP BY {keys}").format(
            picks=picks, table=sql.Identifier(rollup.minute.name), keys=keys
        ),
        {"start": moment(start), "end": moment(start + HOUR_S)},
    )
    sketches = {columns.index(name) for name in rollup.sketches}
    return [
        [merge_stored(map(bytes, value or ())) if place in sketches else value for place, value in enumerate(row)]
        for row in cursor.fetchall()
    ]


def _pick(rollup: Rollup, column: str) -> sql.Composable:
    name = sql.Identifier(column)
    if column == "at":
        return sql.SQL("%(start)s::timestamptz")
    if column == "minutes":
        return sql.SQL("count(*)")
    if column in rollup.minute.key:
        return name
    if column in rollup.sketches:
        return sql.SQL("array_agg({0}) FILTER (WHERE {0} IS NOT NULL)").format(name)
    if column in MAXIMA:
        return sql.SQL("max({})").format(name)
    if column in MEAN_BY:
        weight = sql.SQL("1") if MEAN_BY[column] == "1" else sql.Identifier(MEAN_BY[column])
        form = sql.SQL("sum({0} * {1}) / nullif(sum({1}) FILTER (WHERE {0} IS NOT NULL), 0)")
        return form.format(name, weight)
    return sql.SQL("sum({})").format(name)


def write_rows(cursor: Any, partitions: Partitions, table: Table, rows: list[list[Any]]) -> None:
    """Rows in the order of the table's columns, in the caller's transaction; one that is there already is replaced."""
    if not rows:
        return
    partitions.ensure(table, {row[table.columns.index("at")] for row in rows})
    changes = [column for column in table.columns if column not in table.key]
    query = sql.SQL("INSERT INTO {table} ({columns}) VALUES ({values}) ON CONFLICT ({key}) DO UPDATE SET {changes}").format(
        table=sql.Identifier(table.name),
        columns=sql.SQL(", ").join(map(sql.Identifier, table.columns)),
        values=sql.SQL(", ").join(sql.Placeholder() * len(table.columns)),
        key=sql.SQL(", ").join(map(sql.Identifier, table.key)),
        changes=sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(sql.Identifier(column)) for column in changes),
    )
    cursor.executemany(query, rows)
