"""`manage.py retry_engine ENGINE`: start an engine again that was given up after too many failures."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from controlplane.control import actions
from controlplane.control.cli import ChangeCommand


class Command(ChangeCommand):
    help = "Start an engine again that failed too often and was given up."
    versioned = False

    def add_own_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("engine")

    def handle(self, *args: Any, **options: Any) -> None:
        self.change(options, actions.retry_engine, options["engine"])
