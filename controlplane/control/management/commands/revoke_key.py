"""`manage.py revoke_key NAME`: an API key is accepted no more."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from controlplane.control.actor import Actor
from controlplane.control.cli import answer, explained
from controlplane.control.keys import revoke_key


class Command(BaseCommand):
    help = "Revoke an API key for good. Routers refuse it some seconds later."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--reason", default="")

    def handle(self, *args: Any, **options: Any) -> None:
        with explained():
            operation = revoke_key(Actor.command_line(), options["name"], reason=options["reason"])
        self.stdout.write(answer(operation, name=options["name"]))
