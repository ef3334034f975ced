"""Advisory locks on files, freed by the kernel however their holder ends. Standard library only."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_S = 0.1


class Held(RuntimeError):
    """Another process holds the lock."""


@contextmanager
def held(path: Path, *, wait_s: float = 0.0, waits: Callable[[], None] | None = None, create: bool = True) -> Iterator[None]:
    """Hold the lock of `path`, waiting up to `wait_s` for another process to let go; `waits` is called once if that is
    needed. Without `create` the file must exist, and may be read-only. Raises Held, OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT if create else os.O_RDONLY, 0o600)
    try:
        deadline = time.monotonic() + wait_s
        while not _taken(descriptor):
            if time.monotonic() >= deadline:
                raise Held(str(path))
            if waits:
                waits()
                waits = None
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
