"""`manage.py freeze MODEL --hours 8`: forbid changes for a time."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from controlplane.control import actions
from controlplane.control.cli import ChangeCommand


class Command(ChangeCommand):
    help = "Forbid changes of a model, or of all, for some hours. Healing goes on. --off allows them again."
    versioned = False

    def add_own_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("model", nargs="?", help="or --all")
        parser.add_argument("--all", action="store_true", help="every model there is")
        when = parser.add_mutually_exclusive_group(required=True)
        when.add_argument("--hours", type=float, metavar="H", help="from now on")
        when.add_argument("--off", action="store_true", help="allow changes again")

    def handle(self, *args: Any, **options: Any) -> None:
        if bool(options["model"]) == options["all"]:
            raise CommandError("name a model, or give --all")
        if options["off"]:
            self.change(options, actions.unfreeze, options["model"])
            return
        if not math.isfinite(options["hours"]) or abs(options["hours"]) > 1e5:
            raise CommandError("--hours: a number of hours to come")
        self.change(options, actions.freeze, options["model"], timezone.now() + timedelta(hours=options["hours"]))
