"""`manage.py drain_engine ENGINE`: take an engine out of the routing table, or bring it back."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from controlplane.control import actions
from controlplane.control.cli import ChangeCommand


class Command(ChangeCommand):
    help = "Let an engine finish what it has and give it nothing new; it runs on. --undo brings it back."

    def add_own_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("engine")
        parser.add_argument("--undo", action="store_true", help="bring it back into the routing table")

    def handle(self, *args: Any, **options: Any) -> None:
        action = actions.undrain_engine if options["undo"] else actions.drain_engine
        self.change(options, action, options["engine"])
