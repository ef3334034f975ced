"""`manage.py advise`: whether to disaggregate a model on GPUs that need not exist yet, and why."""

from __future__ import annotations

import json
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from controlplane.core.advisor import TRANSPORTS, Advice, ModeForecast
from controlplane.core.forecast import ForecastRefused, TooLoose
from controlplane.core.gpus import GPUS, UnknownGpu
from controlplane.core.modelconfig import ConfigRefused
from controlplane.core.perf import DoesNotFit
from controlplane.core.protocol import Slo
from controlplane.physics import checks
from controlplane.physics.advising import SEEDS, AdviceRequest, advise_offline, document
from controlplane.physics.catalog import config_names, read_config
from controlplane.physics.commandline import PhysicsCommand, one_of_both, progress, real, whole
from controlplane.physics.forecasttable import printable
from controlplane.physics.traces import MAX_REQUESTS, Trace, TraceRefused, read_trace

REFUSALS = (ForecastRefused, ConfigRefused, UnknownGpu, DoesNotFit, TraceRefused)
WIDTH = 118
MARKS = {"pass": "✓ pass", "fail": "✗ fail", "unknown": "? unknown"}


class Command(PhysicsCommand):
    help = "Advise whether to disaggregate a model: five checks, a forecast of each mode, and what would change the verdict."

    def add_arguments(self, parser: CommandParser) -> None:
        known, kinds = ", ".join(config_names()), ", ".join(GPUS)
        parser.add_argument(
            "--config", "--model", required=True, metavar="NAME|FILE", help=f"config.json, or one of: {known}"
        )
        parser.add_argument("--gpu", default="h100-sxm", metavar="KIND", help=f"default h100-sxm; one of: {kinds}")
        parser.add_argument("--prefill-gpu", metavar="KIND", help="GPU kind of prefill engines, if another")
        parser.add_argument("--decode-gpu", metavar="KIND", help="GPU kind of decode engines, if another")
        parser.add_argument("--gpus", type=whole, required=True, metavar="N", help="GPUs that the model may have")
        parser.add_argument("--network-gbps", type=real, required=True, metavar="GBPS", help="of each engine, Gb/s")
        parser.add_argument("--transport", default="rdma", help=f"one of {', '.join(TRANSPORTS)}; default rdma")
        parser.add_argument("--input", type=whole, metavar="TOKENS", help="mean prompt length")
        parser.add_argument("--output", type=whole, metavar="TOKENS", help="mean answer length")
        parser.add_argument(
            "--prefix-hit", type=real, metavar="SHARE", help="of a prompt's KV on the decode side, 0 to 0.99"
        )
        parser.add_argument("--trace", type=Path, metavar="FILE", help="recorded lengths instead (docs/forecast.md)")
        parser.add_argument("--limit", type=whole, metavar="N", help="only the first N requests of the trace")
        parser.add_argument(
            "--slo-ttft", type=real, default=Slo.ttft_ms, metavar="MS", help="limit of TTFT, default 2000 ms"
        )
        parser.add_argument("--slo-itl", type=real, default=Slo.itl_ms, metavar="MS", help="limit of ITL, default 50 ms")
        parser.add_argument(
            "--kv-dtype", default="auto", metavar="TYPE", help="of the KV cache, e.g. fp8; auto: the model's own"
        )
        parser.add_argument(
            "--seeds",
            type=whole,
            default=SEEDS,
            metavar="N",
            help=f"simulated draws, default {SEEDS}, a trace once; 0: closed form only",
        )
        parser.add_argument("--json", action="store_true", help="print the document instead of the text")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            asked = _asked(options)
            asked, advice = self._advised(asked, shown=self.stderr.isatty() and not options["json"])
        except REFUSALS as refused:
            raise CommandError(printable(str(refused))) from None
        found = document(advice, asked)
        self.stdout.write(json.dumps(found, indent=2) if options["json"] else _text(advice, found))

    def _advised(self, asked: AdviceRequest, shown: bool) -> tuple[AdviceRequest, Advice]:
        """The closed form's where a simulation of bounded length finds no highest rate, with a word of it on stderr."""
        try:
            with progress(shown=shown) as report:
                return asked, advise_offline(asked, report)
        except TooLoose as loose:
            self.stderr.write(f"This is the closed form, not simulated: {printable(str(loose))}.")
            closed = replace(asked, seeds=0)
            return closed, advise_offline(closed)


def _asked(options: dict[str, Any]) -> AdviceRequest:
    one_of_both(options, "trace", "input", "output", hint="a trace has its own lengths")
    if options["limit"] is not None and options["trace"] is None:
        raise ForecastRefused("--limit belongs to --trace")
    return AdviceRequest(
        model=options["config"],
        config=read_config(options["config"]),
        gpus=options["gpus"],
        gpu=options["gpu"],
        network_gbps=options["network_gbps"],
        transport=options["transport"],
        input=options["input"],
        output=options["output"],
        prefix_hit=options["prefix_hit"],
        trace=_trace(options["trace"], options["limit"]),
        trace_name=options["trace"].name if options["trace"] else "",
        prefill_gpu=options["prefill_gpu"],
        decode_gpu=options["decode_gpu"],
        slo=Slo(options["slo_ttft"], options["slo_itl"]),
        kv_dtype=options["kv_dtype"],
        seeds=options["seeds"],
    )


def _trace(path: Path | None, limit: int | None) -> Trace | None:
    if path is None:
        return None
    if limit is not None:
        checks.whole("limit", limit, 1, MAX_REQUESTS)
    try:
        return read_trace(path, limit)
    except TraceRefused as refused:
        raise TraceRefused(f"--trace {str(path)!r:.200}: {refused}") from None


def _text(advice: Advice, found: dict[str, Any]) -> str:
    moved = found["transfer"]
    lines = [textwrap.fill(advice.sentence, WIDTH), ""]
    lines.append(
        f"KV {moved['kv_bytes_per_token']:,} B per token; "
        f"{moved['tokens']:,} tokens {moved['kv_bytes_per_request'] / 1e9:,.3f} GB: "
        f"{moved['wire_ms_at_100_gbps']:,.0f} ms at 100 Gb/s, {moved['wire_ms_at_400_gbps']:,.0f} ms at 400 Gb/s"
    )
    for check in advice.checks:
        lines += ["", f"{MARKS[check.state]:<10}{check.title}: {check.value_text} (threshold: {check.threshold_text})"]
        lines.append(textwrap.fill(check.sentence, WIDTH, initial_indent=" " * 10, subsequent_indent=" " * 10))
    if advice.forecasts:
        lines += ["", "Highest rate within the targets, same GPUs", *map(_row, advice.forecasts)]
    if advice.gain:
        lines += [textwrap.fill(advice.gain.sentence, WIDTH)]
    lines += ["", "What would change the verdict", *(f"  {flip.sentence}" for flip in advice.flips)]
    return "\n".join(lines if advice.flips else lines[:-1])


def _row(each: ModeForecast) -> str:
    if not each.requests_per_second:
        return f"  {each.mode:<14}none: {'; '.join(each.notes)}"
    spread = f" ({each.low:,.2f}–{each.high:,.2f})" if each.high > each.low else ""
    cost = f", {each.cost_per_million_tokens:,.2f} US$ per 1M output tokens" if each.cost_per_million_tokens else ""
    return (
        f"  {each.mode:<14}{each.requests_per_second:,.2f} requests/s{spread} on {each.layout}: TTFT p99 "
        f"{each.ttft_p99_ms or 0:,.0f} ms, ITL p99 {each.itl_p99_ms or 0:,.1f} ms{cost}"
    )
