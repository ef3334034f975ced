"""Rows into PostgreSQL: COPY into a temporary table, then one INSERT that replaces what is there, and the stream's position
in the same transaction. Written twice is written once.

A row that PostgreSQL refuses (which `telemetry.records` should have caught) is dropped and counted; it never stops the rest.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import django.db
import orjson
import psycopg
from django.db import connection, transaction
from psycopg import sql

from controlplane.core import names
from controlplane.telemetry.partitions import Partitions
from controlplane.telemetry.tables import Batch, Table, Values, moment

log = logging.getLogger(__name__)

REFUSED = (django.db.DataError, django.db.IntegrityError, psycopg.DataError, psycopg.IntegrityError)
FAILED = (django.db.Error, psycopg.Error)
"""Everything else: PostgreSQL is away, or a table is missing."""


class OtherPosition(django.db.OperationalError):
    """The server has another position than was stored last: it crashed and lost some, or somebody else writes too."""


class Writer:
    def __init__(self, partitions: Partitions) -> None:
        self.counts: Counter[str] = Counter()
        """written, refused: rows since this process started."""
        self._partitions = partitions
        self._staged: tuple[object, set[Table]] = (None, set())

    def write(self, batch: Batch, position: str, at: float, since: str | None = None) -> None:
        """`batch`, and that the stream was read up to `position` (a stream id; `at`: its time). All or nothing. `since`: the
        position that must be there, without which `batch` would leave a gap (None: any). Raises one of FAILED, OtherPosition
        among them."""
        for table, rows in batch.rows.items():
            place = table.columns.index("at")
            self._partitions.ensure(table, [row[place] for row in rows.values()])
            self._stage(table)
        try:
            self._write_all(batch, (position, at, since), _copy)
        except REFUSED:
            self._write_all(batch, (position, at, since), self._copy_what_goes)
        self.counts["written"] += len(batch)

    def _write_all(
        self, batch: Batch, place: tuple[str, float, str | None], copy: Callable[[Table, list[Values]], None]
    ) -> None:
        with transaction.atomic():
            with connection.cursor() as cursor:
                # A crash may take the last of these, each with its position: whoever writes reads on from there.
                cursor.execute("SET LOCAL synchronous_commit = off")
            for table, rows in batch.rows.items():
                copy(table, list(rows.values()))
            _note_position(*place)

    def _copy_what_goes(self, table: Table, rows: list[Values]) -> None:
        """Leaves out the rows that PostgreSQL refuses: halves of halves are tried until they are found."""
        try:
            with transaction.atomic():
                _copy(table, rows)
        except REFUSED as error:
            if len(rows) == 1:
                self.counts["refused"] += 1
                self.counts["written"] -= 1
                log.error("a row of %s was refused and dropped: %s", table.name, type(error).__name__)
                return
            half = len(rows) // 2
            self._copy_what_goes(table, rows[:half])
            self._copy_what_goes(table, rows[half:])

    def _stage(self, table: Table) -> None:
        """A temporary table of this connection, empty in every transaction."""
        connection.ensure_connection()
        if self._staged[0] is not connection.connection:
            self._staged = (connection.connection, set())
        if table in self._staged[1]:
            return
        with connection.cursor() as cursor:
            cursor.execute(
                sql.SQL("CREATE TEMPORARY TABLE IF NOT EXISTS {} (LIKE {}) ON COMMIT DELETE ROWS").format(
                    sql.Identifier(_staging(table)), sql.Identifier(table.name)
                )
            )
        self._staged[1].add(table)


def _note_position(position: str, at: float, since: str | None) -> None:
    with connection.cursor() as cursor:
        if since is None:
            cursor.execute(
                "INSERT INTO telemetry_position (stream, last_id, at) VALUES (%s, %s, %s) "
                "ON CONFLICT (stream) DO UPDATE SET last_id = excluded.last_id, at = excluded.at",
                [names.TELEMETRY_STREAM, position, moment(at)],
            )
            return
        cursor.execute(
            "UPDATE telemetry_position SET last_id = %s, at = %s WHERE stream = %s AND last_id = %s",
            [position, moment(at), names.TELEMETRY_STREAM, since],
        )
        if not cursor.rowcount:
            raise OtherPosition("what was stored last is not there any more")


def last_position() -> str | None:
    """The stream id up to which rows were written; None when nothing ever was. Raises one of FAILED."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT last_id FROM telemetry_position WHERE stream = %s", [names.TELEMETRY_STREAM])
        row = cursor.fetchone()
    return str(row[0]) if row else None


def array(values: list[Any]) -> Any:
    """A list as PostgreSQL writes arrays. As text it costs a hundredth of what the driver's own way costs, and seconds of
    nodes are hardly anything but lists. JSON differs by its brackets, and by its escapes of control characters only."""
    text = orjson.dumps(values)
    return values if b"\\" in text else "{" + text[1:-1].decode() + "}"


def _staging(table: Table) -> str:
    return f"staging_{table.name}"


def _copy(table: Table, rows: list[Values]) -> None:
    columns = sql.SQL(", ").join(map(sql.Identifier, table.columns))
    names_ = {
        "staging": sql.Identifier("pg_temp", _staging(table)),
        "table": sql.Identifier(table.name),
        "columns": columns,
        "key": sql.SQL(", ").join(map(sql.Identifier, table.key)),
        "changes": sql.SQL(", ").join(
            sql.SQL("{0} = excluded.{0}").format(sql.Identifier(column))
            for column in table.columns
            if column not in table.key
        ),
    }
    with connection.cursor() as cursor:
        # psycopg's own cursor: Django's wrapper has no COPY.
        with cursor.cursor.copy(sql.SQL("COPY {staging} ({columns}) FROM STDIN").format(**names_)) as copy:
            for row in rows:
                copy.write_row([array(value) if isinstance(value, list) else value for value in row])
        # One message, because each costs a wait for the other process.
        cursor.execute(
            sql.SQL(
                "INSERT INTO {table} ({columns}) SELECT {columns} FROM {staging} "
                "ON CONFLICT ({key}) DO UPDATE SET {changes}; DELETE FROM {staging}"
            ).format(**names_)
        )
