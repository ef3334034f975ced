"""Rows of the first version come through every migration: nothing is lost and nothing is changed on the way. And whoever
writes rows as the version before did can go on: every newer column of an older table may be left out."""

from __future__ import annotations

import json
import subprocess
import sys

from controlplane.stack.postgres import EmbeddedPostgres
from controlplane.stack.services import ROOT
from tests.integration.upkeep_kit import database

BEFORE = {"fleet": 15, "control": 1, "telemetry": 6, "api": 1, "alerts": 1}
"""Numbers of the last migrations of the version before this one."""

FORWARD = """
import json
import sys
import django
django.setup()
from django.db import connections, models
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

FIRST = [("fleet", "0004_operations"), ("control", "0001_lease"), ("api", "0001_answers_and_tokens"),
         ("alerts", "0001_alerts_and_channels"), ("telemetry", "0002_tables")]
OURS = {app for app, _ in FIRST}
BEFORE = json.loads(sys.argv[1])
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


OF_TYPE = {"text": "'x'", "timestamp with time zone": "now()", "boolean": "true", "bytea": "decode('0102', 'hex')",
           "jsonb": "'[1]'", "ARRAY": "'{1, 2}'", "double precision": "1.5", "real": "1.5"}  # and 7 for whole numbers


def asked(query, *values):
    with owner.cursor() as cursor:
        cursor.execute(query, values)
        return cursor.fetchall()


def telemetry():
    # Tables that no model describes, with their columns.
    found = {}
    for name, column, kind in asked(
        "SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = 'public' "
        "AND table_name LIKE 'telemetry%%' AND table_name IN (SELECT relname FROM pg_class WHERE NOT relispartition) "
        "ORDER BY table_name, ordinal_position"):
        found.setdefault(name, {})[column] = kind
    return found


def fill_telemetry():
    for name, kinds in telemetry().items():
        values = ", ".join(OF_TYPE.get(kind, "7") for kind in kinds.values())
        asked(f'INSERT INTO {name} ({", ".join(kinds)}) VALUES ({values}) RETURNING 1')


def every():
    return set(asked("SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'"))


def needed():
    # (table, column) of every column that whoever writes a row must name.
    return set(asked("SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public' "
                     "AND is_nullable = 'NO' AND column_default IS NULL AND is_identity = 'NO'"))


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
fill_telemetry()
columns = {each._meta.db_table: [field.column for field in each._meta.fields] for each in tables(first)}
told = {name: list(kinds) for name, kinds in telemetry().items()}
executor = MigrationExecutor(owner)
executor.migrate([name for name in executor.loader.graph.nodes if int(name[1][:4]) == BEFORE.get(name[0])])
known = {name for name, in asked("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'")}
old, there = needed(), every()
executor = MigrationExecutor(owner)
newest = executor.loader.graph.leaf_nodes()
kept = {**present(executor.loader.project_state(newest).apps, columns), **told}
before = rows(first, kept)
executor.migrate(newest)
after = rows(first, kept)
print(json.dumps({
    "tables": len(before), "rows": sum(map(len, before.values())), "telemetry": len(told),
    "gone": sorted(set(columns) - set(kept)), "changed": sorted(name for name in before if before[name] != after[name]),
    "added": sorted(f"{name}.{column}" for name, column in every() - there if name in known),
    "unknown": sorted(f"{name}.{column}" for name, column in needed() - old if name in known),
}))
"""


def test_rows_come_through_all_migrations_and_the_version_before_can_still_write(postgres: EmbeddedPostgres) -> None:
    with database(postgres, "forward") as env:
        env |= {"DJANGO_SETTINGS_MODULE": "controlplane.settings", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", FORWARD, json.dumps(BEFORE)]
        ran = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-3000:]
    told = json.loads(ran.stdout.splitlines()[-1])
    assert told["rows"] > 20 and told["tables"] > 10, told
    assert told["telemetry"] > 6, told
    assert (told["gone"], told["changed"]) == ([], []), told
    assert {"fleet_node.broker_sha256", "telemetry_pool_minute.recorded_s"} <= set(told["added"]), told
    assert told["unknown"] == [], "processes of the version before write rows without these columns"
