"""`manage.py move_gpus MODEL FROM TO GPUS`: give GPUs of one pool to another, of the same model or another one."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from controlplane.control import actions
from controlplane.control.cli import ChangeCommand


class Command(ChangeCommand):
    help = "Move GPUs between two pools of a model, or from a pool of one model to a pool of another."

    def add_own_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("model")
        parser.add_argument("from_role", metavar="FROM", help="the pool that gives: prefill, decode or mixed")
        parser.add_argument("to_role", metavar="TO", help="the pool that gets them")
        parser.add_argument("gpus", type=int)
        parser.add_argument("--to-model", default="", metavar="MODEL", help="whose pool TO is; default: the same model")

    def handle(self, *args: Any, **options: Any) -> None:
        names = (options["model"], options["from_role"], options["to_role"])
        self.change(options, actions.move_gpus, *names, options["gpus"], to_model=options["to_model"])
