"""`manage.py roll_out MODEL --arg max_num_seqs=64`: replace all engines of a model by ones that are started otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser

from controlplane.control import actions
from controlplane.control.cli import ChangeCommand
from controlplane.control.modeloptions import argument, read_config
from controlplane.core.storable import storable_text
from controlplane.fleet.models import Model


class Command(ChangeCommand):
    help = "Replace the engines of a model one after the other, with other arguments or for another version on the nodes."

    def add_own_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("model")
        parser.add_argument("--source", metavar="MODEL", help="what the engines load: a model id or an absolute path")
        parser.add_argument("--config", type=Path, metavar="FILE", help="the model's config.json")
        parser.add_argument("--arg", action="append", default=[], metavar="NAME=JSON", help="set this; others stay")
        parser.add_argument("--no-arg", action="append", default=[], metavar="NAME", help="no longer set this")
        parser.add_argument("--kv-lease-s", type=float, metavar="S")

    def handle(self, *args: Any, **options: Any) -> None:
        to = actions.RollOut(
            source=options["source"],
            config=read_config(options["config"]) if options["config"] else None,
            engine_args=_arguments(options),
            kv_lease_s=options["kv_lease_s"],
        )
        self.change(options, actions.roll_out, options["model"], to)


def _arguments(options: dict[str, Any]) -> dict[str, Any] | None:
    """All arguments as they shall be; None if none changes."""
    row = Model.objects.filter(name=storable_text(options["model"])).first()
    if not (options["arg"] or options["no_arg"]) or row is None:
        return None
    gone = {name.replace("-", "_") for name in options["no_arg"]}
    kept = {name: value for name, value in row.engine_args.items() if name not in gone}
    return kept | dict(argument(text) for text in options["arg"])
