"""`manage.py scale_pool MODEL ROLE ENGINES`: make a pool larger or smaller."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from controlplane.control import actions
from controlplane.control.actor import Actor
from controlplane.control.cli import answer, explained


class Command(BaseCommand):
    help = "Set how many engines a pool has. Engines that leave are drained first."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("model")
        parser.add_argument("role", help="prefill, decode or mixed")
        parser.add_argument("engines", type=int)
        parser.add_argument("--reason", default="")

    def handle(self, *args: Any, **options: Any) -> None:
        with explained():
            operation = actions.scale_pool(
                Actor.command_line(), options["model"], options["role"], options["engines"], reason=options["reason"]
            )
        self.stdout.write(answer(operation))
