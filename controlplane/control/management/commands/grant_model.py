"""`manage.py grant_model MODEL USER`: let one user do with a model what its owner may."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from controlplane.control import actions
from controlplane.control.cli import ChangeCommand


class Command(ChangeCommand):
    help = "Let a user change mode, pools and canary of one model, in whatever team they are."

    def add_own_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("model")
        parser.add_argument("user")
        parser.add_argument("--revoke", action="store_true", help="take it back")

    def handle(self, *args: Any, **options: Any) -> None:
        action = actions.ungrant_model if options["revoke"] else actions.grant_model
        self.change(options, action, options["model"], options["user"])
