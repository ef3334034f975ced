"""`manage.py add_node NAME`: let a node's agent join."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.control import actions
from controlplane.control.actor import Actor
from controlplane.control.cli import answer, explained
from controlplane.core.names import read_label


class Command(BaseCommand):
    help = "Make the row of a node, so that facts of its agent are accepted."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--label", action="append", default=[], metavar="KEY=VALUE")
        parser.add_argument("--reason", default="")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            labels = dict(map(read_label, options["label"]))
        except ValueError as error:
            raise CommandError(f"--label: {error}") from error
        with explained():
            operation = actions.add_node(Actor.command_line(), options["name"], labels=labels, reason=options["reason"])
        self.stdout.write(answer(operation, node=options["name"]))
