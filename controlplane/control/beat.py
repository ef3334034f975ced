"""Celery's beat as it runs in every control worker: only the holder of the lease `beat` sends, so that several workers beat
as one. When the holder is killed another takes over once its lease has run out."""

from __future__ import annotations

import os
import secrets
import time
from typing import Any

from celery.beat import Scheduler
from django.db import Error as DatabaseError
from django.db import close_old_connections

from controlplane.control.leases import hold

LEASE_S = 4.0
"""How long a killed worker's beat keeps the others silent."""
RENEW_S = 1.0
NAME = "beat"


class OneBeat(Scheduler):  # type: ignore[misc]
    """A scheduler that sends only while the lease is its own. Without PostgreSQL it is nobody's: ticks need it too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._holder = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._asked_at = float("-inf")
        self._mine = False
        super().__init__(*args, **kwargs)

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Seconds until it is to be called again."""
        if not self._is_mine(time.monotonic()):
            return RENEW_S
        return float(super().tick(*args, **kwargs))

    def _is_mine(self, now: float) -> bool:
        """Renewed well before it runs out; asked anew after any pause in which another may have taken it."""
        if now - self._asked_at >= RENEW_S:
            self._asked_at = now
            try:
                close_old_connections()
                self._mine = hold(NAME, self._holder, LEASE_S)
            except DatabaseError:
                self._mine = False
        return self._mine
