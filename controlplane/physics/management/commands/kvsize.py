"""`manage.py kvsize`: KV cache, weights and work per token of a model, from its config.json."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandError, CommandParser

from controlplane.core.configfields import DTYPE_BYTES, ConfigRefused
from controlplane.core.forecast import ForecastRefused
from controlplane.core.kvsize import PACKED_LATENT
from controlplane.physics.catalog import config_names, read_config
from controlplane.physics.commandline import PhysicsCommand, whole
from controlplane.physics.sizes import DEFAULT_TOKENS, size_document

_EACH = (
    ("KV cache per token", "bytes_per_token"),
    ("KV cache per request, fixed", "fixed_bytes_per_request"),
    ("an indexer's keys per token", "indexer_bytes_per_token"),
    ("reserved by an engine per token", "reserved_bytes_per_token"),
)
_TOGETHER = (
    ("KV cache", "bytes"),
    ("reserved, every layer keeps all", "reserved_bytes"),
    ("reserved, windows are freed", "reserved_bytes_hybrid"),
    ("moved by a transfer", "transfer_bytes"),
)


class Command(PhysicsCommand):
    help = "Sizes of a model's KV cache and weights, and its work per token, from its config.json."

    def add_arguments(self, parser: CommandParser) -> None:
        types = ", ".join((*sorted(DTYPE_BYTES), PACKED_LATENT))
        parser.add_argument("--config", required=True, help=f"a config.json, or one of {', '.join(config_names())}")
        parser.add_argument("--dtype", default="auto", help=f"type of the KV cache: auto (the model's own), {types}")
        parser.add_argument(
            "--tokens", type=whole, default=DEFAULT_TOKENS, help=f"length of a request, default {DEFAULT_TOKENS}"
        )
        parser.add_argument("--tp", type=whole, help="also what one GPU of so many holds (tensor parallel)")
        parser.add_argument("--json", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            sizes = size_document(read_config(options["config"]), options["dtype"], options["tokens"], options["tp"])
        except (ConfigRefused, ForecastRefused) as refused:
            raise CommandError(str(refused)) from None
        self.stdout.write(json.dumps(sizes, indent=2) if options["json"] else _table(sizes, options["config"]))


def _table(sizes: dict[str, Any], config: str) -> str:
    lines = [f"{config} ({sizes['model']}), KV cache {sizes['dtype']}; GB = 10⁹ bytes, GiB = 2³⁰ bytes", ""]
    lines += [_row(label, sizes[key]) for label, key in _EACH if sizes[key] or key == "bytes_per_token"]
    lines += ["", f"for a request of {sizes['tokens']:,} tokens"]
    lines += [_row(label, sizes[key]) for label, key in _TOGETHER]
    lines += ["", _row("weights", sizes["weights_bytes"])]
    lines += [_count("parameters", sizes["parameters"]), _count("parameters per token", sizes["active_parameters"])]
    lines += [f"{'work per token without attention':<34}{sizes['flops_per_token'] / 1e9:>20,.2f} GFLOP"]
    lines += ["", *(_layer(group) for group in sizes["layers"])]
    if "per_gpu" in sizes:
        lines += ["", *_gpu(sizes["per_gpu"])]
    return "\n".join(lines)


def _row(label: str, size: int) -> str:
    large = f"{size / 1e9:>12,.3f} GB {size / 2**30:>12,.3f} GiB" if size >= 10**7 else ""
    return f"{label:<34}{size:>20,} B {large}".rstrip()


def _count(label: str, count: int) -> str:
    return f"{label:<34}{count:>20,}   {count / 1e9:>12,.2f} billion"


def _layer(group: dict[str, Any]) -> str:
    window = f", window {group['window_tokens']:,} tokens" if group["window_tokens"] else ""
    if group["kind"] == "state":
        return f"{group['layers']} layers with a state: {group['state_bytes']:,} B per request"
    if not group["caching_layers"]:
        return f"{group['layers']} layers {group['kind']}{window}: read the cache of earlier ones"
    return f"{group['layers']} layers {group['kind']}{window}: {group['bytes_per_token']:,} B per token"


def _gpu(sizes: dict[str, Any]) -> list[str]:
    return [
        f"on each of {sizes['tensor_parallel']} GPUs",
        _row("KV cache per token", sizes["bytes_per_token"]),
        _row("KV cache for the request", sizes["bytes"]),
        _row("reserved by an engine per token", sizes["reserved_bytes_per_token"]),
        _row("weights", sizes["weights_bytes"]),
    ]
