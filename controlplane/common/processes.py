"""What Linux tells about processes, ours and others. Standard library only."""

from __future__ import annotations

import contextlib
import os
import signal
from functools import cache
from pathlib import Path


@cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def identity(pid: int) -> str:
    """Boot and start time of a living process; empty if there is none (a zombie has ended). A pid alone is reused.

    In clock ticks since boot: psutil's `create_time` moves when the wall clock is set."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()  # a process may have ')' in its name
    return "" if fields[0] in "ZX" else f"{_boot()}:{fields[19]}"


def variable(pid: int, name: str) -> str:
    """A variable of a process's environment as it was started; empty if there is none, or the process is another user's."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    marker = f"{name}=".encode()
    return next((os.fsdecode(item.removeprefix(marker)) for item in environ if item.startswith(marker)), "")


def how_ended(code: int | None) -> str:
    """An exit code as subprocess gives it, in words that follow "it". None: the process was not our child."""
    if code is None:
        return "ended, exit status unknown"
    if code < 0:
        name = f"signal {-code}"
        with contextlib.suppress(ValueError):
            name = signal.Signals(-code).name
        return f"was killed by {name}"
    return f"exited with code {code}"
