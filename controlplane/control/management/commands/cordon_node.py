"""`manage.py cordon_node NODE`: give a node no new engines, or again."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from controlplane.control import actions
from controlplane.control.cli import ChangeCommand


class Command(ChangeCommand):
    help = "Give a node no new engines; those it has serve on. --undo: give it new ones again."
    versioned = False

    def add_own_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("node")
        parser.add_argument("--undo", action="store_true", help="give it new engines again")

    def handle(self, *args: Any, **options: Any) -> None:
        action = actions.uncordon_node if options["undo"] else actions.cordon_node
        self.change(options, action, options["node"])
