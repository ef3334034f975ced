"""`manage.py remove_model NAME`: offer a model no more that has no engines."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from controlplane.control import actions
from controlplane.control.cli import ChangeCommand


class Command(ChangeCommand):
    help = "Remove a model whose pools were scaled to 0 and whose engines have stopped; then it can be registered anew."
    versioned = False

    def add_own_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")

    def handle(self, *args: Any, **options: Any) -> None:
        self.change(options, actions.remove_model, options["name"])
