"""What the commands of this package share: refusals in one line, numbers as options, a check of the file that they are to
write, and a bar while they compute."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from controlplane.core.forecast import ForecastRefused
from controlplane.physics.forecasting import Report
from controlplane.physics.forecasttable import printable


class PhysicsCommand(BaseCommand):
    """A command that refuses in one line with exit status 1, whether an option is missing or its value cannot be."""

    requires_system_checks = ()

    def create_parser(self, prog_name: str, subcommand: str, **options: Any) -> CommandParser:
        parser = super().create_parser(prog_name, subcommand, **options)
        # It then raises what is wrong; else argparse prints the whole usage before it, and exits with 2.
        parser.called_from_command_line = False
        return parser

    def run_from_argv(self, argv: list[str]) -> None:
        try:
            super().run_from_argv(argv)
        except CommandError as refused:
            if "--traceback" in argv:
                raise
            problem = printable(str(refused).removeprefix("Error: "))
            self.stderr.write(f"CommandError: {problem}; `{Path(argv[0]).name} {argv[1]} --help` lists the options")
            sys.exit(refused.returncode)


def whole(text: str) -> int | str:
    """An option's whole number; what is none goes on as it is, so that it is refused by its name like any other."""
    try:
        return int(text)
    except ValueError:
        return text


def real(text: str) -> float | str:
    """An option's number; what is none goes on as it is, so that it is refused by its name like any other."""
    try:
        return float(text)
    except ValueError:
        return text


def given(options: Mapping[str, Any], *names: str) -> list[str]:
    """Those of the options (names as in Python) that were given, as they are written; the default of each is None."""
    return [f"--{name.replace('_', '-')}" for name in names if options[name] is not None]


def one_of_both(options: Mapping[str, Any], name: str, *others: str, hint: str = "") -> None:
    """Raises ForecastRefused where option `name` was given and one of `others` too, which would not be looked at."""
    if options[name] and (meant := given(options, *others)):
        raise ForecastRefused(f"give --{name.replace('_', '-')} or {', '.join(meant)}, not both{hint and f'; {hint}'}")


def check_writable(target: Path, option: str = "--html") -> None:
    """Raises CommandError if `target` cannot become a file, before anybody waits for what shall be in it."""
    shown = f"{option}: {printable(str(target))}"
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
