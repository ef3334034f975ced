"""`manage.py revoke_token USER NAME`: a token of the REST API is accepted no more."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from controlplane.access.tokens import revoke_token
from controlplane.control.actor import Actor
from controlplane.control.cli import answer, explained


class Command(BaseCommand):
    help = "Revoke a token of the REST API at once."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("user")
        parser.add_argument("name")
        parser.add_argument("--reason", default="")

    def handle(self, *args: Any, **options: Any) -> None:
        with explained():
            operation = revoke_token(Actor.command_line(), options["user"], options["name"], reason=options["reason"])
        self.stdout.write(answer(operation, name=options["name"]))
