"""Partitions made ahead and dropped after their time, through the owner's functions of migration 0001."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from django.db import Error, connection, transaction

from controlplane.config import Config
from controlplane.telemetry import tables
from controlplane.telemetry.tables import Table, moment

log = logging.getLogger(__name__)

FINEST_S = 900
"""No table's partitions are narrower than this."""


def keep(config: Config) -> dict[Table, timedelta]:
    """How long each table's rows are kept."""
    pools = timedelta(days=config.keep_pool_minute_days)
    gpus = timedelta(days=config.keep_gpu_minute_days)
    return {
        tables.NODE_SECOND: timedelta(hours=config.keep_node_second_hours),
        tables.GPU_MINUTE: gpus,
        tables.PAIR_MINUTE: gpus,
        tables.ENGINE_10S: timedelta(days=config.keep_engine_10s_days),
        tables.POOL_MINUTE: pools,
        tables.MODEL_MINUTE: pools,
        tables.MODEL_HOUR: pools,
        tables.POOL_HOUR: pools,
        tables.PAIR_HOUR: pools,
        tables.ENGINE_HOUR: timedelta(days=config.keep_engine_hour_days),
        tables.COST_HOUR: timedelta(days=config.keep_cost_days),
        tables.USAGE_HOUR: timedelta(days=config.keep_cost_days),
        tables.REQUEST: timedelta(days=config.keep_request_days),
        tables.USAGE: timedelta(days=config.keep_request_days),
    }


class Partitions:
    """Remembers which moments are known to have a partition, so that a batch seldom has to ask."""

    def __init__(self, keep_for: Mapping[Table, timedelta]) -> None:
        self.counts: Counter[str] = Counter()
        """made, dropped, failed (for now): since this process started."""
        self._keep_for = keep_for
        self._known: set[tuple[str, int]] = set()

    def ensure(self, table: Table, moments: Iterable[datetime]) -> None:
        """Partitions for rows of these moments. One that cannot be made now (a lock is held) is no reason to wait: the
        default partition takes the rows, and they move when it is made."""
        for slot in {int(at.timestamp() // FINEST_S) for at in moments}:
            if (table.name, slot) in self._known:
                continue
            made = _try("SELECT telemetry_ensure_partition(%s, %s)", table.name, moment(slot * FINEST_S))
            if made is None:
                self.counts["failed"] += 1
            else:
                self.counts["made"] += made
                self._known.add((table.name, slot))

    def maintain(self, now: float) -> None:
        """Make the partitions of now and of the time after it; drop those whose rows nobody wants any more."""
        for table, kept in self._keep_for.items():
            width_s = int(_ask("SELECT telemetry_partition_width_s(%s)", table.name))
            self.ensure(table, [moment(now), moment(now + width_s)])
            dropped = _try("SELECT telemetry_drop_partitions(%s, %s)", table.name, moment(now) - kept)
            if dropped is None:
                self.counts["failed"] += 1
            elif dropped:
                self.counts["dropped"] += dropped
                log.info("dropped %d partitions of %s", dropped, table.name)
        oldest = int((now - 86_400) // FINEST_S)
        self._known = {(name, slot) for name, slot in self._known if slot >= oldest}


def _try(sql: str, table: str, at: datetime) -> int | None:
    """The answer, or None when PostgreSQL refused for now (a lock is held, a table stands in the way): said, not fatal.
    Raises django.db.Error when PostgreSQL is away."""
    try:
        with transaction.atomic():
            return _ask(sql, table, at)
    except Error as error:
        if not connection.is_usable():
            raise
        log.warning("partitions of %s are not up to date: %s", table, str(error).partition("\n")[0])
        return None


def _ask(sql: str, *values: str | datetime) -> int:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return int(cursor.fetchone()[0])
