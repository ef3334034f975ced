"""The thread that reads the fleet about every second and keeps partitions: what must not hold up those who store rows.

A partition can be made or dropped only while nobody reads its table, and a large fleet takes a tenth of a second to read.
"""

from __future__ import annotations

import threading
import time

from controlplane.config import config
from controlplane.telemetry import fleet_view
from controlplane.telemetry.partitions import Partitions, keep
from controlplane.telemetry.patient import PatientThread
from controlplane.telemetry.view import FleetView

MAINTAIN_EVERY_S = 60.0
READ_SHARE = 0.1
"""Of its processor time it reads the fleet with this at the most: a large one is read every few seconds."""


class Upkeep(PatientThread):
    """`view` is the newest fleet that could be read, None until the first; `seen` is set with it."""

    does = "reads the fleet"
    waits = "the fleet is not read and partitions are not kept for now"
    goes_on = "the fleet is read again"
    every_s = 1.0

    def __init__(self, stop: threading.Event) -> None:
        super().__init__(stop)
        self.view: FleetView | None = None
        self.seen = threading.Event()
        self.partitions = Partitions(keep(config()))
        self._maintain_at = 0.0
        self._read_again_at = 0.0

    def tick(self) -> None:
        if time.monotonic() >= self._read_again_at:
            began = time.thread_time()
            self.view = fleet_view.read()
            self.seen.set()
            self._read_again_at = time.monotonic() + (time.thread_time() - began) / READ_SHARE - self.every_s
        if time.monotonic() >= self._maintain_at:
            self.partitions.maintain(time.time())
            self._maintain_at = time.monotonic() + MAINTAIN_EVERY_S
