"""`manage.py scale_pool MODEL ROLE ENGINES`: make a pool larger or smaller."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from controlplane.control import actions
from controlplane.control.cli import ChangeCommand


class Command(ChangeCommand):
    help = "Set how many engines a pool has. Engines that leave are drained first."

    def add_own_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("model")
        parser.add_argument("role", help="prefill, decode or mixed")
        parser.add_argument("engines", type=int)

    def handle(self, *args: Any, **options: Any) -> None:
        self.change(options, actions.scale_pool, options["model"], options["role"], options["engines"])
