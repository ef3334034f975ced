"""What the management commands share."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.control import actions, clitext
from controlplane.control.actor import Actor
from controlplane.control.auditing.events import note_refusal
from controlplane.control.refused import Refused
from controlplane.control.watching import Seen, follow, look
from controlplane.fleet.models import Operation


@contextmanager
def explained() -> Iterator[None]:
    """A refusal as one line of the command line per reason."""
    try:
        yield
    except Refused as refusal:
        note_refusal(Actor.command_line().name, refusal, f"command {_command()}")
        raise CommandError("refused:\n  " + "\n  ".join(refusal.reasons)) from refusal


def _command() -> str:
    """The command's name, without its arguments."""
    return sys.argv[1] if len(sys.argv) > 1 and sys.argv[1].replace("_", "").isalnum() else ""


def answer(operation: Operation, **more: Any) -> str:
    return json.dumps({"operation": operation.pk, "state": operation.state, **more})


def sizes(texts: Sequence[str], option: str) -> dict[str, int]:
    """`prefill=2` … as engines by role. Raises CommandError."""
    found: dict[str, int] = {}
    for text in texts:
        role, equals, size = text.partition("=")
        if not equals or not size.isdecimal() or len(size) > 9:
            raise CommandError(f"{option}: {text!r:.80} is not ROLE=ENGINES")
        if role in found:
            raise CommandError(f"{option}: {role!r:.40} comes more than once")
        found[role] = int(size)
    return found


def seconds(text: str) -> float:
    """A number of seconds, 0 or more. Raises argparse.ArgumentTypeError."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r:.40} is no number of seconds from 0 on")
    return number


class ChangeCommand(BaseCommand):
    """A command that asks for one change: carried out, or shown as a plan with --dry-run, and followed with --wait.

    The answer is one JSON object a line, or words if the output is a terminal; progress goes to the error stream.
    """

    versioned = True
    """Its action takes `expected_version`."""

    def add_arguments(self, parser: CommandParser) -> None:
        self.add_own_arguments(parser)
        parser.add_argument("--reason", default="", help="kept with the operation and in the audit")
        if self.versioned:
            parser.add_argument(
                "--expect-version",
                type=int,
                metavar="N",
                help="refuse if the model's version is another (see operation show)",
            )
        parser.add_argument("--dry-run", action="store_true", help="change nothing; say what would be done")
        parser.add_argument("--wait", action="store_true", help="follow it to its end; exit status 1 unless it is done")
        parser.add_argument("--wait-s", type=seconds, metavar="S", help="with --wait: follow it for at most so long")
        parser.add_argument("--json", action="store_true", help="answer in JSON on a terminal too")

    def add_own_arguments(self, parser: CommandParser) -> None:
        raise NotImplementedError

    def change(
        self,
        options: dict[str, Any],
        action: Callable[..., Operation],
        *args: Any,
        told: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Carry out one action of `control.actions` as `options` say. `told`: more that the JSON answer says."""
        actor = Actor.command_line()
        if self.versioned:
            more["expected_version"] = options["expect_version"]
        with explained():
            if options["dry_run"]:
                self._show_plan(actions.preview(action, actor, *args, reason=options["reason"], **more), options)
                return
            operation = action(actor, *args, reason=options["reason"], **more)
        if options["wait"]:
            self.finish(operation.pk, options)
            return
        seen = look(operation.pk)
        self.say(options, {**json.loads(answer(operation)), **(told or {})}, [clitext.headline(seen)] if seen else [])

    def _show_plan(self, plan: Any, options: dict[str, Any]) -> None:
        self.say(options, clitext.plan_document(plan), clitext.plan_lines(plan))

    def finish(self, number: int, options: dict[str, Any]) -> None:
        """Show the operation until it ends and answer how. Raises CommandError unless it is done."""
        seen: Seen | None = None
        try:
            with clitext.Display() as display:
                for seen in follow(number, options["wait_s"]):
                    display.show(seen)
        except KeyboardInterrupt as stop:
            raise CommandError(f"operation {number} goes on; operation watch {number} follows it", returncode=130) from stop
        if seen is None:
            raise CommandError(f"there is no operation {number}")
        self.say(options, clitext.operation_document(seen), [clitext.headline(seen)])
        if seen.operation.state != "done":
            raise CommandError(clitext.headline(seen))

    def say(self, options: dict[str, Any], document: dict[str, Any], lines: Iterator[str] | Sequence[str]) -> None:
        """`document` for programs, `lines` for people."""
        if options["json"] or not self.stdout.isatty():
            self.stdout.write(json.dumps(document))
        else:
            self.stdout.write("\n".join(lines))
