"""What requests without a row of their own used, exactly: a busy router tells only every so many of those that went well."""

from __future__ import annotations

from importlib import import_module

from django.db import migrations

BEFORE = import_module("controlplane.telemetry.migrations.0007_costs")
WIDTHS_S = BEFORE.WIDTHS_S | BEFORE.NEW_WIDTHS_S
NEW_WIDTHS_S = {"telemetry_usage": BEFORE.DAY_S}
TOLD = "ALTER TABLE telemetry_request ADD COLUMN others_told boolean NOT NULL DEFAULT false"
USAGE = """
CREATE TABLE telemetry_usage (
    router text NOT NULL,
    model text NOT NULL,
    team text NOT NULL,
    api_key text NOT NULL,
    at timestamptz NOT NULL,
    requests bigint NOT NULL,
    prompt_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    PRIMARY KEY (router, model, team, api_key, at)
) PARTITION BY RANGE (at);
CREATE INDEX telemetry_usage_at ON telemetry_usage (at);
COMMENT ON TABLE telemetry_usage IS
    'What finished requests without a row in telemetry_request used, as routers counted it; a row about every second.';
"""


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0008_short_locks")]
    operations = [
        migrations.RunSQL(BEFORE._width(WIDTHS_S | NEW_WIDTHS_S), BEFORE._width(WIDTHS_S)),
        migrations.RunSQL(TOLD, "ALTER TABLE telemetry_request DROP COLUMN others_told"),
        BEFORE._make("telemetry_usage", USAGE),
    ]
