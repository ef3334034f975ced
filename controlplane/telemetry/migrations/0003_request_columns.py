"""What a record of a request tells beside the first columns: its session and arm, how many requests it stands for, its wait in
the router, how often its stream was carried on, and the engines that were passed over."""

from __future__ import annotations

from django.db import migrations

ADD = """
ALTER TABLE telemetry_request
    ADD COLUMN queue_ms real,
    ADD COLUMN resumes smallint NOT NULL DEFAULT 0,
    ADD COLUMN weight integer NOT NULL DEFAULT 1,
    ADD COLUMN session text NOT NULL DEFAULT '',
    ADD COLUMN arm text NOT NULL DEFAULT 'main',
    ADD COLUMN passed jsonb NOT NULL DEFAULT '[]';
COMMENT ON COLUMN telemetry_request.weight IS 'How many requests the row stands for: a busy router tells every so many of those that went well.';
COMMENT ON COLUMN telemetry_request.passed IS 'Per leg the best engines that were not taken, best first: [leg, engine, score in seconds].';
"""

DROP = """
ALTER TABLE telemetry_request
    DROP COLUMN queue_ms, DROP COLUMN resumes, DROP COLUMN weight, DROP COLUMN session, DROP COLUMN arm, DROP COLUMN passed;
"""


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0002_tables")]
    operations = [migrations.RunSQL(ADD, DROP)]
