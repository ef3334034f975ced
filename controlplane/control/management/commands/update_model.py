"""`manage.py update_model MODEL --slo-ttft-ms 1500`: change settings that no engine has to be restarted for."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from controlplane.control import actions
from controlplane.control.cli import ChangeCommand, sizes
from controlplane.core.names import read_label

YES_NO = {"yes": True, "no": False}


class Command(ChangeCommand):
    help = "Change settings of a model. What its engines are started with is changed by roll_out."

    def add_own_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("model")
        parser.add_argument("--alias", action="append", metavar="NAME", help="all its aliases from now on")
        parser.add_argument("--no-aliases", action="store_true")
        parser.add_argument("--team", metavar="NAME", help="whose model it is; empty: nobody's")
        parser.add_argument("--slo-ttft-ms", type=float)
        parser.add_argument("--slo-itl-ms", type=float)
        parser.add_argument("--min-uncached-tokens", type=int, metavar="N", help="of mode conditional")
        parser.add_argument("--min-uncached-ratio", type=float, metavar="R", help="of mode conditional")
        parser.add_argument("--on-prefill-loss", metavar="WHAT", help="retry, local or fail")
        parser.add_argument(
            "--strict", choices=tuple(YES_NO), help="without a prefill engine: refuse instead of serving locally"
        )
        parser.add_argument(
            "--floor", action="append", default=[], metavar="POOL=N", help="engines that changes leave serving"
        )
        parser.add_argument(
            "--gpu-kind", action="append", default=[], metavar="POOL=KIND", help="all kinds that the pool takes"
        )
        parser.add_argument("--any-gpu", action="append", default=[], metavar="POOL", help="the pool takes any GPU")
        parser.add_argument("--node-label", action="append", default=[], metavar="POOL:KEY=VALUE")

    def handle(self, *args: Any, **options: Any) -> None:
        update = actions.Update(
            aliases=[] if options["no_aliases"] else options["alias"],
            team=options["team"],
            slo_ttft_ms=options["slo_ttft_ms"],
            slo_itl_ms=options["slo_itl_ms"],
            conditional_min_uncached_tokens=options["min_uncached_tokens"],
            conditional_min_uncached_ratio=options["min_uncached_ratio"],
            on_prefill_loss=options["on_prefill_loss"],
            strict=YES_NO[options["strict"]] if options["strict"] else None,
            floors=sizes(options["floor"], "--floor") or None,
            selectors=_selectors(options) or None,
        )
        self.change(options, actions.update_model, options["model"], update)


def _selectors(options: dict[str, Any]) -> dict[str, actions.Selector]:
    kinds: dict[str, list[str]] = {pool: [] for pool in options["any_gpu"]}
    labels: dict[str, dict[str, str]] = {}
    for text in options["gpu_kind"]:
        pool, equals, kind = text.partition("=")
        if not equals:
            raise CommandError(f"--gpu-kind: {text!r:.80} is not POOL=KIND")
        kinds.setdefault(pool, []).append(kind)
    for text in options["node_label"]:
        pool, _, label = text.partition(":")
        try:
            key, value = read_label(label)
        except ValueError as error:
            raise CommandError(f"--node-label: {text!r:.80} is not POOL:KEY=VALUE") from error
        labels.setdefault(pool, {})[key] = value
    return {pool: actions.Selector(tuple(kinds.get(pool, ())), labels.get(pool)) for pool in {**kinds, **labels}}
