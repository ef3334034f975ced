"""`manage.py exchange_roles MODEL ENGINE ENGINE`: swap the roles of two running engines."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from controlplane.control import actions
from controlplane.control.cli import ChangeCommand


class Command(ChangeCommand):
    help = "Swap the roles of two ready engines of a model; they keep running."

    def add_own_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("model")
        parser.add_argument("first", metavar="ENGINE")
        parser.add_argument("second", metavar="ENGINE")

    def handle(self, *args: Any, **options: Any) -> None:
        self.change(options, actions.exchange_roles, options["model"], options["first"], options["second"])
