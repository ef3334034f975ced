"""When nodes and routers were last recorded. Reads only; by the tables' keys, so it costs nothing."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import connection

from controlplane.telemetry.queries.windows import Level
from controlplane.telemetry.tables import moment

LOOK_BACK_S = 7200.0
"""Seconds of nodes are kept for so long."""
NODES = """
SELECT node, extract(epoch FROM (SELECT max(at) FROM telemetry_node_second AS row WHERE row.node = known.node AND at >= %s))
FROM unnest(%s::text[]) AS known(node)
"""
MODELS = """
SELECT extract(epoch FROM max((
    SELECT max(at) FROM telemetry_model_minute AS row WHERE row.model = known.model AND at >= %s
))) FROM unnest(%s::text[]) AS known(model)
"""


def newest_of_nodes(nodes: Sequence[str], now: float) -> dict[str, float | None]:
    """When each node's newest stored second was (Unix seconds, the telemetry server's clock); None: not within two hours.
    Raises django.db.Error."""
    with connection.cursor() as cursor:
        cursor.execute(NODES, [moment(now - LOOK_BACK_S), list(nodes)])
        return {node: None if at is None else float(at) for node, at in cursor.fetchall()}


def newest_of_routers(models: Sequence[str], now: float) -> float | None:
    """When the newest minute ended that any router told of any of these models; None: not within two hours. Raises
    django.db.Error."""
    with connection.cursor() as cursor:
        cursor.execute(MODELS, [moment(now - LOOK_BACK_S), list(models)])
        at = cursor.fetchone()[0]
    return None if at is None else float(at) + Level.MINUTE
