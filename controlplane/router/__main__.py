"""python -m controlplane.router: the data plane, compiled if a build of this very source is there (router.compiled)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from controlplane.router import compiled

_ALLOCATOR = "PYTHONMALLOC"


def give_memory_back() -> None:
    """Starts this program again with the C library's allocator, unless its environment says which one it wants. Python's
    own keeps an arena of 1 MB for as long as one object lives in it, so a router would keep what a burst took."""
    if _ALLOCATOR not in os.environ:
        command = [sys.executable, *sys.orig_argv[1:]]
        os.execve(sys.executable, command, {**os.environ, _ALLOCATOR: "malloc"})  # noqa: S606  # ourselves


def main(argv: Sequence[str]) -> int:
    note = None if compiled.INTERPRETED in argv else compiled.put_in_place()
    from controlplane.router import command  # only now: this imports what may be compiled

    return command.main(list(argv), note)


if __name__ == "__main__":
    give_memory_back()
    sys.exit(main(sys.argv[1:]))
