"""A watchdog beside a test run or a proof: `python lifeline.py FOLDER`. Standard library only.

Reads lines "PID SIGNAL" from standard input. When that ends, because its parent ended in whatever way (kill -9 included),
it sends each process its signal, waits, kills what is left and removes FOLDER. Processes are held by pidfd, so that a pid
used again is never hit.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
from pathlib import Path

PATIENCE_S = 20.0
"""A whole stack may be asked to stop, which takes up to 15 s."""


def main(folder: Path) -> None:
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    watched: list[tuple[int, int]] = []
    for line in sys.stdin:
        pid, number = line.split()
        try:
            watched.append((os.pidfd_open(int(pid)), int(number)))
        except ProcessLookupError:
            continue
    for descriptor, number in watched:
        _end(descriptor, number, patience_s=0)
    for descriptor, _ in watched:
        _end(descriptor, 0, patience_s=PATIENCE_S)
        _end(descriptor, signal.SIGKILL, patience_s=5)
    shutil.rmtree(folder, ignore_errors=True)


def _end(descriptor: int, number: int, patience_s: float) -> None:
    try:
        if number:
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return
    if patience_s:
        select.select([descriptor], [], [], patience_s)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
