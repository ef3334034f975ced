"""`manage.py register_model NAME --source MODEL --config config.json`: offer a new model."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.common.files import open_document
from controlplane.control import actions
from controlplane.control.actor import Actor
from controlplane.control.cli import answer, explained
from controlplane.control.newmodel import MAX_CONFIG_BYTES, NewModel, NewPool
from controlplane.core.protocol import ROLES_OF_MODE


class Command(BaseCommand):
    help = "Register a model. Its pools start empty unless --pool gives them a size; see scale_pool and remove_model."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--source", required=True, help="what the engine loads: a model id or an absolute path")
        parser.add_argument("--config", required=True, type=Path, help="the model's Hugging Face config.json")
        parser.add_argument("--kind", default="vllm", help="vllm or simulated")
        parser.add_argument("--mode", default="monolithic", help="monolithic, disaggregated or conditional")
        parser.add_argument("--connector", default="nixl", help="nixl, example or none")
        parser.add_argument("--tp", type=int, default=1, metavar="N", help="tensor-parallel degree of the pools")
        parser.add_argument("--pool", action="append", default=[], metavar="ROLE=ENGINES", help="e.g. prefill=2")
        parser.add_argument("--gpu-kind", action="append", default=[], metavar="KIND", help="e.g. h100-sxm; default: any")
        parser.add_argument("--arg", action="append", default=[], metavar="NAME=JSON", help="e.g. max_model_len=32768")
        parser.add_argument("--alias", action="append", default=[])
        parser.add_argument("--slo-ttft-ms", type=float, default=2000.0)
        parser.add_argument("--slo-itl-ms", type=float, default=50.0)
        parser.add_argument("--reason", default="")

    def handle(self, *args: Any, **options: Any) -> None:
        new = NewModel(
            name=options["name"],
            source=options["source"],
            config=_read(options["config"]),
            engine_kind=options["kind"],
            engine_args=dict(_argument(each) for each in options["arg"]),
            mode=options["mode"],
            connector=options["connector"],
            pools=_pools(options["pool"], options["mode"], options["tp"], tuple(options["gpu_kind"])),
            aliases=tuple(options["alias"]),
            slo_ttft_ms=options["slo_ttft_ms"],
            slo_itl_ms=options["slo_itl_ms"],
        )
        with explained():
            operation = actions.register_model(Actor.command_line(), new, reason=options["reason"])
        self.stdout.write(answer(operation, model=new.name))


def _read(path: Path) -> str:
    try:
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise CommandError(f"--config: {path} is neither a file nor a pipe; give the model's config.json")
        with open_document(path) as file:
            content = file.read(MAX_CONFIG_BYTES + 1)
        if len(content) > MAX_CONFIG_BYTES:
            raise CommandError(f"--config: {path} has more than {MAX_CONFIG_BYTES} bytes; give the model's config.json")
        return content.decode()
    except OSError as error:
        raise CommandError(f"--config: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"--config: {path} is no text; give the model's config.json") from error


def _argument(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise CommandError(f"--arg: {text!r:.80} is not NAME=JSON")
    try:
        return name.replace("-", "_"), json.loads(value)
    except ValueError:
        return name.replace("-", "_"), value


def _pools(texts: list[str], mode: str, tensor_parallel: int, kinds: tuple[str, ...]) -> tuple[NewPool, ...]:
    named: dict[str, int] = dict.fromkeys(ROLES_OF_MODE.get(mode, ()), 0)
    for text in texts:
        role, equals, size = text.partition("=")
        if not equals or not size.isdecimal() or len(size) > 9:
            raise CommandError(f"--pool: {text!r:.80} is not ROLE=ENGINES")
        named[role] = int(size)
    return tuple(NewPool(role, size, tensor_parallel, kinds) for role, size in named.items())
