"""Handoffs per pair of engines and minute, and hours of models, pools and pairs: what charts of weeks are drawn from.

An hour holds what its minutes hold, added up (telemetry.hours); `minutes` says how many there were.
"""

from __future__ import annotations

from django.db import migrations

HOUR_S = 3600
DAY_S = 86400
NEW_WIDTHS_S = {
    "telemetry_pair_minute": 6 * HOUR_S,
    "telemetry_model_hour": 28 * DAY_S,
    "telemetry_pool_hour": 28 * DAY_S,
    "telemetry_pair_hour": 28 * DAY_S,
}
WIDTHS_S = {
    "telemetry_node_second": 900,
    "telemetry_gpu_minute": 6 * HOUR_S,
    "telemetry_engine_10s": 6 * HOUR_S,
    "telemetry_pool_minute": 7 * DAY_S,
    "telemetry_model_minute": 7 * DAY_S,
    "telemetry_request": DAY_S,
}


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


KNOWN = "ALTER TABLE telemetry_pool_minute ADD COLUMN known_seconds double precision"
KNOWN_COMMENT = """
COMMENT ON COLUMN telemetry_pool_minute.known_seconds IS
    'The part of gpu_seconds in which the GPU told its activity; NULL: a row of before it was counted.'
"""

PAIR = """
    model text NOT NULL,
    prefill text NOT NULL,
    decode text NOT NULL,
    at timestamptz NOT NULL,
    handoffs integer NOT NULL,
    failed integer NOT NULL,
    kv_bytes double precision NOT NULL,
    handoff_ms bytea,
    {minutes}
    PRIMARY KEY (model, at, prefill, decode)
"""
PAIR_MINUTE = f"""
CREATE TABLE telemetry_pair_minute ({PAIR.format(minutes="")}) PARTITION BY RANGE (at);
COMMENT ON TABLE telemetry_pair_minute IS
    'Handoffs per pair of engines and minute as the routers saw them; handoff_ms: of streamed answers, from the end of prefill to the first byte.';
"""
PAIR_HOUR = f"""
CREATE TABLE telemetry_pair_hour ({PAIR.format(minutes="minutes smallint NOT NULL,")}) PARTITION BY RANGE (at);
COMMENT ON TABLE telemetry_pair_hour IS 'telemetry_pair_minute, added up.';
"""


def _hour(name: str, key: str) -> str:
    """A table with the columns of its minutes."""
    return f"""
CREATE TABLE telemetry_{name}_hour (
    LIKE telemetry_{name}_minute INCLUDING DEFAULTS, minutes smallint NOT NULL, PRIMARY KEY ({key})
) PARTITION BY RANGE (at);
COMMENT ON TABLE telemetry_{name}_hour IS
    'telemetry_{name}_minute, added up: sums of what is counted, means of what is an average, the largest of maxima.';
"""


TABLES = {
    "pair_minute": PAIR_MINUTE,
    "model_hour": _hour("model", "model, at"),
    "pool_hour": _hour("pool", "model, role, at"),
    "pair_hour": PAIR_HOUR,
}


def _make(name: str) -> migrations.RunSQL:
    table = f"telemetry_{name}"
    return migrations.RunSQL(
        [TABLES[name], f"CREATE TABLE {table}_default PARTITION OF {table} DEFAULT"], f"DROP TABLE {table}"
    )


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0003_request_columns")]
    operations = [
        migrations.RunSQL(_width(WIDTHS_S | NEW_WIDTHS_S), _width(WIDTHS_S)),
        migrations.RunSQL([KNOWN, KNOWN_COMMENT], "ALTER TABLE telemetry_pool_minute DROP COLUMN known_seconds"),
        *map(_make, TABLES),
    ]
