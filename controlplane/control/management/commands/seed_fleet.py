"""`manage.py seed_fleet --fleet demo`: the desired state of a scene and the first admin user, once."""

from __future__ import annotations

import json
import os
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.control.cli import explained
from controlplane.control.seed import seed, to_be_served
from controlplane.core.names import ENV_ADMIN_PASSWORD
from controlplane.core.scenes import SCENES


class Command(BaseCommand):
    help = "Write the nodes, models and pools of a fleet to start with; what exists already, or was removed, is left alone."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--fleet", choices=sorted(SCENES), required=True)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            with explained():
                created = seed(SCENES[options["fleet"]], os.environ.get(ENV_ADMIN_PASSWORD, ""))
        except ValidationError as error:
            raise CommandError(f"{ENV_ADMIN_PASSWORD}: {' '.join(error.messages)}") from error
        told = {"admin_created": created, "to_be_served": to_be_served(SCENES[options["fleet"]])}
        self.stdout.write(json.dumps(told))
