"""What `up` shows: the logs of all processes with their name before each line, and its own words. Also rotates the logs.

Reading files instead of pipes keeps the processes independent of this one: a paused terminal or a killed supervisor never
blocks a router. A thread of its own, so that a slow terminal does not hold up the supervisor either.
"""

from __future__ import annotations

import os
import sys
import threading
import zlib
from pathlib import Path

from controlplane.common.files import rotate

_EVERY_S, _UNSEEN_EVERY_S = 0.3, 3.0
_ROTATE_BYTES = 8 << 20
_KEEP = 3
_CHUNK_BYTES = 1 << 18
_COLOURS = (36, 32, 33, 35, 34, 96, 92, 93, 95, 94)


class LogFile:
    """One log: follows what is appended and keeps its size in bounds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.stem
        self._offset = path.stat().st_size if path.exists() else 0
        self._rest = b""

    def new_lines(self) -> list[str]:
        """Complete lines that were appended since the last call (at most 256 kB of them; older ones are passed over)."""
        try:
            size = self.path.stat().st_size
            if size < self._offset:
                self._offset, self._rest = 0, b""
            if size == self._offset:
                return []
            with self.path.open("rb") as file:
                file.seek(max(self._offset, size - _CHUNK_BYTES))
                data = self._rest + file.read(_CHUNK_BYTES)
                self._offset = file.tell()
        except FileNotFoundError:
            return []
        *lines, self._rest = data.split(b"\n")
        return [line.decode(errors="replace").rstrip("\r") for line in lines]

    def rotate(self) -> None:
        """Keep it below 8 MB, its writer goes on."""
        if rotate(self.path, _ROTATE_BYTES, _KEEP):
            self._offset, self._rest = 0, b""


class Output:
    """The terminal of a running stack."""

    def __init__(self, logs: Path, *, show_logs: bool) -> None:
        self._logs, self._show = logs, show_logs
        self._files: dict[str, LogFile] = {path.stem: LogFile(path) for path in logs.glob("*.log")}
        self._colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._broken = False
        self._thread = threading.Thread(target=self._follow, name="logs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Show what is left, and end."""
        self._stop.set()
        self._thread.join(2.0)
        self._turn()

    def line(self, text: str) -> None:
        """A line of `up` itself."""
        self._write(text)

    def say(self, name: str, text: str) -> None:
        """A line about one process."""
        self._write(f"{self._prefix(name, bold=True)} {text}")

    def _follow(self) -> None:
        while not self._stop.wait(_EVERY_S if self._show else _UNSEEN_EVERY_S):
            self._turn()

    def _turn(self) -> None:
        for path in sorted(self._logs.glob("*.log")):
            if path.stem == "up":
                continue
            log = self._files.setdefault(path.stem, LogFile(path))
            try:
                lines = log.new_lines()
                log.rotate()
            except OSError as error:
                lines = [f"(log {path.name}: {error.strerror})"]
            if self._show and lines:
                self._write("\n".join(f"{self._prefix(log.name)} {line}" for line in lines))

    def _prefix(self, name: str, *, bold: bool = False) -> str:
        text = f"{name:<9}|"
        if not self._colour:
            return text
        return f"\033[{'1;' if bold else ''}{_COLOURS[zlib.crc32(name.encode()) % len(_COLOURS)]}m{text}\033[0m"

    def _write(self, text: str) -> None:
        with self._lock:
            if self._broken:
                return
            try:
                print(text, flush=True)
            except OSError:  # the terminal or the reader of a pipe is gone: the stack goes on without
                self._broken = True


def drop_output() -> None:
    """Nobody reads what this process prints any more: let it go nowhere, without a complaint at the exit either."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def last_error(log: Path) -> str:
    """The last telling line of a log, at most 300 characters."""
    try:
        lines = [line.strip() for line in log.read_bytes()[-20_000:].decode(errors="replace").splitlines() if line.strip()]
    except FileNotFoundError:
        lines = []
    telling = [line for line in lines if "error" in line.lower() or "fatal" in line.lower()]
    return (telling or lines or ["it wrote nothing"])[-1][:300]
