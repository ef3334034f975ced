"""`manage.py rebalance MODEL prefill=2 decode=6`: give the pools of a model other sizes in one operation."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from controlplane.control import actions
from controlplane.control.cli import ChangeCommand, sizes


class Command(ChangeCommand):
    help = "Set the sizes of a model's pools. Engines that one loses and another gains keep running where both fit them."

    def add_own_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("model")
        parser.add_argument("sizes", nargs="+", metavar="ROLE=ENGINES", help="e.g. prefill=2 decode=6; others stay")

    def handle(self, *args: Any, **options: Any) -> None:
        self.change(options, actions.rebalance, options["model"], sizes(options["sizes"], "sizes"))
