"""Partitions: the app may have them made and dropped, and nothing else; a missing one loses no row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, transaction
from django.db.utils import DatabaseError, ProgrammingError

PARENT = "telemetry_node_second"
AT = datetime(2026, 11, 30, 8, 20, 30, tzinfo=UTC)
ROW = "INSERT INTO telemetry_node_second VALUES (%s, %s, '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}')"

pytestmark = pytest.mark.django_db


def ask(sql: str, *values: object) -> object:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        row = cursor.fetchone() if cursor.description else None
    return row[0] if row else None


def refused(sql: str, *values: object) -> None:
    with pytest.raises(DatabaseError), transaction.atomic():
        ask(sql, *values)


def partitions() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT name FROM telemetry_partitions(%s) ORDER BY starts", [PARENT])
        return [name for (name,) in cursor.fetchall()]


def test_a_partition_is_made_once_and_holds_its_quarter_of_an_hour() -> None:
    assert ask("SELECT telemetry_ensure_partition(%s, %s)", PARENT, AT) is True
    assert ask("SELECT telemetry_ensure_partition(%s, %s)", PARENT, AT + timedelta(minutes=9)) is False
    assert ask("SELECT telemetry_ensure_partition(%s, %s)", PARENT, AT + timedelta(minutes=10)) is True
    assert partitions() == ["telemetry_node_second_20261130t0815", "telemetry_node_second_20261130t0830"]


def test_a_row_without_a_partition_waits_in_the_default_one_and_moves_when_its_partition_is_made() -> None:
    ask(ROW, "n1", AT)
    assert ask("SELECT count(*) FROM telemetry_node_second_default") == 1
    ask("SELECT telemetry_ensure_partition(%s, %s)", PARENT, AT)
    assert ask("SELECT count(*) FROM telemetry_node_second_default") == 0
    assert ask("SELECT count(*) FROM telemetry_node_second_20261130t0815") == 1


def test_old_partitions_are_dropped_and_young_ones_stay() -> None:
    old = datetime(2020, 1, 1, tzinfo=UTC)
    ask("SELECT telemetry_ensure_partition(%s, %s)", PARENT, old)
    ask("SELECT telemetry_ensure_partition(%s, %s)", PARENT, old + timedelta(minutes=15))
    ask(ROW, "n1", old - timedelta(hours=1))
    assert ask("SELECT telemetry_drop_partitions(%s, %s)", PARENT, old + timedelta(minutes=20)) == 1
    assert partitions() == ["telemetry_node_second_20200101t0015"]
    assert ask("SELECT count(*) FROM telemetry_node_second") == 0


def test_a_partition_in_use_is_never_dropped() -> None:
    refused("SELECT telemetry_drop_partitions(%s, now() + interval '1 hour')", PARENT)


@pytest.mark.parametrize("name", ["fleet_auditentry", "telemetry_position", 'x"; DROP TABLE fleet_node; --', "auth_user"])
def test_only_telemetry_tables_are_accepted(name: str) -> None:
    refused("SELECT telemetry_ensure_partition(%s, %s)", name, AT)
    refused("SELECT telemetry_drop_partitions(%s, %s)", name, AT - timedelta(days=900))


def test_a_function_of_the_caller_cannot_stand_in_for_the_list_of_tables() -> None:
    ask(
        "CREATE FUNCTION pg_temp.telemetry_partition_width_s(parent text) RETURNS integer LANGUAGE sql AS 'SELECT 60';"
        "SET LOCAL search_path = pg_temp, public"
    )
    refused("SELECT telemetry_drop_partitions('fleet_auditentry', %s)", AT - timedelta(days=900))


def test_the_application_cannot_make_tables() -> None:
    with pytest.raises(ProgrammingError), transaction.atomic():
        ask("CREATE TABLE mine (id integer)")
