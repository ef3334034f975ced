"""`manage.py revoke_join_token NUMBER`: nobody joins with this token any more."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from controlplane.control import actions
from controlplane.control.cli import ChangeCommand


class Command(ChangeCommand):
    help = "Revoke a join token that was not used. For a node that has joined: remove_node."
    versioned = False

    def add_own_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("token", type=int, help="its number, as list_join_tokens shows it")

    def handle(self, *args: Any, **options: Any) -> None:
        self.change(options, actions.revoke_join_token, options["token"])
