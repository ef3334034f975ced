"""Partitions are made and dropped only where their locks come at once.

Whoever reads or writes a table queues behind a drop that waits for its lock: two seconds of that were two seconds in which
nothing was stored. Upkeep tries again every minute, and until then the default partition takes the rows.
"""

from __future__ import annotations

from django.db import migrations

SIGNATURES = (
    "telemetry_ensure_partition(text, timestamptz)",
    "telemetry_drop_partitions(text, timestamptz)",
)


def _wait(time: str) -> str:
    return "; ".join(f"ALTER FUNCTION {signature} SET lock_timeout = '{time}'" for signature in SIGNATURES)


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0007_costs")]
    operations = [migrations.RunSQL(_wait("200ms"), _wait("2s"))]
