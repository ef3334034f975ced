"""`manage.py remove_node NODE`: forget a node that is empty or lost."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from controlplane.control import actions
from controlplane.control.cli import ChangeCommand


class Command(ChangeCommand):
    help = "Forget a node: cordoned and without engines, or lost. Its agent is believed no more: stop it there too."
    versioned = False

    def add_own_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("node")

    def handle(self, *args: Any, **options: Any) -> None:
        self.change(options, actions.remove_node, options["node"])
