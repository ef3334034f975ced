"""The ingest process for tests, started and killed as a supervisor would."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
WITHIN_S = 120.0


def until(what: Callable[[], Any]) -> Any:
    """The first true answer. Fails when there is none in time."""
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        if found := what():
            return found
        time.sleep(0.1)
    raise AssertionError("did not come true in time")


class Ingest:
    """The process, started and killed as a supervisor would."""

    def __init__(self, log: Path) -> None:
        self._log = log.open("ab")
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "manage.py", "ingest"],
            cwd=ROOT,
            env=os.environ | {"DJANGO_SETTINGS_MODULE": "controlplane.settings"} | environment,
            stdout=self._log,
            stderr=self._log,
        )

    def kill(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait(60)

    @property
    def said(self) -> str:
        return self.log.read_text()
