"""Hours of engines: what their figures over a day and more are read from.

Made from ten seconds (telemetry.hours), also those that are still there from before this migration. Their index by time is
for that, and for figures of all engines.
"""

from __future__ import annotations

from importlib import import_module

from django.db import migrations

COSTS = import_module("controlplane.telemetry.migrations.0007_costs")
BEFORE = import_module("controlplane.telemetry.migrations.0009_usage_of_untold_requests")
WIDTHS_S = BEFORE.WIDTHS_S | BEFORE.NEW_WIDTHS_S
NEW_WIDTHS_S = {"telemetry_engine_hour": 7 * COSTS.DAY_S}
ENGINE_HOUR = """
CREATE TABLE telemetry_engine_hour (
    LIKE telemetry_engine_10s INCLUDING DEFAULTS, tens smallint NOT NULL, PRIMARY KEY (engine, role, at)
) PARTITION BY RANGE (at);
CREATE INDEX telemetry_engine_hour_model ON telemetry_engine_hour (model, at);
COMMENT ON TABLE telemetry_engine_hour IS
    'telemetry_engine_10s of all starts, added up: sums of what is counted, means of what is an average, the largest of maxima.';
"""
BY_TIME = "CREATE INDEX telemetry_engine_10s_at ON telemetry_engine_10s (at)"


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0009_usage_of_untold_requests")]
    operations = [
        migrations.RunSQL(COSTS._width(WIDTHS_S | NEW_WIDTHS_S), COSTS._width(WIDTHS_S)),
        COSTS._make("telemetry_engine_hour", ENGINE_HOUR),
        migrations.RunSQL(BY_TIME, "DROP INDEX telemetry_engine_10s_at"),
    ]
