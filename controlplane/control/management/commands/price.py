"""`manage.py price`: the price book; `price set KIND USD` and `price remove NUMBER` change it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.control.actions import remove_price, set_price
from controlplane.control.actor import Actor
from controlplane.control.cli import answer, explained
from controlplane.fleet.models import Terms
from controlplane.telemetry.queries.prices import prices


class Command(BaseCommand):
    help = "List what an hour of each kind of GPU costs, one JSON object a line; or set or remove a price."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", metavar="list|set|remove")
        verbs.add_parser("list", help="every price there is, the list prices of kinds without one too (the default)")
        put = verbs.add_parser("set", help="what one GPU-hour costs from a time on")
        put.add_argument("kind", help="as nodes report it, e.g. h100-sxm")
        put.add_argument("per_hour", metavar="USD", help="US dollars of one GPU for one hour, e.g. 2.60")
        put.add_argument(
            "--terms", choices=Terms.values, default="hourly", help="owned: purchase, power, hosting; default: hourly"
        )
        put.add_argument(
            "--from", dest="valid_from", metavar="TIME", help="a whole hour such as 2026-12-01T00:00Z; default: this one"
        )
        put.add_argument("--reason", default="")
        away = verbs.add_parser("remove", help="take a price out of the book, as if it had never been given")
        away.add_argument("number", type=int, help="as the list has it")
        away.add_argument("--reason", default="")

    def handle(self, *args: Any, **options: Any) -> None:
        actor = Actor.command_line()
        if options["verb"] in (None, "list"):
            for row in prices():
                self.stdout.write(json.dumps(row.document()))
            return
        with explained():
            if options["verb"] == "set":
                operation = set_price(
                    actor,
                    options["kind"],
                    options["per_hour"],
                    terms=options["terms"],
                    valid_from=_moment(options["valid_from"]),
                    reason=options["reason"],
                )
            else:
                operation = remove_price(actor, options["number"], reason=options["reason"])
        self.stdout.write(answer(operation))


def _moment(text: str | None) -> datetime | None:
    """Without a zone: UTC. Raises CommandError."""
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise CommandError(f"--from: {text!r:.40} is no time such as 2026-12-01T00:00Z") from error
    return at if at.tzinfo else at.replace(tzinfo=UTC)
