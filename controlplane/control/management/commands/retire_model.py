"""`manage.py retire_model MODEL`: offer a model no more."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from controlplane.control import actions
from controlplane.control.cli import ChangeCommand


class Command(ChangeCommand):
    help = "Let the engines of a model finish what they have and stop, then remove it."

    def add_own_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("model")

    def handle(self, *args: Any, **options: Any) -> None:
        self.change(options, actions.retire_model, options["model"])
