"""`manage.py add_key NAME --team TEAM`: make an API key for clients of the router."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from controlplane.control.actor import Actor
from controlplane.control.cli import answer, explained
from controlplane.control.keys import add_key
from controlplane.control.newkey import ALL_MODELS, NewKey


class Command(BaseCommand):
    help = "Make an API key. It is shown this once: only its hash is stored. Routers know it some seconds later."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="what the key is called here, e.g. web-1")
        parser.add_argument("--team", required=True, help="whose use it counts as: limits compare what the whole team used")
        parser.add_argument("--model", action="append", default=[], metavar="NAME", help="a model it covers; default: all")
        parser.add_argument("--requests-per-minute", type=int, metavar="N", help="default: no limit")
        parser.add_argument("--tokens-per-minute", type=int, metavar="N", help="prompts and answers; default: no limit")
        parser.add_argument("--max-priority", type=int, default=0, metavar="N", help="`priority` may be as low as -N")
        parser.add_argument("--days", type=int, metavar="N", help="it expires after N days; default: never")
        parser.add_argument("--reason", default="")

    def handle(self, *args: Any, **options: Any) -> None:
        new = NewKey(
            name=options["name"],
            team=options["team"],
            model_names=tuple(options["model"]) or (ALL_MODELS,),
            requests_per_minute=options["requests_per_minute"],
            tokens_per_minute=options["tokens_per_minute"],
            max_priority=options["max_priority"],
            days=options["days"],
        )
        with explained():
            operation, secret = add_key(Actor.command_line(), new, reason=options["reason"])
        self.stdout.write(answer(operation, name=new.name, key=secret))
