"""Hours of what GPUs were held for, by model, role and kind, and of what API keys used: kept for as long as finance asks.

They are made from minutes of GPUs, ten seconds of engines and records of requests (telemetry.cost_hours), which are gone after
days. `api_key` is the beginning of the key's SHA-256, as routers know it; its name is in fleet_inferencekey.
"""

from __future__ import annotations

from django.db import migrations

DAY_S = 86400
MINUTE_S = 60
HOUR_S = 3600
WIDTHS_S = {
    "telemetry_node_second": 15 * MINUTE_S,
    "telemetry_gpu_minute": 6 * HOUR_S,
    "telemetry_engine_10s": 6 * HOUR_S,
    "telemetry_pool_minute": 7 * DAY_S,
    "telemetry_model_minute": 7 * DAY_S,
    "telemetry_request": DAY_S,
    "telemetry_pair_minute": 6 * HOUR_S,
    "telemetry_model_hour": 28 * DAY_S,
    "telemetry_pool_hour": 28 * DAY_S,
    "telemetry_pair_hour": 28 * DAY_S,
}
NEW_WIDTHS_S = {"telemetry_cost_hour": 28 * DAY_S, "telemetry_usage_hour": 28 * DAY_S}


def _width(widths_s: dict[str, int]) -> str:
    """The function of migration 0001 for these tables. Replacing it takes its settings away: they are given again."""
    cases = " ".join(f"WHEN '{name}' THEN {width}" for name, width in widths_s.items())
    return f"""
CREATE OR REPLACE FUNCTION telemetry_partition_width_s(parent text)
RETURNS integer LANGUAGE sql IMMUTABLE AS $$ SELECT CASE parent {cases} END $$;
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION telemetry_partition_width_s(text) SET search_path = %I, pg_temp', current_schema());
    ALTER FUNCTION telemetry_partition_width_s(text) SET timezone = 'UTC';
    ALTER FUNCTION telemetry_partition_width_s(text) SET datestyle = 'ISO';
    ALTER FUNCTION telemetry_partition_width_s(text) SET lock_timeout = '2s';
END
$$;
"""


KEY = "ALTER TABLE telemetry_request ADD COLUMN api_key text NOT NULL DEFAULT ''"
COST_HOUR = """
CREATE TABLE telemetry_cost_hour (
    model text NOT NULL,
    role text NOT NULL,
    kind text NOT NULL,
    at timestamptz NOT NULL,
    gpu_seconds double precision NOT NULL,
    busy_seconds double precision NOT NULL,
    idle_seconds double precision NOT NULL,
    stranded_seconds double precision NOT NULL,
    unknown_seconds double precision NOT NULL,
    minutes smallint NOT NULL,
    PRIMARY KEY (model, role, kind, at)
) PARTITION BY RANGE (at);
CREATE INDEX telemetry_cost_hour_at ON telemetry_cost_hour (at);
COMMENT ON TABLE telemetry_cost_hour IS
    'GPU seconds per pool and kind of GPU; a GPU that told anything in a minute counts for the whole of it. Model and role empty: in no pool. unknown: at work, its activity not told.';
"""
USAGE_HOUR = """
CREATE TABLE telemetry_usage_hour (
    model text NOT NULL,
    team text NOT NULL,
    api_key text NOT NULL,
    at timestamptz NOT NULL,
    requests bigint NOT NULL,
    estimated bigint NOT NULL,
    prompt_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    PRIMARY KEY (model, team, api_key, at)
) PARTITION BY RANGE (at);
CREATE INDEX telemetry_usage_hour_at ON telemetry_usage_hour (at);
COMMENT ON TABLE telemetry_usage_hour IS
    'What requests that ended in the hour used. estimated: requests that other records stand for, their tokens included.';
"""
TABLES = {"telemetry_cost_hour": COST_HOUR, "telemetry_usage_hour": USAGE_HOUR}


def _make(table: str, statement: str) -> migrations.RunSQL:
    return migrations.RunSQL(
        [statement, f"CREATE TABLE {table}_default PARTITION OF {table} DEFAULT"], f"DROP TABLE {table}"
    )


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0006_request_team")]
    operations = [
        migrations.RunSQL(_width(WIDTHS_S | NEW_WIDTHS_S), _width(WIDTHS_S)),
        migrations.RunSQL(KEY, "ALTER TABLE telemetry_request DROP COLUMN api_key"),
        *(_make(table, statement) for table, statement in TABLES.items()),
    ]
