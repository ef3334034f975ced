"""Minutes of all models and pools by time: for the hours that are made of them, and for figures of the whole fleet."""

from __future__ import annotations

from django.db import migrations

TABLES = ("pool_minute", "model_minute", "pair_minute")


def _index(name: str) -> migrations.RunSQL:
    return migrations.RunSQL(f"CREATE INDEX telemetry_{name}_at ON telemetry_{name} (at)", f"DROP INDEX telemetry_{name}_at")


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0004_pairs_and_hours")]
    operations = [*map(_index, TABLES)]
