"""Rows of the first version come through every migration: nothing is lost and nothing is changed on the way."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from django.db import connection
from django.db.migrations import AddField
from django.db.migrations.loader import MigrationLoader

from controlplane.stack.postgres import EmbeddedPostgres
from controlplane.stack.services import ROOT
from tests.integration.upkeep_kit import database

FORWARD = """
import json
import django
django.setup()
from django.db import connections, models
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

FIRST = [("fleet", "0004_operations"), ("control", "0001_lease"), ("api", "0001_answers_and_tokens"),
         ("alerts", "0001_alerts_and_channels")]
OURS = {app for app, _ in FIRST}
owner = connections["owner"]
PLAIN = {"FloatField": 1.5, "BooleanField": True, "JSONField": {"kept": [1]}}  # and 1 for whole numbers


def tables(apps):
    return [each for each in apps.get_models() if each._meta.app_label in OURS and each._meta.managed]


def value(field, number):
    kind = field.get_internal_type()
    if kind in ("ForeignKey", "OneToOneField"):
        return made[field.remote_field.model._meta.label][number]
    if kind == "DateTimeField":
        return timezone.now()
    if kind in ("CharField", "SlugField", "TextField"):
        return "0123456789abcdef"[number] * min(field.max_length or 8, 64)
    return PLAIN.get(kind, 1)


def fill(table):
    # Two rows with a value in every column that must have one.
    for number in range(2):
        given = {field.name: value(field, number) for field in table._meta.fields
                 if not field.has_default() and not field.null and not isinstance(field, models.AutoField)}
        made.setdefault(table._meta.label, []).append(table.objects.using("owner").create(**given))


def rows(apps, columns):
    # By table; of the columns that the first version had, as text.
    found = {}
    with owner.cursor() as cursor:
        for name, wanted in columns.items():
            cursor.execute(f'SELECT {", ".join(f"{each}::text" for each in wanted)} FROM {name} ORDER BY 1')
            found[name] = cursor.fetchall()
    return found


def present(apps, columns):
    # Those of the columns that are there now too.
    now = {each._meta.db_table: {field.column for field in each._meta.fields} for each in tables(apps)}
    return {name: [each for each in wanted if each in now.get(name, ())] for name, wanted in columns.items() if name in now}


made = {}
executor = MigrationExecutor(owner)
executor.migrate(FIRST)
first = executor.loader.project_state(FIRST).apps
waiting = tables(first)
while waiting:
    table = next(each for each in waiting if all(
        field.remote_field.model in (each, *(other for other in first.get_models() if other not in waiting))
        for field in each._meta.fields if field.remote_field and not field.null))
    if table._meta.app_label == "api":
        waiting.remove(table)  # needs users, whose tables are Django's
        continue
    fill(table)
    waiting.remove(table)
columns = {each._meta.db_table: [field.column for field in each._meta.fields] for each in tables(first)}
executor = MigrationExecutor(owner)
newest = executor.loader.graph.leaf_nodes()
kept = present(executor.loader.project_state(newest).apps, columns)
before = rows(first, kept)
executor.migrate(newest)
after = rows(first, kept)
print(json.dumps({"tables": len(before), "rows": sum(map(len, before.values())), "gone": sorted(set(columns) - set(kept)),
                  "changed": sorted(name for name in before if before[name] != after[name])}))
"""


def test_rows_of_the_first_version_come_through_all_migrations(postgres: EmbeddedPostgres) -> None:
    with database(postgres, "forward") as env:
        env |= {"DJANGO_SETTINGS_MODULE": "controlplane.settings", "PYTHONPATH": str(ROOT)}
        ran = subprocess.run([sys.executable, "-c", FORWARD], cwd=ROOT, env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-3000:]
    told = json.loads(ran.stdout.splitlines()[-1])
    assert told["rows"] > 20 and told["tables"] > 10, told
    assert (told["gone"], told["changed"]) == ([], []), told


BEFORE = {"fleet": 15, "control": 1, "telemetry": 6, "api": 1, "alerts": 1}
"""Numbers of the last migrations of the version before this one."""


@pytest.mark.django_db
def test_processes_of_the_version_before_can_write_rows_of_this_schema() -> None:
    """They name no column that they do not know: it must be nullable or have a default in the database itself."""
    loader = MigrationLoader(connection)
    known = loader.project_state([name for name in loader.graph.nodes if int(name[1][:4]) <= BEFORE.get(name[0], 0)]).apps
    tables = {each._meta.label_lower: each._meta.db_table for each in known.get_models()}
    added = {
        (tables[f"{app}.{each.model_name_lower}"], each.field.db_column or each.name)
        for (app, name), migration in loader.disk_migrations.items()
        if app in BEFORE and int(name[:4]) > BEFORE[app]
        for each in migration.operations
        if isinstance(each, AddField) and f"{app}.{each.model_name_lower}" in tables
    }
    assert ("fleet_node", "broker_sha256") in added
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name, column_name FROM information_schema.columns "
            "WHERE table_schema = 'public' AND is_nullable = 'NO' AND column_default IS NULL"
        )
        assert added & set(cursor.fetchall()) == set()
