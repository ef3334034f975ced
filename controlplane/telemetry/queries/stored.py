"""Until when telemetry is stored. Reads only."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import connection

from controlplane.core import names
from controlplane.telemetry.hours import ENGINE_POSITION, POSITION


@dataclass(frozen=True)
class Stored:
    """`at`: when the newest record came that is in the tables (Unix seconds, the telemetry server's clock); None: none ever
    was. `hours_until`, `engine_hours_until`: hours that end by then are rolled up. `tag` changes when anything of that does:
    an ETag."""

    at: float | None
    hours_until: float
    engine_hours_until: float
    tag: str


def stored() -> Stored:
    """Raises django.db.Error when PostgreSQL is away."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT stream, last_id, extract(epoch FROM at)::float8 FROM telemetry_position")
        found = {stream: (last, at) for stream, last, at in cursor.fetchall()}
    last, at = found.get(names.TELEMETRY_STREAM, ("", None))
    hours, engine_hours = (found.get(position, ("", 0.0))[1] for position in (POSITION, ENGINE_POSITION))
    return Stored(at, hours, engine_hours, f"{last or '0'}.{hours:.0f}.{engine_hours:.0f}")
