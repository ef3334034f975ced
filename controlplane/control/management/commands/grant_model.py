"""`manage.py grant_model MODEL USER`: let one user do with a model what its owner may."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from controlplane.control import actions
from controlplane.control.actions.grants import MAX_DAYS
from controlplane.control.cli import ChangeCommand


class Command(ChangeCommand):
    help = "Let a user change mode, pools and canary of one model, in whatever team they are. Again changes until when."

    def add_own_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("model")
        parser.add_argument("user")
        how = parser.add_mutually_exclusive_group()
        how.add_argument("--days", type=int, metavar="D", help="for so long; left out: until it is taken back")
        how.add_argument("--revoke", action="store_true", help="take it back")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["revoke"]:
            self.change(options, actions.ungrant_model, options["model"], options["user"])
            return
        days = options["days"]
        if days is not None and not 1 <= days <= MAX_DAYS:
            raise CommandError(f"--days: 1 to {MAX_DAYS}")
        until = timezone.now() + timedelta(days=days) if days else None
        self.change(options, actions.grant_model, options["model"], options["user"], until=until)
