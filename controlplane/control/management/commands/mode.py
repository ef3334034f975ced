"""`manage.py mode MODEL disaggregated`: serve a model in another mode."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from controlplane.control import actions
from controlplane.control.cli import ChangeCommand, sizes


class Command(ChangeCommand):
    help = "Serve a model monolithic, disaggregated or conditional."

    def add_own_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("model")
        parser.add_argument("mode", help="monolithic, disaggregated or conditional")
        parser.add_argument(
            "--split", action="append", default=[], metavar="ROLE=ENGINES", help="sizes of the new mode's pools"
        )
        parser.add_argument("--min-uncached-tokens", type=int, metavar="N", help="of mode conditional")
        parser.add_argument("--min-uncached-ratio", type=float, metavar="R", help="of mode conditional, 0 to 1")

    def handle(self, *args: Any, **options: Any) -> None:
        self.change(
            options,
            actions.set_mode,
            options["model"],
            options["mode"],
            split=sizes(options["split"], "--split") or None,
            min_uncached_tokens=options["min_uncached_tokens"],
            min_uncached_ratio=options["min_uncached_ratio"],
        )
