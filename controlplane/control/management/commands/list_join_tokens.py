"""`manage.py list_join_tokens`: the tokens with which nodes join, one JSON object a line, without the tokens themselves."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone

from controlplane.control.joined import described
from controlplane.fleet.models import JoinToken


class Command(BaseCommand):
    help = "List join tokens, newest first, as one JSON object a line. The tokens themselves are stored nowhere."

    def handle(self, *args: Any, **options: Any) -> None:
        now = timezone.now()
        for row in JoinToken.objects.select_related("node"):
            self.stdout.write(json.dumps(described(row, now)))
