"""`manage.py retry_engine ENGINE`: start an engine again that was given up."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from controlplane.control import actions
from controlplane.control.actor import Actor
from controlplane.control.cli import answer, explained


class Command(BaseCommand):
    help = "Try an engine again that failed too often."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("engine")
        parser.add_argument("--reason", default="")

    def handle(self, *args: Any, **options: Any) -> None:
        with explained():
            operation = actions.retry_engine(Actor.command_line(), options["engine"], reason=options["reason"])
        self.stdout.write(answer(operation))
