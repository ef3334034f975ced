"""`manage.py engine_log ENGINE`: the newest lines of an engine's log, read by its node's agent."""

from __future__ import annotations

from typing import Any

from celery.exceptions import TimeoutError as NoAnswer
from django.core.management.base import BaseCommand, CommandError, CommandParser
from kombu.exceptions import OperationalError

from controlplane.control import commands
from controlplane.core.storable import storable_text
from controlplane.fleet.models import Rank


class Command(BaseCommand):
    help = "Print the end of an engine's log."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("engine")
        parser.add_argument("--lines", type=int, default=200)

    def handle(self, *args: Any, **options: Any) -> None:
        engine = options["engine"]
        rank = Rank.objects.filter(engine_id=storable_text(engine), index=0).select_related("node").first()
        if rank is None:
            raise CommandError(f"there is no engine {engine!r:.40} with a place")
        try:
            answer = commands.tail_log(rank.node.name, engine, options["lines"])
        except (NoAnswer, OperationalError) as error:
            raise CommandError(f"the agent of {rank.node.name} does not answer: see whether it runs") from error
        if "error" in answer:
            raise CommandError(str(answer["error"]))
        self.stdout.write("\n".join(answer["lines"]))
