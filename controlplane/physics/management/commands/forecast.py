"""`manage.py forecast`: what a split of GPUs would do under a workload, before it is done."""

from __future__ import annotations

import json
import shutil
from argparse import RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from controlplane.core.forecast import ForecastRefused
from controlplane.core.gpus import UnknownGpu
from controlplane.core.layout import LayoutRefused
from controlplane.core.modelconfig import ConfigRefused
from controlplane.core.perf import DoesNotFit
from controlplane.physics import forecastoptions, page
from controlplane.physics.commandline import PhysicsCommand, check_writable, progress
from controlplane.physics.forecasting import forecast
from controlplane.physics.forecastrows import sheet
from controlplane.physics.forecasttable import printable, rendered
from controlplane.physics.traces import TraceRefused

REFUSALS = (ForecastRefused, ConfigRefused, UnknownGpu, LayoutRefused, DoesNotFit, TraceRefused)

_EXAMPLES = """\
examples:
  manage.py forecast --model llama-3.1-70b --gpus 32 --input 4096 --output 300 --rate 8
  manage.py forecast --model llama-3.1-70b --gpus 16 --tp 4 --trace trace.jsonl --slo-ttft 1000 --html forecast.html
  manage.py forecast --model qwen3-8b --layout agg:8xTP1 --layout disagg:3xTP1+5xTP1@h200-sxm \\
      --input 1000 --output 200 --saturate
What the figures mean, what they leave out, and how traces are written: docs/forecast.md
"""


class Command(PhysicsCommand):
    help = "Forecast latency, goodput, GPU activity and cost of a model on GPUs, served whole and split."

    def create_parser(self, prog_name: str, subcommand: str, **options: Any) -> CommandParser:
        return super().create_parser(
            prog_name, subcommand, epilog=_EXAMPLES, formatter_class=RawDescriptionHelpFormatter, **options
        )

    def add_arguments(self, parser: CommandParser) -> None:
        forecastoptions.add_arguments(parser)
        output = parser.add_argument_group("output")
        output.add_argument("--json", action="store_true", help="print the document instead of the table")
        output.add_argument("--html", type=Path, metavar="FILE", help="write a page with charts that needs nothing else")

    def handle(self, *args: Any, **options: Any) -> None:
        target: Path | None = options["html"]
        try:
            if target:
                check_writable(target)
            asked = forecastoptions.asked(options)
            with progress(shown=self.stderr.isatty() and not options["json"]) as report:
                document = forecast(asked, report)
            if target:
                target.write_text(page.rendered(document), encoding="utf-8")
        except REFUSALS as refused:
            raise CommandError(printable(str(refused))) from None
        except OSError as error:
            raise CommandError(f"--html: cannot write {printable(str(target))}: {error.strerror}") from None
        self.stdout.write(json.dumps(document, indent=2) if options["json"] else self._table(document))

    def _table(self, document: dict[str, Any]) -> str:
        color = self.stdout.isatty() and self.style.SUCCESS("x") != "x"
        return rendered(sheet(document), shutil.get_terminal_size((120, 40)).columns, color)
