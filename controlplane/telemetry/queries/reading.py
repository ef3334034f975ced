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
"""Of one group and cell: the columns of the group, `cell` (0-based), `covered_s` (seconds that have a record), `ends` (when
the newest row ended, Unix seconds) and what was picked."""


@dataclass(frozen=True)
class Source:
    """`grain`: of `rows`; `hours`: the same, added up; None: there is none. `counted`: the column of `hours` that says how
    many times of `rows` each stands for. `crowded`: a group may have several rows of the same time."""

    rows: Table
    hours: Table | None
    grain: Level
    counted: str = "minutes"
    crowded: bool = False


MODELS = Source(MODEL_MINUTE, MODEL_HOUR, Level.MINUTE)
POOLS = Source(POOL_MINUTE, POOL_HOUR, Level.MINUTE)
PAIRS = Source(PAIR_MINUTE, PAIR_HOUR, Level.MINUTE)
GPUS = Source(GPU_MINUTE, None, Level.MINUTE)
ENGINES = Source(ENGINE_10S, ENGINE_HOUR, Level.TEN_SECONDS, "tens", crowded=True)


@dataclass(frozen=True)
class Pick:
    """A column of the answer: the columns it is made of, and how."""

    columns: tuple[str, ...]
    form: sql.Composable


Picks = Mapping[str, Pick]
TIMES = "(coalesce(sum(units) FILTER (WHERE hourly), 0) + count(DISTINCT at) FILTER (WHERE NOT hourly))"
"""Of hours an engine that changed its role counts the ten seconds of that twice."""


def total(column: str) -> Pick:
    return Pick((column,), sql.SQL("sum({})::float8").format(sql.Identifier(column)))


def most(column: str) -> Pick:
    return Pick((column,), sql.SQL("max({})::float8").format(sql.Identifier(column)))


def mean(column: str, weight: str = "units") -> Pick:
    """Over the rows in which it is known, each with `weight` (`units`: how many rows of the finest level it stands for)."""
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
    `group` (the rest of the table's key, so that one row is one unit) and, with `cells`, by cell."""

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
    names = ["cell", "units", "ends", *ask.picks]
    query = sql.SQL(
        "SELECT {group}{cell} AS cell, {units}::float8, extract(epoch FROM max(ends))::float8{picks} "
        "FROM ({parts}) AS rows GROUP BY {keys}cell ORDER BY {keys}cell"
    ).format(
        group=_listed(ask.group),
        keys=_listed(ask.group),
        cell=cell,
        units=sql.SQL(TIMES if ask.source.crowded else "sum(units)"),
        picks=sql.SQL("").join(sql.SQL(", ") + pick.form for pick in ask.picks.values()),
        parts=sql.SQL(" UNION ALL ").join(parts),
    )
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        found = cursor.fetchall()
    rows = [dict(zip([*ask.group, *names], values, strict=True)) for values in found]
    for row in rows:
        row["covered_s"] = row.pop("units") * ask.source.grain
    return rows


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
        "SELECT at, {units}::int AS units, {hourly} AS hourly, at + make_interval(secs => {width}) AS ends{columns} "
        "FROM {table} WHERE {where}"
    ).format(
        units=sql.Identifier(ask.source.counted) if of_hours else sql.SQL("1"),
        hourly=sql.SQL(str(of_hours)),
        width=sql.Literal(int(Level.HOUR if of_hours else ask.source.grain)),
        columns=sql.SQL("").join(sql.SQL(", ") + sql.Identifier(column) for column in sorted(needed - {"at"})),
        table=sql.Identifier(table.name),
        where=sql.SQL(" AND ").join(conditions),
    )


def _listed(columns: Sequence[str]) -> sql.Composable:
    return sql.SQL("").join(sql.Identifier(column) + sql.SQL(", ") for column in columns)
