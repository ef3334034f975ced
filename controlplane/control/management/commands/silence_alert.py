"""`manage.py silence_alert ALERT --hours 2 --reason …`: tell nobody of an alert for a time."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any, get_args

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from controlplane.control import actions
from controlplane.control.actions.alerts import Scope
from controlplane.control.cli import ChangeCommand


class Command(ChangeCommand):
    help = "Tell no channel of an alert for some hours; it fires on. --off: tell of it again. `alerts` lists numbers."
    versioned = False

    def add_own_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("alert", type=int, help="its number")
        parser.add_argument(
            "--scope",
            choices=get_args(Scope),
            default="alert",
            help="the alert alone, its rule of all its model, or all alerts of its model",
        )
        when = parser.add_mutually_exclusive_group(required=True)
        when.add_argument("--hours", type=float, metavar="H", help="from now on")
        when.add_argument("--off", action="store_true", help="end every silence that covers it")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["off"]:
            self.change(options, actions.unsilence_alert, options["alert"])
            return
        if not math.isfinite(options["hours"]) or abs(options["hours"]) > 1e5:
            raise CommandError("--hours: a number of hours to come")
        until = timezone.now() + timedelta(hours=options["hours"])
        self.change(options, actions.silence_alert, options["alert"], until=until, scope=options["scope"])
