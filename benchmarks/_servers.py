"""PostgreSQL and Valkey of a benchmark: new, empty, and gone with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def servers(*, valkey: bool = True) -> Iterator[list[int]]:
    """Their process ids. The environment names them, so import what reads settings only inside."""
    from controlplane.stack.testing import SERVERS

    started = [SERVERS.started_postgres().pid]
    if valkey:
        started.append(SERVERS.started_valkey().pid)
    try:
        yield started
    finally:
        SERVERS.stop()
