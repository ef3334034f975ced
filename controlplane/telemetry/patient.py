"""A thread that does something again and again with servers that may be away: it then waits with back-off, and says so once.

What no one foresaw ends it, with the error in the log; whoever started it must look whether it is alive.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod

import redis
from django.db import connection

from controlplane.telemetry.writer import FAILED

log = logging.getLogger(__name__)

MAX_BACKOFF_S = 10.0


class PatientThread(threading.Thread, ABC):
    """`does`: for messages, as in "the thread that stores telemetry"."""

    does: str
    waits: str
    """What is said when it fails."""
    goes_on: str
    every_s: float

    def __init__(self, stop: threading.Event) -> None:
        super().__init__(name=self.does, daemon=True)
        self.well = True
        """The newest attempt succeeded."""
        self.failures = 0
        self._stopped = stop

    @abstractmethod
    def tick(self) -> None:
        """One attempt, `every_s` after the one before began, or at once when that took longer."""

    def recover(self) -> None:
        """Called after a failure, with the connection to PostgreSQL closed; does nothing itself."""

    def run(self) -> None:
        backoff_s, due = 0.0, time.monotonic()
        while not self._stopped.is_set():
            due = max(due + self.every_s, time.monotonic())
            try:
                self.tick()
            except (*FAILED, redis.RedisError, OSError) as error:
                if not backoff_s:
                    log.warning("%s: %s", self.waits, _first_line(error))
                backoff_s = min(backoff_s * 2 or 1.0, MAX_BACKOFF_S)
                self.failures += 1
                self.well = False
                connection.close()
                self.recover()
            else:
                self.well = True
                if backoff_s:
                    log.info("%s", self.goes_on)
                backoff_s = 0.0
            self._stopped.wait(max(backoff_s, due - time.monotonic()))
        connection.close()


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
