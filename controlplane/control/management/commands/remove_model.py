"""`manage.py remove_model NAME`: offer a model no more."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from controlplane.control import actions
from controlplane.control.actor import Actor
from controlplane.control.cli import answer, explained


class Command(BaseCommand):
    help = "Remove a model whose pools were scaled to 0 and whose engines have stopped; then it can be registered anew."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--reason", default="")

    def handle(self, *args: Any, **options: Any) -> None:
        with explained():
            operation = actions.remove_model(Actor.command_line(), options["name"], reason=options["reason"])
        self.stdout.write(answer(operation))
