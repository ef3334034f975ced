"""`manage.py restart_engine ENGINE`: replace an engine by a fresh one."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from controlplane.control import actions
from controlplane.control.cli import ChangeCommand


class Command(ChangeCommand):
    help = "Drain and stop an engine; its pool starts another in its place."

    def add_own_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("engine")

    def handle(self, *args: Any, **options: Any) -> None:
        self.change(options, actions.restart_engine, options["engine"])
