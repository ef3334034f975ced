"""What the commands of this package share: a check of the file that they are to write, and a bar while they compute."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.core.management.base import CommandError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from controlplane.physics.forecasting import Report
from controlplane.physics.forecasttable import printable


def check_writable(target: Path) -> None:
    """Raises CommandError if `target` cannot become a file, before anybody waits for what shall be in it."""
    shown = f"--html: {printable(str(target))}"
    if target.is_dir():
        raise CommandError(f"{shown} is a folder; name a file in it")
    if not target.parent.is_dir():
        raise CommandError(f"{shown}: there is no such folder; make it first")
    if not os.access(target if target.exists() else target.parent, os.W_OK):
        raise CommandError(f"{shown} may not be written; name another file")


@contextmanager
def progress(shown: bool) -> Iterator[Report]:
    """A bar on standard error while something is computed."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not shown) as bar:
        task = bar.add_task("reading", total=None)

        def report(what: str, share: float | None) -> None:
            bar.update(task, description=what, total=None if share is None else 1.0, completed=share or 0.0)

        yield report
