"""`manage.py phase`: how long one prefill or decode step of a model takes on its GPUs, and how busy it keeps them."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandError, CommandParser

from controlplane.core.configfields import ConfigRefused
from controlplane.core.forecast import ForecastRefused
from controlplane.core.gpus import GPUS, STACKS, UnknownGpu
from controlplane.core.perf import DoesNotFit
from controlplane.physics.catalog import config_names, read_config
from controlplane.physics.commandline import PhysicsCommand, whole
from controlplane.physics.phases import WEIGHTS, Question, phase_document

_LINES = (
    ("time", "milliseconds", "{:,.3f} ms"),
    ("tensor activity, step average", "tensor_activity", "{:.1%}"),
    ("tensor activity, inside matrix kernels", "tensor_peak", "{:.1%}"),
    ("DRAM activity", "dram_activity", "{:.1%}"),
    ("DRAM traffic per GPU", "dram_gb", "{:,.2f} GB"),
    ("MFU", "mfu", "{:.1%}"),
    ("KV cache that fits", "kv_capacity_tokens", "{:,} tokens"),
)


class Command(PhysicsCommand):
    help = "Time and activity of one prefill or decode step of a model on GPUs of one kind."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--config", required=True, help=f"a config.json, or one of {', '.join(config_names())}")
        parser.add_argument("--gpu", required=True, help=", ".join(GPUS))
        parser.add_argument("--tp", type=whole, default=1, help="GPUs of the engine (tensor parallel)")
        parser.add_argument("--dtype", default="auto", help=f"type of weights and products: {', '.join(WEIGHTS)}")
        parser.add_argument("--kv-dtype", default="auto", help="type of the KV cache, e.g. fp8; auto: the model's own")
        phase = parser.add_mutually_exclusive_group(required=True)
        phase.add_argument("--prefill", type=whole, metavar="TOKENS", help="a prefill of this many new tokens per prompt")
        phase.add_argument("--decode", type=whole, metavar="CONTEXT", help="a decode with this context per sequence")
        parser.add_argument("--batch", type=whole, default=1, help="prompts or sequences in the step")
        parser.add_argument("--past", type=whole, default=0, help="tokens of each prompt that are cached already")
        parser.add_argument("--stack", default="current", help=f"serving software: {', '.join(STACKS)}")
        parser.add_argument("--json", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        prefill = options["prefill"] is not None
        if options["past"] and not prefill:
            raise CommandError("--past is about cached tokens of prompts; with --decode count them in the context")
        try:
            found = phase_document(
                Question(
                    config=read_config(options["config"]),
                    gpu=options["gpu"],
                    tensor_parallel=options["tp"],
                    prefill=prefill,
                    tokens=options["prefill"] if prefill else options["decode"],
                    batch=options["batch"],
                    past=options["past"],
                    weights=options["dtype"],
                    kv_dtype=options["kv_dtype"],
                    stack=options["stack"],
                )
            )
        except (ConfigRefused, UnknownGpu, DoesNotFit, ForecastRefused) as refused:
            raise CommandError(str(refused)) from None
        self.stdout.write(json.dumps(found, indent=2) if options["json"] else _table(found, options["config"]))


def _table(found: dict[str, Any], config: str) -> str:
    mark = " (guess)" if found["guesses"] else ""
    past = f" after {found['past']:,}" if found["past"] else ""
    what = "tokens" if found["phase"] == "prefill" else "tokens of context"
    head = (
        f"{config}, {found['phase']} of {found['batch']:,} × {found['tokens']:,} {what}{past} "
        f"on {found['tensor_parallel']} × {found['gpu']}, {found['stack']} stack"
    )
    lines = [f"{label:<40} {shape.format(found[key]):>16}{mark}" for label, key, shape in _LINES]
    if found["kv_missing_gb"]:
        lines.append(
            f"The KV cache of these sequences does not fit: {found['kv_missing_gb']:,.1f} GB more per GPU are needed."
        )
    lines += [f"guess: {reason}" for reason in found["guesses"]]
    return "\n".join((head, *lines))
