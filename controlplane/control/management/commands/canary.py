"""`manage.py canary start|promote|end|guardrails|show MODEL`: try another mode on a part of a model's sessions."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandError, CommandParser

from controlplane.control import actions
from controlplane.control.cli import ChangeCommand, sizes
from controlplane.core.storable import storable_text
from controlplane.fleet.models import Canary


class Command(ChangeCommand):
    help = "Begin, promote, end or show the trial of another mode; change its guardrails while it runs."

    def add_own_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("what", choices=("start", "promote", "end", "guardrails", "show"))
        parser.add_argument("model")
        parser.add_argument("--mode", default="", help="start: the mode to try")
        parser.add_argument("--engines", action="append", default=[], metavar="ROLE=N", help="start: engines of its own")
        parser.add_argument("--shared", action="store_true", help="start: on the model's own engines")
        parser.add_argument("--share", type=float, metavar="S", help="start: of sessions, 0 to 1")
        parser.add_argument("--steps", type=float, nargs="+", default=[], metavar="S", help="start: rising shares to come")
        parser.add_argument("--guardrail", action="append", default=[], metavar="NAME=N", help="start and guardrails")
        parser.add_argument("--fully", action="store_true", help="promote: its mode becomes the model's at once")

    def handle(self, *args: Any, **options: Any) -> None:
        what, model = options["what"], options["model"]
        guardrails = dict(_number(text) for text in options["guardrail"])
        if what == "start":
            self.change(
                options,
                actions.set_canary,
                model,
                options["mode"],
                engines=sizes(options["engines"], "--engines") or None,
                shared=options["shared"],
                share=options["share"],
                steps=options["steps"],
                guardrails=guardrails,
            )
        elif what == "promote":
            self.change(options, actions.promote_canary, model, fully=options["fully"])
        elif what == "end":
            self.change(options, actions.end_canary, model)
        elif what == "guardrails":
            self.change(options, actions.update_canary, model, guardrails)
        else:
            self._show(model, options)

    def _show(self, model: str, options: dict[str, Any]) -> None:
        row = Canary.objects.filter(model__name=storable_text(model)).order_by("-pk").first()
        if row is None:
            raise CommandError(f"there was no canary of {model!r:.140}")
        shown = {
            "canary": row.pk,
            "mode": row.mode,
            "state": row.state,
            "shared": row.shared,
            "share": row.share,
            "steps": row.steps,
            "guardrails": row.guardrails,
            "verdict": row.verdict,
            "reason": row.reason,
        }
        self.say(options, shown, [f"{name:10} {value}" for name, value in shown.items()])


def _number(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    try:
        if equals:
            return name.replace("-", "_"), json.loads(value)
    except ValueError:
        pass
    raise CommandError(f"--guardrail: {text!r:.80} is not NAME=NUMBER")
