"""Hours of models, pools, pairs and engines, added up from their minutes or tens of seconds once none of the hour will
change any more.

Runs as often as it likes and in several processes: where it stands is a row, written with the hours it made. A query takes
the hours before that place and the finer rows after it, so that a late roll-up makes it slower, not wrong. Engines have a
place of their own: their hours are many, and hold up no others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.db import connection, transaction
from psycopg import sql

from controlplane.core import names
from controlplane.telemetry.merging import merge_stored
from controlplane.telemetry.partitions import Partitions
from controlplane.telemetry.tables import (
    ENGINE_10S,
    ENGINE_HOUR,
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
ENGINE_POSITION = "engine_hours"
"""In telemetry_position; `at`: hours that end by then are made."""
SETTLED_S = 900.0
"""The stream must be read this far beyond an hour's end: what is read again after a restart lies within that."""
AT_ONCE = 48
ROWS_AT_ONCE = 32
"""Of an hour: each has what 360 rows of an engine told, up to 1 MB."""
FOR_EVER = 1e11
POOL_WEIGHTS = {
    "tensor": "gpu_seconds",
    "dram": "gpu_seconds",
    "running": "1",
    "waiting": "1",
    "kv_usage": "engines",
}
ENGINE_WEIGHTS = dict.fromkeys(("running", "waiting", "kv_usage"), "samples")
"""Averages of a finer row, and what each weighs in the hour's."""
MAXIMA = frozenset({"engines", "gpus", "running_max", "waiting_max", "kv_usage_max"})
LAST = frozenset({"model", "incarnation", "state"})
COUNTS = {"minutes": "count(*)", "tens": "count(DISTINCT at)"}
"""How many finer rows there are; two starts of an engine may share ten seconds."""
SECONDS = frozenset({"recorded_s", "told_s"})
"""Of a finer row of before they were counted: all of it."""


@dataclass(frozen=True)
class Rollup:
    fine: Table
    hour: Table
    weights: Mapping[str, str]
    fine_s: int = 60

    @property
    def sketches(self) -> tuple[str, ...]:
        return tuple(name for name in self.fine.columns if name.endswith("_ms"))


@dataclass(frozen=True)
class Lane:
    """What is made together, and the place that says up to when it is."""

    position: str
    rollups: tuple[Rollup, ...]


MINUTES = Lane(
    POSITION,
    (
        Rollup(MODEL_MINUTE, MODEL_HOUR, {}),
        Rollup(POOL_MINUTE, POOL_HOUR, POOL_WEIGHTS),
        Rollup(PAIR_MINUTE, PAIR_HOUR, {}),
    ),
)
ENGINES = Lane(ENGINE_POSITION, (Rollup(ENGINE_10S, ENGINE_HOUR, ENGINE_WEIGHTS, 10),))


def roll_up(partitions: Partitions, at_once: int = AT_ONCE) -> int:
    """Make up to `at_once` hours of models, pools and pairs that are due, the oldest first; returns how many. Raises
    django.db.Error."""
    return _make(MINUTES, partitions, at_once)


def roll_up_engines(partitions: Partitions, at_once: int = AT_ONCE) -> int:
    """The same of engines."""
    return _make(ENGINES, partitions, at_once)


def _make(lane: Lane, partitions: Partitions, at_once: int) -> int:
    made = 0
    while made < at_once and _next_hour(lane, partitions):
        made += 1
    return made


def _next_hour(lane: Lane, partitions: Partitions) -> bool:
    with transaction.atomic(), connection.cursor() as cursor:
        if not claimed(cursor, lane.position):
            return False
        start = _due(cursor, lane)
        if start is None:
            return False
        for rollup in lane.rollups:
            for rows in _hour(rollup, start):
                write_rows(cursor, partitions, rollup.hour, rows)
        note_made(cursor, lane.position, start + HOUR_S)
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


def _due(cursor: Any, lane: Lane) -> int | None:
    """Where the next hour begins, if it may be made."""
    cursor.execute("SELECT stream, extract(epoch FROM at)::float8 FROM telemetry_position")
    places = dict(cursor.fetchall())
    settled = places.get(names.TELEMETRY_STREAM, 0.0) - SETTLED_S
    done = places.get(lane.position, 0.0)
    if done + HOUR_S > settled:
        return None
    start = _first(cursor, lane, done)
    return start if start is not None and start + HOUR_S <= settled else None


def _first(cursor: Any, lane: Lane, done: float) -> int | None:
    """The hour of the oldest row that lies beyond `done`: a time in which nothing was recorded is skipped."""
    if _oldest(cursor, lane, done, done + HOUR_S) is not None:
        return int(done)
    oldest = _oldest(cursor, lane, done, FOR_EVER)
    return None if oldest is None else int(oldest // HOUR_S) * HOUR_S


def _oldest(cursor: Any, lane: Lane, since: float, until: float) -> float | None:
    query = sql.SQL("SELECT extract(epoch FROM min(at))::float8 FROM ({}) AS found").format(
        sql.SQL(" UNION ALL ").join(
            sql.SQL("SELECT min(at) AS at FROM {} WHERE at >= %(since)s AND at < %(until)s").format(
                sql.Identifier(rollup.fine.name)
            )
            for rollup in lane.rollups
        )
    )
    cursor.execute(query, {"since": moment(since), "until": moment(until)})
    found: float | None = cursor.fetchone()[0]
    return found


def _hour(rollup: Rollup, start: int) -> Iterator[list[list[Any]]]:
    """The rows of one hour, in the order of its table's columns, some at a time: all that a large fleet's engines told in it
    would take hundreds of megabytes."""
    columns = rollup.hour.columns
    sketches = {columns.index(name) for name in rollup.sketches}
    picks = sql.SQL(", ").join(_pick(rollup, column) for column in columns)
    keys = sql.SQL(", ").join(sql.Identifier(column) for column in rollup.hour.key if column != "at")
    query = sql.SQL("SELECT {picks} FROM {table} WHERE at >= %(start)s AND at < %(end)s GROUP BY {keys}").format(
        picks=picks, table=sql.Identifier(rollup.fine.name), keys=keys
    )
    with connection.chunked_cursor() as cursor:
        cursor.execute(query, {"start": moment(start), "end": moment(start + HOUR_S)})
        while found := cursor.fetchmany(ROWS_AT_ONCE):
            yield [
                [merge_stored(map(bytes, value or ())) if place in sketches else value for place, value in enumerate(row)]
                for row in found
            ]


def _pick(rollup: Rollup, column: str) -> sql.Composable:
    name = sql.Identifier(column)
    if column == "at":
        return sql.SQL("%(start)s::timestamptz")
    if column in COUNTS:
        return sql.SQL(COUNTS[column])
    if column in rollup.hour.key:
        return name
    if column in LAST:
        return sql.SQL("(array_agg({} ORDER BY at DESC, incarnation DESC))[1]").format(name)
    if column in rollup.sketches:
        return sql.SQL("array_agg({0}) FILTER (WHERE {0} IS NOT NULL)").format(name)
    if column in SECONDS:
        return sql.SQL("sum(coalesce({}, {}))").format(name, sql.Literal(rollup.fine_s))
    if column in MAXIMA:
        return sql.SQL("max({})").format(name)
    if column in rollup.weights:
        by = rollup.weights[column]
        weight = sql.SQL("1") if by == "1" else sql.Identifier(by)
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
