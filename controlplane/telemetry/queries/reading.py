"""Roll-ups out of PostgreSQL, added up per group and cell by PostgreSQL itself: one query, whatever levels it crosses.

Percentiles come as the joined buckets of all sketches (telemetry.merging). Reads only; raises django.db.Error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connection
from psycopg import sql

from controlplane.core.sketches import HEAD_BYTES
from controlplane.telemetry.merging import SUMS_AT
from controlplane.telemetry.queries.windows import Cells, Level
from controlplane.telemetry.tables import (
    ENGINE_10S,
    ENGINE_HOUR,
    GPU_MINUTE,
    MODEL_HOUR,
    MODEL_MINUTE,
    PAIR_HOUR,
    PAIR_MINUTE,
    POOL_HOUR,
    POOL_MINUTE,
    Table,
    moment,
)

Row = dict[str, Any]
"""Of one group and cell: the columns of the group, `cell` (0-based), `covered_s` (seconds that have a record), `told_s`
(seconds that counters tell of: more, where an engine counted on while nothing came), `ends` (when the newest row ended, Unix
seconds) and what was picked."""


@dataclass(frozen=True)
class Source:
    """`grain`: of `rows`; `hours`: the same, added up; None: there is none. `recorded`, `told`: the columns with seconds;
    where they are NULL (older rows) or there is no such column, a row stands for all its time, and one of `hours` for as
    many of `rows` as its column `counted` says. `one`: what a group must have to have one row of a time."""

    rows: Table
    hours: Table | None
    grain: Level
    recorded: str = ""
    told: str = ""
    counted: str = "minutes"
    one: str = ""


MODELS = Source(MODEL_MINUTE, MODEL_HOUR, Level.MINUTE, "told_s", "told_s")
POOLS = Source(POOL_MINUTE, POOL_HOUR, Level.MINUTE, "recorded_s", "told_s")
PAIRS = Source(PAIR_MINUTE, PAIR_HOUR, Level.MINUTE)
GPUS = Source(GPU_MINUTE, None, Level.MINUTE, "samples", "samples")
ENGINES = Source(ENGINE_10S, ENGINE_HOUR, Level.TEN_SECONDS, "told_s", "told_s", "tens", one="engine")


@dataclass(frozen=True)
class Pick:
    """A column of the answer: the columns it is made of, and how."""

    columns: tuple[str, ...]
    form: sql.Composable


Picks = Mapping[str, Pick]


def total(column: str) -> Pick:
    return Pick((column,), sql.SQL("sum({})::float8").format(sql.Identifier(column)))


def most(column: str) -> Pick:
    return Pick((column,), sql.SQL("max({})::float8").format(sql.Identifier(column)))


def mean(column: str, weight: str = "units") -> Pick:
    """Over the rows in which it is known, each with `weight` (`units`: the seconds it stands for)."""
    form = sql.SQL("(sum({0} * {1}) / nullif(sum({1}) FILTER (WHERE {0} IS NOT NULL), 0))::float8")
    columns = (column,) if weight == "units" else (column, weight)
    return Pick(columns, form.format(sql.Identifier(column), sql.Identifier(weight)))


def buckets(column: str) -> Pick:
    """The buckets of all sketches, one after another; None: there are none."""
    form = sql.SQL("string_agg(substr({0}, {1}), ''::bytea)").format(sql.Identifier(column), sql.Literal(HEAD_BYTES + 1))
    return Pick((column,), form)


def latency(column: str) -> dict[str, Pick]:
    """Buckets, and under `<column>_sums` the exact counts and sums of the sketches: (count, sum) as float64, one after
    another."""
    form = sql.SQL("string_agg(substr({0}, {1}, {2}), ''::bytea)")
    heads = form.format(sql.Identifier(column), sql.Literal(SUMS_AT + 1), sql.Literal(HEAD_BYTES - SUMS_AT))
    return {column: buckets(column), f"{column}_sums": Pick((column,), heads)}


def newest(column: str) -> Pick:
    """Its value in the newest row."""
    return Pick((column,), sql.SQL("(array_agg({} ORDER BY at DESC))[1]").format(sql.Identifier(column)))


@dataclass(frozen=True)
class Ask:
    """Rows of `source` from `since` up to `until` where columns are what `where` says (a list: one of it; None: any), by
    `group` (the rest of the table's key) and, with `cells`, by cell. Without the source's `one` in `group`, cells are as
    wide as its rows: what the best of them has is covered."""

    source: Source
    where: Mapping[str, Any]
    group: Sequence[str]
    picks: Picks
    since: float
    until: float
    cells: Cells | None = None


def over(source: Source, where: Mapping[str, Any], group: Sequence[str], picks: Picks, cells: Cells) -> Ask:
    """Asks for each cell."""
    return Ask(source, where, group, picks, cells.since, cells.until, cells)


def read(ask: Ask, hours_until: float) -> list[Row]:
    """`hours_until`: hours that end by then are made (`stored.stored`). Rows come by group and cell."""
    values: dict[str, Any] = {"first": ask.since, "step": ask.cells.step_s if ask.cells else 0}
    parts = [
        _part(ask, part, number, values) for number, part in enumerate(_parts(ask, hours_until))
    ]  # the order of execution fills `values`
    cell = sql.SQL("floor((extract(epoch FROM at) - %(first)s) / %(step)s)::int") if ask.cells else sql.SQL("0")
    names = ["cell", "covered_s", "told_s", "ends", *ask.picks]
    query = sql.SQL(
        "SELECT {group}{cell} AS cell, {by}(units)::float8, {by}(told)::float8, extract(epoch FROM max(ends))::float8"
        "{picks} FROM ({parts}) AS rows GROUP BY {keys}cell ORDER BY {keys}cell"
    ).format(
        group=_listed(ask.group),
        keys=_listed(ask.group),
        cell=cell,
        by=sql.SQL("max" if ask.source.one and ask.source.one not in ask.group else "sum"),
        picks=sql.SQL("").join(sql.SQL(", ") + pick.form for pick in ask.picks.values()),
        parts=sql.SQL(" UNION ALL ").join(parts),
    )
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        found = cursor.fetchall()
    return [dict(zip([*ask.group, *names], values, strict=True)) for values in found]


def _parts(ask: Ask, hours_until: float) -> list[tuple[Table, float, float]]:
    """Which table answers which part of the time: whole hours where cells allow it, the finer rows around them."""
    fine, hours = ask.source.rows, ask.source.hours
    whole = (fine, ask.since, ask.until)
    if hours is None or (ask.cells and ask.cells.step_s % Level.HOUR):
        return [whole]
    first = math.ceil(ask.since / Level.HOUR) * Level.HOUR
    last = math.floor(min(ask.until, hours_until) / Level.HOUR) * Level.HOUR
    if last <= first:
        return [whole]
    parts = [(fine, ask.since, first), (hours, first, last), (fine, last, ask.until)]
    return [part for part in parts if part[1] < part[2]]


def _part(ask: Ask, part: tuple[Table, float, float], number: int, values: dict[str, Any]) -> sql.Composable:
    table, since, until = part
    values |= {f"since{number}": moment(since), f"until{number}": moment(until)}
    of_hours = table is ask.source.hours
    needed = {column for pick in ask.picks.values() for column in pick.columns} | set(ask.group)
    conditions = [
        sql.SQL("at >= {} AND at < {}").format(sql.Placeholder(f"since{number}"), sql.Placeholder(f"until{number}"))
    ]
    for column, wanted in ask.where.items():
        if wanted is None:
            continue
        form = "{} = ANY({})" if isinstance(wanted, list) else "{} = {}"
        conditions.append(sql.SQL(form).format(sql.Identifier(column), sql.Placeholder(f"w_{column}")))
        values[f"w_{column}"] = wanted
    return sql.SQL(
        "SELECT at, {units}::int AS units, {told}::int AS told, at + make_interval(secs => {width}) AS ends{columns} "
        "FROM {table} WHERE {where}"
    ).format(
        units=_seconds(ask.source, ask.source.recorded, of_hours),
        told=_seconds(ask.source, ask.source.told, of_hours),
        width=sql.Literal(int(Level.HOUR if of_hours else ask.source.grain)),
        columns=sql.SQL("").join(sql.SQL(", ") + sql.Identifier(column) for column in sorted(needed - {"at"})),
        table=sql.Identifier(table.name),
        where=sql.SQL(" AND ").join(conditions),
    )


def _seconds(source: Source, column: str, of_hours: bool) -> sql.Composable:
    """That a row stands for."""
    whole = sql.SQL("{} * {}").format(
        sql.Identifier(source.counted) if of_hours else sql.SQL("1"), sql.Literal(int(source.grain))
    )
    return sql.SQL("coalesce({}, {})").format(sql.Identifier(column), whole) if column else sql.SQL("({})").format(whole)


def _listed(columns: Sequence[str]) -> sql.Composable:
    return sql.SQL("").join(sql.Identifier(column) + sql.SQL(", ") for column in columns)
