"""Running uv and pip: their progress in short, their failure as one line. Standard library only."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from typing import TextIO

from controlplane.stack.errors import StackError

Say = Callable[[str], None]
_EVERY = 20


def run(
    command: list[str], explained: Callable[[str], str], *, env: Mapping[str, str] | None = None, watch: Say | None = None
) -> None:
    """Run an installer, each line of its output given to `watch`. Raises StackError with what `explained` makes of its last
    words."""
    lines: list[str] = []
    with subprocess.Popen(
        command,
        env=None if env is None else dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines = [*lines[-400:], line.rstrip()]
            if watch:
                watch(line)
    if process.returncode != 0:
        raise StackError(explained("\n".join(lines)))


class Progress:
    """Turns pip's output into "12 of 104": in place on a terminal, every twentieth package elsewhere."""

    def __init__(self, count: int, say: Say, terminal: TextIO | None = None) -> None:
        self._count, self._say, self._terminal = count, say, terminal
        self._seen = 0

    def __call__(self, line: str) -> None:
        if line.startswith(("Collecting ", "Processing ")):
            self._seen += 1
            package = line.split()[1].split("==")[0]
            self._show(f"twinpool: {self._seen} of {self._count}: {package}")
            if not self._terminal and self._seen % _EVERY == 0:
                self._say(f"{self._seen} of {self._count} fetched")
        elif line.startswith("Installing collected"):
            self._show("")
            self._say("unpacking them")

    def _show(self, text: str) -> None:
        if self._terminal:
            print(f"\r\033[K{text}", end="", flush=True, file=self._terminal)
