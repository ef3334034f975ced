"""`manage.py add_node NAME`: let a node's agent join."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from controlplane.control import actions
from controlplane.control.cli import ChangeCommand
from controlplane.core.names import read_label


class Command(ChangeCommand):
    help = "Make the row of a node, so that facts of its agent are accepted."
    versioned = False

    def add_own_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--label", action="append", default=[], metavar="KEY=VALUE")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            labels = dict(map(read_label, options["label"]))
        except ValueError as error:
            raise CommandError(f"--label: {error}") from error
        self.change(options, actions.add_node, options["name"], labels=labels, told={"node": options["name"]})
