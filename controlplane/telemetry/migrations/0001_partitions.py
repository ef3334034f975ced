"""Functions that make and drop partitions of telemetry tables, and the names they accept.

The application's role owns nothing and cannot create tables; these functions run as the migrating role, take only the
tables of WIDTHS_S (a function, so that nobody can add a name), and can neither drop a partition that still receives rows
nor touch any other table.
"""

from __future__ import annotations

from django.conf import settings
from django.db import migrations

MINUTE_S = 60
HOUR_S = 3600
DAY_S = 86400
WIDTHS_S = {
    "telemetry_node_second": 15 * MINUTE_S,
    "telemetry_gpu_minute": 6 * HOUR_S,
    "telemetry_engine_10s": 6 * HOUR_S,
    "telemetry_pool_minute": 7 * DAY_S,
    "telemetry_model_minute": 7 * DAY_S,
    "telemetry_request": DAY_S,
}

WIDTH = f"""
CREATE FUNCTION telemetry_partition_width_s(parent text)
RETURNS integer LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE parent {" ".join(f"WHEN '{name}' THEN {width}" for name, width in WIDTHS_S.items())} END
$$;
COMMENT ON FUNCTION telemetry_partition_width_s IS 'Seconds that one partition holds; NULL for anything that is no telemetry table.';
"""

PARTITIONS = """
CREATE FUNCTION telemetry_partitions(parent text)
RETURNS TABLE (name text, starts timestamptz, ends timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT child.relname::text,
           substring(bound.text from 'FROM \\(''([^'']+)''\\)')::timestamptz,
           substring(bound.text from 'TO \\(''([^'']+)''\\)')::timestamptz
    FROM pg_inherits link
    JOIN pg_class child ON child.oid = link.inhrelid
    CROSS JOIN LATERAL (SELECT pg_get_expr(child.relpartbound, child.oid) AS text) bound
    WHERE telemetry_partition_width_s(parent) IS NOT NULL AND link.inhparent = to_regclass(quote_ident(parent))
      AND bound.text LIKE 'FOR VALUES FROM%'
$$;
COMMENT ON FUNCTION telemetry_partitions IS 'The partitions of a telemetry table with their bounds, the default one left out.';
"""

ENSURE = """
CREATE FUNCTION telemetry_ensure_partition(parent text, moment timestamptz)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    width integer := telemetry_partition_width_s(parent);
    starts timestamptz;
    ends timestamptz;
    child text;
BEGIN
    IF width IS NULL THEN
        RAISE EXCEPTION '% is not a partitioned telemetry table', parent USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM pg_advisory_xact_lock(hashtext('telemetry'), hashtext(parent));
    IF EXISTS (SELECT 1 FROM telemetry_partitions(parent) p WHERE p.starts <= moment AND moment < p.ends) THEN
        RETURN false;
    END IF;
    starts := to_timestamp(floor(extract(epoch FROM moment) / width) * width);
    ends := starts + make_interval(secs => width);
    child := format('%s_%s', parent, to_char(starts, 'YYYYMMDD"t"HH24MI'));
    EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', child, parent);
    -- Rows that came before their partition wait in the default one; they must leave it before the bounds may be claimed.
    EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE', parent || '_default');
    EXECUTE format('WITH moved AS (DELETE FROM %I WHERE at >= %L AND at < %L RETURNING *) INSERT INTO %I SELECT * FROM moved',
                   parent || '_default', starts, ends, child);
    EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', parent, child, starts, ends);
    RETURN true;
END
$$;
COMMENT ON FUNCTION telemetry_ensure_partition IS 'Makes the partition that holds a moment, if there is none. True: it was made.';
"""

DROP = """
CREATE FUNCTION telemetry_drop_partitions(parent text, before timestamptz)
RETURNS integer LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    child text;
    dropped integer := 0;
BEGIN
    IF telemetry_partition_width_s(parent) IS NULL THEN
        RAISE EXCEPTION '% is not a partitioned telemetry table', parent USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF before > now() THEN
        RAISE EXCEPTION 'partitions that still receive rows cannot be dropped' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM pg_advisory_xact_lock(hashtext('telemetry'), hashtext(parent));
    FOR child IN SELECT p.name FROM telemetry_partitions(parent) p WHERE p.ends <= before ORDER BY p.ends LOOP
        EXECUTE format('DROP TABLE %I', child);
        dropped := dropped + 1;
    END LOOP;
    EXECUTE format('DELETE FROM %I WHERE at < %L', parent || '_default', before);
    RETURN dropped;
END
$$;
COMMENT ON FUNCTION telemetry_drop_partitions IS 'Drops partitions that end before a moment in the past, and such rows of the default one.';
"""

# pg_temp last: a caller's temporary table must not stand in for one of ours inside a function that runs as the owner.
# A lock that is not there soon is given up; the caller tries again, and readers never queue behind it.
SETTINGS = """
DO $$
DECLARE
    signature text;
BEGIN
    FOREACH signature IN ARRAY ARRAY[
        'telemetry_partition_width_s(text)',
        'telemetry_partitions(text)',
        'telemetry_ensure_partition(text, timestamptz)',
        'telemetry_drop_partitions(text, timestamptz)'
    ] LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', signature, current_schema());
        EXECUTE format('ALTER FUNCTION %s SET timezone = ''UTC''', signature);
        EXECUTE format('ALTER FUNCTION %s SET datestyle = ''ISO''', signature);
        EXECUTE format('ALTER FUNCTION %s SET lock_timeout = ''2s''', signature);
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', signature);
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', signature, '{role}');
    END LOOP;
    EXECUTE format('GRANT TEMPORARY ON DATABASE %I TO %I', current_database(), '{role}');
END
$$;
"""


class Migration(migrations.Migration):
    initial = True
    dependencies = [("fleet", "0001_grants")]
    operations = [
        migrations.RunSQL(WIDTH, "DROP FUNCTION telemetry_partition_width_s(text)"),
        migrations.RunSQL(PARTITIONS, "DROP FUNCTION telemetry_partitions(text)"),
        migrations.RunSQL(ENSURE, "DROP FUNCTION telemetry_ensure_partition(text, timestamptz)"),
        migrations.RunSQL(DROP, "DROP FUNCTION telemetry_drop_partitions(text, timestamptz)"),
        migrations.RunSQL(
            SETTINGS.replace("{role}", settings.DATABASE_APP_ROLE.replace("'", "''")),
            migrations.RunSQL.noop,
        ),
    ]
