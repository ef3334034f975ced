"""`manage.py audit verify|seal|export`: whether the audit is what was written, and the whole of it as JSON lines."""

from __future__ import annotations

import json
import re
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.control.auditing import seals


class Command(BaseCommand):
    help = "Check the audit's seals, seal what is new now, or print all entries and seals as JSON, one a line."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("what", choices=("verify", "seal", "export"))
        parser.add_argument(
            "--seal", default="", metavar="DIGEST", help="verify: a seal that you kept elsewhere, which must be there"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        known = options["seal"].strip().lower()
        if known and not re.fullmatch("[0-9a-f]{64}", known):
            raise CommandError("--seal: 64 hexadecimal digits, as `audit verify` prints them")
        if options["what"] == "export":
            for line in seals.export():
                self.stdout.write(json.dumps(line, ensure_ascii=False))
            return
        if options["what"] == "seal":
            self.stdout.write(json.dumps({"sealed": seals.seal_all()}))
            return
        found = seals.verify(known)
        told = {"seals": found.seals, "entries": found.entries, "unsealed": found.unsealed, "newest": found.newest}
        broken = {"broken": str(found.broken)} if found.broken else {}
        self.stdout.write(json.dumps({**told, **broken}))
        if found.broken:
            raise CommandError(f"the audit was tampered with: {found.broken}")
