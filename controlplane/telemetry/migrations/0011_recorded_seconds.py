"""How many seconds a row stands for: less than all of its time where nothing came for a part of it.

Rows of before have NULL and count as whole. Columns without a default are added without touching a row.
"""

from __future__ import annotations

from django.db import migrations

TOLD = (
    "seconds that the counters tell of; more than its own time has where an engine or a router told of the time before too"
)
COLUMNS = {
    "telemetry_pool_minute": {"recorded_s": "seconds that have a sample", "told_s": TOLD},
    "telemetry_pool_hour": {"recorded_s": "seconds that have a sample", "told_s": TOLD},
    "telemetry_engine_10s": {"told_s": TOLD},
    "telemetry_engine_hour": {"told_s": TOLD},
    "telemetry_model_minute": {"told_s": TOLD},
    "telemetry_model_hour": {"told_s": TOLD},
}


def _add(table: str, column: str, means: str) -> migrations.RunSQL:
    return migrations.RunSQL(
        [
            f"ALTER TABLE {table} ADD COLUMN {column} integer",
            f"COMMENT ON COLUMN {table}.{column} IS '{means}; NULL: a row of before it was counted'",
        ],
        f"ALTER TABLE {table} DROP COLUMN {column}",
    )


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0010_engine_hours")]
    operations = [_add(table, name, means) for table, columns in COLUMNS.items() for name, means in columns.items()]
