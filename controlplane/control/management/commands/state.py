"""`manage.py state export|diff|apply -f FILE`: the whole desired state as a document, for files under version control."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.common.files import open_document
from controlplane.common.yamltext import MAX_CHARS, BadYaml, read, write
from controlplane.control.actor import Actor
from controlplane.control.cli import explained
from controlplane.control.state import document
from controlplane.control.state.applying import Applied, apply_state, plan_state, shown
from controlplane.core.threeway import Document

FORMATS = ("yaml", "json")


class Command(BaseCommand):
    help = "Print what is desired of the whole fleet, show how a file differs from it, or apply that file."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("what", choices=("export", "diff", "apply"))
        parser.add_argument("-f", "--file", metavar="FILE", help="diff, apply: YAML or JSON; - is standard input")
        parser.add_argument("--format", choices=FORMATS, default="yaml", help="export: default yaml")
        parser.add_argument(
            "--force", action="store_true", help="overwrite all that was changed by hand since the last apply"
        )
        parser.add_argument(
            "--take",
            action="append",
            default=[],
            metavar="PATH",
            help="overwrite this though it was changed by hand, e.g. models[m].mode; may be given several times",
        )
        parser.add_argument("--reason", default="", help="kept with the operations and in the audit")
        parser.add_argument("--exit-code", action="store_true", help="diff: exit status 1 if there are changes or drift")
        parser.add_argument("--json", action="store_true", help="answer in JSON on a terminal too")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["what"] == "export":
            found = document.export()
            text = write(found) if options["format"] == "yaml" else json.dumps(found, indent=2, ensure_ascii=False) + "\n"
            self.stdout.write(text, ending="")
            return
        if not options["file"]:
            raise CommandError("name the document with -f FILE")
        value = _read(options["file"])
        with explained():
            applied = self._carry_out(document.read(value), options)
        self._say(applied, options)
        if options["exit_code"] and options["what"] == "diff" and (applied.done or applied.drifts):
            sys.exit(1)

    def _carry_out(self, wanted: Document, options: dict[str, Any]) -> Applied:
        actor, ways = Actor.command_line(), {"force": options["force"], "take": options["take"]}
        if options["what"] == "diff":
            return plan_state(actor, wanted, **ways)
        return apply_state(actor, wanted, reason=options["reason"], **ways)

    def _say(self, applied: Applied, options: dict[str, Any]) -> None:
        told = shown(applied)
        if options["json"] or not self.stdout.isatty():
            self.stdout.write(json.dumps(told))
            return
        for change in told["changes"]:
            number = f" (operation {change['operation']})" if change["operation"] else ""
            self.stdout.write(f"{change['change']} {change['path']}{number}")
            for path, values in change["fields"].items():
                self.stdout.write(f"  {path}: {_text(values['now'])} -> {_text(values['wanted'])}")
            for step in change["steps"]:
                self.stdout.write(f"  {step['count']} x {step['verb']} {step['role']}".rstrip())
        for drift in told["drift"]:
            values = (
                f"{_text(drift['applied'])} was applied, {_text(drift['now'])} is there, {_text(drift['wanted'])} is wanted"
            )
            self.stdout.write(f"drift {drift['path']}: {values}; left alone (--take or --force overwrites it)")
        if not told["changes"] and not told["drift"]:
            self.stdout.write("nothing differs")


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:200]


def _read(name: str) -> Any:
    """The document's value. Raises CommandError."""
    try:
        if name == "-":
            content = sys.stdin.buffer.read(MAX_CHARS + 1)
        else:
            with open_document(Path(name)) as file:
                content = file.read(MAX_CHARS + 1)
        return read(content.decode())
    except OSError as error:
        raise CommandError(f"-f: cannot read {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"-f: {name} is no text") from error
    except BadYaml as error:
        raise CommandError(f"-f: {name} {error}") from error
