"""What Linux tells about processes, ours and others. Standard library only."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from functools import cache
from pathlib import Path

_EXEC_S = 1.0
"""So long an exec may take at most; more only where the kernel keeps no end of an environment."""
_EXITING, _KERNEL_THREAD = 0x4, 0x200000
"""Flags of a process, linux/sched.h."""


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
    fields = _fields(stat)
    return "" if fields[0] in "ZX" else f"{_boot()}:{fields[19]}"


def environment(pid: int) -> bytes:
    """A process's environment as it was started, or as it has overwritten that since. Raises OSError: no such process, or
    another user's.

    In the middle of an exec Linux shows none: the old one is gone, the new one is not yet in place. Whoever started the
    process may be told of the exec before that is over (its close-on-exec pipe closes), so this waits until it is."""
    file = Path(f"/proc/{pid}/environ")
    if environ := file.read_bytes():
        return environ
    deadline = time.monotonic() + _EXEC_S
    while in_exec(Path(f"/proc/{pid}/stat").read_text()) and time.monotonic() < deadline:
        time.sleep(0.001)
    return file.read_bytes()


def in_exec(stat: str) -> bool:
    """Whether a `/proc/PID/stat` without environment is that of a process in the middle of an exec: proc(5) gives 0 for the
    end of its environment then, and also for kernel threads and for what is ending, which have none."""
    fields = _fields(stat)
    return fields[0] not in "ZX" and not int(fields[6]) & (_KERNEL_THREAD | _EXITING) and fields[48] == "0"


def variable(pid: int, name: str) -> str:
    """A variable of a process's environment as it was started; empty if there is none, or the process is another user's."""
    try:
        environ = environment(pid).split(b"\0")
    except OSError:
        return ""
    marker = f"{name}=".encode()
    return next((os.fsdecode(item.removeprefix(marker)) for item in environ if item.startswith(marker)), "")


def _fields(stat: str) -> list[str]:
    """Those of `/proc/PID/stat` from the state (proc(5) calls it the third) on."""
    return stat.rpartition(")")[2].split()  # a process may have ')' in its name


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
