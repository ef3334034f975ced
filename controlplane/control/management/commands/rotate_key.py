"""`manage.py rotate_key NAME`: give an API key a new secret, while the old one is good for some time."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from controlplane.control.actor import Actor
from controlplane.control.cli import answer, explained
from controlplane.control.keys import rotate_key


class Command(BaseCommand):
    help = "Give an API key a new secret. It is shown this once; clients may go on with the old one for --overlap-hours."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--overlap-hours", type=float, default=24, metavar="H", help="default: 24; 0: it ends now")
        parser.add_argument("--days", type=int, metavar="N", help="it expires N days from now; default: as before")
        parser.add_argument("--reason", default="")

    def handle(self, *args: Any, **options: Any) -> None:
        name, hours = options["name"], options["overlap_hours"]
        with explained():
            operation, secret = rotate_key(
                Actor.command_line(), name, overlap_hours=hours, days=options["days"], reason=options["reason"]
            )
        self.stdout.write(answer(operation, name=name, key=secret))
