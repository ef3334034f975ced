"""One agent per state folder: a second one would kill what the first one runs."""

from __future__ import annotations

import contextlib
import fcntl
import time
from pathlib import Path
from typing import TextIO

WAIT_S = 5.0


class AlreadyRunning(RuntimeError):
    """Another agent owns the state folder."""


def take(state: Path) -> TextIO:
    """The lock of a state folder (made if missing), held until the file is closed or the process has died. Waits a little
    for an agent that is just ending. Raises AlreadyRunning, OSError."""
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = (state / "agent.lock").open("a")
    deadline = time.monotonic() + WAIT_S
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        if time.monotonic() > deadline:
            file.close()
            raise AlreadyRunning(f"another agent runs with the state folder {state}: stop it, or give another --state")
        time.sleep(0.1)
