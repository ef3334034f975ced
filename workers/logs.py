"""Logs of engines: the engine appends to the file itself; here it is kept small and read from its end."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

MAX_LINES = 2000
MAX_TAIL_BYTES = 256 * 1024
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
HIDDEN = "[secret]"
SHORTEST_PART = 4
"""The end of a known secret that is at least so long is hidden where a text begins with it: the log was cut within it."""
_LOOKS_SECRET = (
    re.compile(r"(?i)\b(?P<kept>(?:bearer|basic)\s+)[\w.~+/=-]{8,}"),
    re.compile(r"(?P<kept>://)[^/\s:@]*:[^/\s@]+(?=@)"),
    re.compile(r"\b(?P<kept>)(?:hf_|sk-|gh[pousr]_|glpat-|xox[abprs]-|AKIA)[\w-]{8,}"),
    re.compile(
        r"""(?i)(?P<kept>(?:password|passwd|secret|api[_-]?key|access[_-]?key|(?:auth|access|api|hf|hub|session|bearer)[_-]?token)
        ["']?\s*[=:]\s*\[?["']?)[^\s"',;\]}]{4,}""",
        re.VERBOSE,
    ),
)
"""What programs print of themselves: headers, addresses with a password, well-known kinds of keys, settings by name."""


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


def hide(text: str, secrets: Iterable[str]) -> str:
    """The text without these secrets, and without what looks like one."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
        parts = (secret[start:] for start in range(1, len(secret) - SHORTEST_PART + 1))
        if cut := next(filter(text.startswith, parts), ""):
            text = HIDDEN + text.removeprefix(cut)
    for looks in _LOOKS_SECRET:
        text = looks.sub(rf"\g<kept>{HIDDEN}", text)
    return text


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
