"""Logs of engines: the engine appends to the file itself; here it is kept small and read from its end."""

from __future__ import annotations

import os
import re
from pathlib import Path

MAX_LINES = 2000
MAX_TAIL_BYTES = 256 * 1024
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def tail(path: Path, lines: int, max_bytes: int = MAX_TAIL_BYTES) -> list[str]:
    """The last lines of a log and of the part rotated away before it, oldest first, printable text only. A missing file is
    an empty one."""
    lines = max(0, min(lines, MAX_LINES))
    data = _last_bytes(path, max_bytes)
    if len(data) < max_bytes:
        data = _last_bytes(path.with_name(path.name + ".1"), max_bytes - len(data)) + data
    text = data.decode(errors="replace")
    clean = [_UNPRINTABLE.sub("", _ANSI.sub("", line)) for line in text.split("\n")]
    if clean and not clean[-1]:
        clean.pop()
    return clean[-lines:] if lines else []


def _last_bytes(path: Path, count: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - count))
            return file.read(count)
    except FileNotFoundError:
        return b""


def prune(folder: Path, engine: str, rank: int, keep: int, newest: int) -> None:
    """Deletes the logs of all but the last `keep` incarnations of an engine, `newest` being the present one."""
    for path in folder.glob(f"{engine}.{rank}.*.log*"):
        number = path.name.removeprefix(f"{engine}.{rank}.").partition(".")[0]
        if number.isdecimal() and int(number) <= newest - keep:
            path.unlink(missing_ok=True)
