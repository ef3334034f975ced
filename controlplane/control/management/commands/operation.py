"""`manage.py operation list|show|watch|pause|resume|cancel|rollback`: what runs and ran, and how to steer it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandError, CommandParser

from controlplane.control import actions, clitext
from controlplane.control.actor import Actor
from controlplane.control.cli import ChangeCommand, answer, explained
from controlplane.control.watching import Seen, look
from controlplane.core.lifecycle import ENDED
from controlplane.core.storable import storable_text
from controlplane.fleet.models import Operation

STEER: dict[str, Callable[..., Operation]] = {
    "pause": actions.pause,
    "resume": actions.resume,
    "cancel": actions.cancel,
    "rollback": actions.rollback,
}


class Command(ChangeCommand):
    help = "List operations, show or follow one, or pause, resume, cancel or take it back."
    versioned = False

    def add_own_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("what", choices=("list", "show", "watch", *STEER))
        parser.add_argument("operation", type=int, nargs="?")
        parser.add_argument("--model", metavar="NAME", help="list: of this model alone")
        parser.add_argument("--open", action="store_true", help="list: only what has not ended")
        parser.add_argument("--limit", type=int, default=20, metavar="N", help="list: at most so many; default 20")

    def handle(self, *args: Any, **options: Any) -> None:
        what, number = options["what"], options["operation"]
        if what == "list":
            self._list(options)
            return
        if number is None or not 0 < number < 1 << 63:
            raise CommandError(f"{what}: give the number of an operation; `operation list` shows them")
        if what == "show":
            self._show(_known(number), options)
        elif what == "watch":
            self.finish(number, options)
        elif options["dry_run"] and what == "rollback":
            self.change(options, actions.rollback, number)
        else:
            self._steer(what, number, options)

    def _list(self, options: dict[str, Any]) -> None:
        rows = Operation.objects.all()
        if options["model"]:
            rows = rows.filter(model__name=storable_text(options["model"]))
        if options["open"]:
            rows = rows.exclude(state__in=ENDED)
        for row in rows[: max(1, options["limit"])]:
            self._line(_known(row.pk), options)

    def _line(self, seen: Seen, options: dict[str, Any]) -> None:
        row = seen.operation
        document = {"operation": row.pk, "verb": row.verb, "subject": seen.subject, "state": row.state}
        self.say(options, {**document, "actor": row.actor, "outcome": row.outcome}, [clitext.headline(seen)])

    def _show(self, seen: Seen, options: dict[str, Any]) -> None:
        row = seen.operation
        why = f" ({row.reason})" if row.reason else ""
        lines = [clitext.headline(seen), f"  asked for by {row.actor} at {row.created_at:%Y-%m-%d %H:%M:%S} UTC{why}"]
        lines += [f"  before {row.before}", f"  after  {row.after}"] if row.before or row.after else []
        for step in seen.steps:
            words = clitext.step_text(step, seen.labels.get(step.engine, ""))
            lines.append(f"  {step.state:8} {words}{f': {step.reason}' if step.reason else ''}")
        self.say(options, clitext.operation_document(seen), [*lines, *clitext.measured_lines(row.measured)])

    def _steer(self, what: str, number: int, options: dict[str, Any]) -> None:
        if options["dry_run"]:
            raise CommandError(f"{what}: only rollback has a plan to be shown")
        with explained():
            operation = STEER[what](Actor.command_line(), number, reason=options["reason"])
        if options["wait"]:
            self.finish(operation.pk, options)
            return
        self.stdout.write(answer(operation))


def _known(number: int) -> Seen:
    seen = look(number)
    if seen is None:
        raise CommandError(f"there is no operation {number}; `operation list` shows them")
    return seen
