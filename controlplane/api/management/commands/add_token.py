"""`manage.py add_token USER NAME`: let a program use the REST API as a user."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from controlplane.access.scopes import SCOPES
from controlplane.access.tokens import add_token
from controlplane.control.actor import Actor
from controlplane.control.cli import answer, explained


class Command(BaseCommand):
    help = "Make a token for the REST API. It is shown once: only its digest is kept."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("user")
        parser.add_argument("name", help="what it is for, e.g. deploy-pipeline")
        parser.add_argument("--days", type=int, help="it expires after so many; default: never")
        parser.add_argument(
            "--scope",
            action="append",
            choices=SCOPES,
            help="what it may be used for; repeatable; default: all",
        )
        parser.add_argument("--reason", default="")

    def handle(self, *args: Any, **options: Any) -> None:
        actor = Actor.command_line()
        with explained():
            operation, token = add_token(
                actor,
                options["user"],
                options["name"],
                days=options["days"],
                scopes=options["scope"] or SCOPES,
                reason=options["reason"],
            )
        self.stdout.write(answer(operation, name=options["name"], token=token))
