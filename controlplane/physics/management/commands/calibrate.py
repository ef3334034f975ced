"""`manage.py calibrate`: the performance model's constants from an engine's own metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from controlplane.common.files import read_document
from controlplane.core.calibration import Calibration, calibration_document
from controlplane.core.forecast import ForecastRefused
from controlplane.core.gpus import UnknownGpu
from controlplane.core.layout import MAX_TENSOR_PARALLEL
from controlplane.core.modelconfig import ConfigRefused, read_shape
from controlplane.core.perf import DoesNotFit
from controlplane.physics import checks
from controlplane.physics.calibration import CannotCalibrate, calibrate
from controlplane.physics.catalog import read_config
from controlplane.physics.commandline import PhysicsCommand, check_writable, real, whole
from controlplane.physics.enginemetrics import BadMetrics, EnginePage
from controlplane.physics.forecasttable import printable
from controlplane.physics.scraping import read_pages, watch

LONGEST_S = 24 * 3600.0
SHORTEST_INTERVAL_S = 0.05


class Command(PhysicsCommand):
    help = "Fit the performance model's constants to an engine's own metrics, while it serves or from saved pages."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--metrics", required=True, nargs="+", metavar="URL|FILE", help="one address, or pages in order")
        parser.add_argument("--config", required=True, help="the model's config.json, or the name of one that ships")
        parser.add_argument("--gpu", required=True, help="kind of the engine's GPUs; cpu: vLLM on a processor")
        parser.add_argument("--tp", type=whole, default=1, help="GPUs of the engine (tensor parallelism)")
        parser.add_argument("--key-file", type=Path, help="file with the engine's key")
        parser.add_argument("--seconds", type=real, default=60.0, help="how long to watch an address")
        parser.add_argument("--interval", type=real, default=0.5, help="seconds between scrapes")
        parser.add_argument("--output", type=Path, metavar="FILE", help="write the calibration there, for `forecast`")
        parser.add_argument("--json", action="store_true", help="print the calibration as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["output"]:
            check_writable(options["output"], "--output")
        try:
            checks.whole("tp", options["tp"], 1, MAX_TENSOR_PARALLEL)
            shape = read_shape(read_config(options["config"]))
            calibration = calibrate([_pages(options)], shape, options["gpu"], options["tp"])
        except (BadMetrics, CannotCalibrate, ConfigRefused, DoesNotFit, ForecastRefused, UnknownGpu) as problem:
            raise CommandError(str(problem)) from problem
        document = json.dumps(calibration_document(calibration), indent=2)
        if options["output"]:
            try:
                options["output"].write_text(document + "\n", encoding="utf-8")
            except OSError as error:
                raise CommandError(f"cannot write {options['output']}: {error.strerror}") from None
        self.stdout.write(document if options["json"] else table(calibration))


def _pages(options: dict[str, Any]) -> list[EnginePage]:
    sources, seconds, interval_s = options["metrics"], options["seconds"], options["interval"]
    addresses = [source for source in sources if "://" in source]
    if not addresses:
        if len(sources) < 2:
            raise CommandError("one saved page tells no change: give two or more, the older first, or an address")
        return read_pages([Path(source) for source in sources])
    if len(sources) > 1:
        raise CommandError("give one address alone: a calibration is of one engine")
    checks.positive("seconds", seconds, LONGEST_S, "s")
    checks.positive("interval", interval_s, seconds, "s")
    if interval_s < SHORTEST_INTERVAL_S:
        raise CommandError(f"interval must be at least {SHORTEST_INTERVAL_S} s, got {interval_s:g}")
    return watch(addresses[0], seconds, interval_s, _key(options["key_file"]))


def _key(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        key = read_document(path).strip()
    except OSError as error:
        raise CommandError(f"cannot read --key-file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CommandError(f"--key-file {path} is no key: it is no text") from None
    if not key or not key.isascii() or not key.isprintable():
        raise CommandError(f"--key-file {path} is no key: it must hold one line of ASCII")
    return key


def table(calibration: Calibration) -> str:
    """The calibration for people."""
    constants, sample = calibration.constants, calibration.sample
    open_ = set(calibration.uncertain)
    lines = [
        f"{printable(calibration.model)} on {calibration.tensor_parallel} x {calibration.gpu}: {sample.windows} windows, "
        f"{sample.seconds:.0f} s, {sample.steps:,} steps, {sample.prompt_tokens:,} prompt tokens computed, "
        f"{sample.output_tokens:,} generated",
    ]
    for name, value, unit in (
        ("linear", f"{constants.linear:.3g}", "of peak FLOPs in linear kernels"),
        ("attention", f"{constants.attention:.3g}", "of peak FLOPs in prefill attention"),
        ("kv", f"{constants.kv:.3g}", "of DRAM bandwidth in decode attention"),
        ("step_s", f"{constants.step_s * 1e3:.3f} ms", "for each step"),
        ("sequence_s", f"{constants.sequence_s * 1e3:.3f} ms", "for each decoding sequence of a step"),
        ("request_s", f"{calibration.request_s * 1e3:.3f} ms", "for each request, outside steps"),
    ):
        lines.append(f"  {name:<11}{value:>10}  {unit}{'  (uncertain: this load does not tell it)' * (name in open_)}")
    for name, error in calibration.errors.items():
        lines.append(
            f"  error of {name}: median {error.median:.1%}, p90 {error.p90:.1%} of {error.windows} windows (fitted on them)"
        )
    return "\n".join(lines)
