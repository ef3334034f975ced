"""`manage.py planner MODEL`: how the planner is set for a model and why it holds; with options it is set."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandError, CommandParser

from controlplane.control import actions
from controlplane.control.actions.planning import RANGES
from controlplane.control.cli import ChangeCommand, sizes
from controlplane.control.models import Level
from controlplane.control.planning import selectors
from controlplane.control.planning.plain import plain
from controlplane.core.storable import storable_text
from controlplane.fleet.models import Mode, Model

GIVEN = ("level", "priority", "mode", "floor", "ceiling", "kind", "degree", "guard", "no_guard", "slots", "freezes", "peaks")


class Command(ChangeCommand):
    help = "Show how the planner is set for a model and why it proposes nothing now, or set what the options name."

    def add_own_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("model")
        parser.add_argument("--level", choices=Level.values, help="what it may do")
        parser.add_argument("--priority", type=int, metavar="N", help="GPUs are taken from models of a lower one")
        parser.add_argument("--mode", action="append", choices=Mode.values, help="that it may propose; may be repeated")
        parser.add_argument("--floor", action="append", default=[], metavar="ROLE=ENGINES", help="may be repeated")
        parser.add_argument("--ceiling", action="append", default=[], metavar="ROLE=ENGINES", help="may be repeated")
        parser.add_argument(
            "--kind", action="append", default=[], metavar="ROLE=GPU,…", help="may be proposed; empty: its own"
        )
        parser.add_argument("--degree", action="append", default=[], metavar="ROLE=N,…", help="tensor-parallel, likewise")
        parser.add_argument("--guard", action="append", default=[], metavar="NAME=NUMBER", help=f"of {', '.join(RANGES)}")
        parser.add_argument("--no-guard", action="append", default=[], metavar="NAME", help="its default again")
        for name, what in (("slots", "change windows"), ("freezes", "times without changes"), ("peaks", "known loads")):
            parser.add_argument(f"--{name}", metavar="JSON", help=f"{what}: a list of since_s, until_s, daily, why")

    def handle(self, *args: Any, **options: Any) -> None:
        if any(options[name] not in (None, []) for name in GIVEN):
            self.change(options, actions.set_planner, options["model"], _change(options))
            return
        model = Model.objects.filter(name=storable_text(options["model"])).first()
        if model is None:
            raise CommandError(f"there is no model {options['model']!r:.140}")
        self._show(model, options)

    def _show(self, model: Model, options: dict[str, Any]) -> None:
        seen = selectors.planner_of(model)
        setting, hold, proposal = seen.setting, seen.hold, seen.proposal
        document = {
            "model": model.name,
            "level": setting.level,
            "priority": setting.priority,
            "modes": setting.modes,
            "floors": setting.floors,
            "ceilings": setting.ceilings,
            "kinds": setting.kinds,
            "degrees": setting.degrees,
            "guards": seen.guards,
            "peaks": setting.peaks,
            "hold": {"code": hold.code, "reason": hold.reason} if hold else None,
            "proposal": proposal.pk if proposal else None,
            "accuracy": plain(seen.accuracy),
        }
        lines = [f"{model.name}: planner at level {setting.level}, priority {setting.priority}"]
        lines += [f"  holds ({hold.code}): {hold.reason}"] if hold else []
        lines += [f"  proposal {proposal.pk}: {proposal.title}"] if proposal else []
        self.say(options, document, lines)


def _change(options: dict[str, Any]) -> actions.PlannerChange:
    guards: dict[str, Any] = dict(_guard(text) for text in options["guard"]) | dict.fromkeys(options["no_guard"])
    guards |= {name: _listed(name, options[name]) for name in ("slots", "freezes") if options[name] is not None}
    return actions.PlannerChange(
        level=options["level"],
        priority=options["priority"],
        modes=options["mode"],
        floors=sizes(options["floor"], "--floor") if options["floor"] else None,
        ceilings=sizes(options["ceiling"], "--ceiling") if options["ceiling"] else None,
        kinds=dict(map(_named, options["kind"])) if options["kind"] else None,
        degrees=_degrees(options["degree"]) if options["degree"] else None,
        guards=guards or None,
        peaks=None if options["peaks"] is None else _listed("peaks", options["peaks"]),
    )


def _named(text: str) -> tuple[str, list[str]]:
    role, _, names = text.partition("=")
    return role, [name for name in names.split(",") if name]


def _degrees(texts: list[str]) -> dict[str, list[int]]:
    found = {}
    for text in texts:
        role, names = _named(text)
        if not all(name.isascii() and name.isdigit() and len(name) < 6 for name in names):
            raise CommandError(f"--degree: {text!r:.80} is not ROLE=NUMBER,NUMBER…")
        found[role] = [int(name) for name in names]
    return found


def _guard(text: str) -> tuple[str, float | int | bool]:
    name, _, value = text.partition("=")
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, int | float):
        raise CommandError(f"--guard: {text!r:.80} is not NAME=NUMBER")
    return name, found


def _listed(name: str, text: str) -> Any:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list):
        raise CommandError(f"--{name}: give a JSON list, [] for none")
    return found
