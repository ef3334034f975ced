"""Whose API key a request came with."""

from __future__ import annotations

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0005_minutes_by_time")]
    operations = [
        migrations.RunSQL(
            "ALTER TABLE telemetry_request ADD COLUMN team text NOT NULL DEFAULT ''",
            "ALTER TABLE telemetry_request DROP COLUMN team",
        )
    ]
