"""`manage.py rotate_secret STEP`: change the fleet secret for another while traffic goes on."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import redis
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.common.files import BadKey
from controlplane.control import rotation
from controlplane.control.actor import Actor
from controlplane.control.cli import explained


class Command(BaseCommand):
    help = "Change the fleet secret: prepare, distribute, switch, roll out every model, finish. See docs/access.md."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("step", choices=("status", "prepare", "distribute", "switch", "finish"))
        parser.add_argument("--force", action="store_true", help="switch, finish: cut off whoever is not ready")
        parser.add_argument("--reason", default="", help="kept in the audit")

    def handle(self, *args: Any, **options: Any) -> None:
        actor, why = Actor.command_line(), options["reason"]
        valkey = redis.Redis.from_url(settings.VALKEY_URL, socket_timeout=5)
        left: list[str] = []
        try:
            with explained():
                match options["step"]:
                    case "prepare":
                        rotation.prepare(actor, reason=why)
                    case "distribute":
                        left = rotation.distribute(actor, reason=why)
                    case "switch":
                        rotation.switch(actor, valkey, force=options["force"], reason=why)
                    case "finish":
                        left = rotation.finish(actor, valkey, force=options["force"], reason=why)
            found = rotation.status(valkey)
        except BadKey as error:
            raise CommandError(str(error)) from error
        except OSError as error:
            raise CommandError(f"the files of the fleet secret cannot be written: {error.strerror}") from error
        finally:
            valkey.close()
        self.stdout.write(json.dumps({**asdict(found), "behind": list(found.behind())}))
        if left:
            raise CommandError("not yet everywhere:\n  " + "\n  ".join(left))
