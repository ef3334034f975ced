"""`manage.py register_model NAME --source MODEL --config config.json`: offer a new model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser

from controlplane.control import actions
from controlplane.control.cli import ChangeCommand, sizes
from controlplane.control.modeloptions import argument, read_config
from controlplane.control.newmodel import NewModel, NewPool
from controlplane.core.protocol import ROLES_OF_MODE


class Command(ChangeCommand):
    help = "Register a model. Its pools start empty unless --pool gives them a size; see scale_pool and retire_model."

    versioned = False

    def add_own_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--source", required=True, help="what the engine loads: a model id or an absolute path")
        parser.add_argument("--config", required=True, type=Path, help="the model's Hugging Face config.json")
        parser.add_argument("--kind", default="vllm", help="vllm or simulated")
        parser.add_argument("--mode", default="monolithic", help="monolithic, disaggregated or conditional")
        parser.add_argument("--connector", default="nixl", help="nixl, example or none")
        parser.add_argument("--tp", type=int, default=1, metavar="N", help="tensor-parallel degree of the pools")
        parser.add_argument("--pp", type=int, default=1, metavar="N", help="pipeline stages of each engine (--tp GPUs each)")
        parser.add_argument("--pool", action="append", default=[], metavar="ROLE=ENGINES", help="e.g. prefill=2")
        parser.add_argument("--gpu-kind", action="append", default=[], metavar="KIND", help="e.g. h100-sxm; default: any")
        parser.add_argument("--arg", action="append", default=[], metavar="NAME=JSON", help="e.g. max_model_len=32768")
        parser.add_argument("--alias", action="append", default=[])
        parser.add_argument("--slo-ttft-ms", type=float, default=2000.0)
        parser.add_argument("--slo-itl-ms", type=float, default=50.0)

    def handle(self, *args: Any, **options: Any) -> None:
        new = NewModel(
            name=options["name"],
            source=options["source"],
            config=read_config(options["config"]),
            engine_kind=options["kind"],
            engine_args=dict(argument(each) for each in options["arg"]),
            mode=options["mode"],
            connector=options["connector"],
            pools=_pools(options),
            aliases=tuple(options["alias"]),
            slo_ttft_ms=options["slo_ttft_ms"],
            slo_itl_ms=options["slo_itl_ms"],
        )
        self.change(options, actions.register_model, new, told={"model": new.name})


def _pools(options: Mapping[str, Any]) -> tuple[NewPool, ...]:
    named = dict.fromkeys(ROLES_OF_MODE.get(options["mode"], ()), 0) | sizes(options["pool"], "--pool")
    kinds = tuple(options["gpu_kind"])
    return tuple(NewPool(role, size, options["tp"], kinds, pipeline_parallel=options["pp"]) for role, size in named.items())
