"""`manage.py exchange_roles MODEL ENGINE ENGINE`: swap the roles of two running engines."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from controlplane.control import actions
from controlplane.control.actor import Actor
from controlplane.control.cli import answer, explained


class Command(BaseCommand):
    help = "Swap the roles of two ready engines of a model; they keep running."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("model")
        parser.add_argument("first", metavar="ENGINE")
        parser.add_argument("second", metavar="ENGINE")
        parser.add_argument("--reason", default="")

    def handle(self, *args: Any, **options: Any) -> None:
        with explained():
            operation = actions.exchange_roles(
                Actor.command_line(), options["model"], options["first"], options["second"], reason=options["reason"]
            )
        self.stdout.write(answer(operation))
