"""`manage.py plan`: the layouts of a model that no other beats in both cost and latency, from its figures alone."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from controlplane.core.forecast import ForecastRefused
from controlplane.core.gpus import GPUS, UnknownGpu
from controlplane.core.modelconfig import ConfigRefused
from controlplane.core.perf import DoesNotFit
from controlplane.core.planner import Alternative
from controlplane.core.protocol import Slo
from controlplane.physics.catalog import config_names
from controlplane.physics.commandline import PhysicsCommand, real, whole
from controlplane.physics.forecasttable import printable
from controlplane.physics.planning import MODES, PlanRequest, document, layouts
from controlplane.physics.traces import TraceRefused

REFUSALS = (ForecastRefused, ConfigRefused, UnknownGpu, DoesNotFit, TraceRefused)


class Command(PhysicsCommand):
    help = "Print the frontier: the cheapest layouts of a model and what each more GPU buys in latency."

    def add_arguments(self, parser: CommandParser) -> None:
        known, kinds = ", ".join(config_names()), ", ".join(GPUS)
        parser.add_argument(
            "--config", "--model", required=True, metavar="NAME|FILE", help=f"config.json, or one of: {known}"
        )
        parser.add_argument("--gpu", default="h100-sxm", metavar="KIND", help=f"default h100-sxm; one of: {kinds}")
        parser.add_argument("--gpus", type=whole, default=64, metavar="N", help="GPUs there are, default 64")
        parser.add_argument(
            "--tp", type=whole, action="append", metavar="N", help="GPUs per engine, repeatable; default 1 2 4 8"
        )
        parser.add_argument("--mode", action="append", metavar="MODE", help=f"repeatable; default all: {', '.join(MODES)}")
        parser.add_argument(
            "--network-gbps", type=real, metavar="GBPS", help="of each engine; default: its GPU's usual card"
        )
        parser.add_argument("--input", type=whole, metavar="TOKENS", help="mean prompt length")
        parser.add_argument("--output", type=whole, metavar="TOKENS", help="mean answer length")
        parser.add_argument("--rate", type=real, metavar="R", help="requests per second; a trace's own if it is not given")
        parser.add_argument("--trace", type=Path, metavar="FILE", help="recorded lengths and bursts (docs/forecast.md)")
        parser.add_argument(
            "--slo-ttft", type=real, default=Slo.ttft_ms, metavar="MS", help="limit of TTFT, default 2000 ms"
        )
        parser.add_argument("--slo-itl", type=real, default=Slo.itl_ms, metavar="MS", help="limit of ITL, default 50 ms")
        parser.add_argument("--json", action="store_true", help="print the document instead of the table")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            asked = PlanRequest.of(options)
            found = layouts(asked)
        except REFUSALS as refused:
            raise CommandError(printable(str(refused))) from None
        self.stdout.write(json.dumps(document(found, asked), indent=2) if options["json"] else table(found, asked))


def table(found: Sequence[Alternative], asked: PlanRequest) -> str:
    """The frontier for a terminal, the cheapest layout first."""
    lines = [
        f"{asked.model}: {asked.rate:,.2f} requests/s, {asked.mix.prompt_tokens:,.0f} tokens in, "
        f"{asked.mix.output_tokens:,.0f} out; TTFT {asked.slo.ttft_ms:,.0f} ms, ITL {asked.slo.itl_ms:,.0f} ms at p99",
        "",
        f"{'GPUs':>5}  {'US$/h':>8}  {'TTFT p99':>10}  {'ITL p99':>9}  {'in time':>7}  layout",
    ]
    for each in found:
        got = each.estimate
        layout = f"{each.mode} {' + '.join(pool.text for pool in each.pools)}"
        lines.append(
            f"{got.gpus:>5}  {got.cost_per_hour:>8,.2f}  {_ms(got.ttft_p99_ms):>10}  {_ms(got.itl_p99_ms):>9}  "
            f"{got.attained:>7.1%}  {layout}{'' if not each.why_not else '   ✗ ' + each.why_not}"
        )
    lines += ["", "Closed form, ± 20 %: `manage.py forecast --layout …` simulates one of them."]
    return "\n".join(lines)


def _ms(value: float) -> str:
    return f"{value:,.0f} ms" if math.isfinite(value) else "endless"
