"""The options of `manage.py forecast`, and the request that they mean."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from controlplane.common.files import read_document
from controlplane.core.calibration import Calibration, read_calibration
from controlplane.core.forecast import ForecastRefused
from controlplane.core.gpus import GPUS
from controlplane.core.layout import EXAMPLES, parse_layout
from controlplane.core.protocol import Slo
from controlplane.physics import checks
from controlplane.physics.asked import MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS, MODES, SATURATE, ForecastRequest, Hardware
from controlplane.physics.catalog import config_names, read_config
from controlplane.physics.commandline import given, one_of_both, real, whole
from controlplane.physics.phases import WEIGHTS
from controlplane.physics.traces import MAX_REQUESTS, TraceRefused, read_trace
from controlplane.physics.traffic import MAX_SECONDS, Drawn, Recorded, Traffic
from controlplane.physics.workload import ARRIVAL_KINDS, Distribution

SECONDS = 300.0
MAX_SCALE = 10_000.0
DRAWN = ("input", "output", "rate", "length_cv", "arrival", "cv")
"""Options of traffic that is not recorded."""
SPLIT = ("gpus", "tp", "prefill_gpu", "decode_gpu", "prefill_tp", "decode_tp")
"""Options of GPUs that layouts are looked for on."""
SEEDS = 5
SATURATE_SEEDS = 3
"""Each takes about ten simulations."""


def add_arguments(parser: ArgumentParser) -> None:
    known = ", ".join(config_names())
    parser.add_argument("--model", "--config", required=True, metavar="NAME|FILE", help=f"config.json, or one of: {known}")
    _add_hardware(parser)
    _add_traffic(parser)
    _add_goal(parser)


def _add_hardware(parser: ArgumentParser) -> None:
    kinds = ", ".join(GPUS)
    group = parser.add_argument_group("hardware")
    group.add_argument("--gpu", default="h100-sxm", metavar="KIND", help=f"default h100-sxm; one of: {kinds}")
    group.add_argument("--gpus", type=whole, metavar="N", help="GPUs to split between the pools, default 8")
    group.add_argument("--tp", type=whole, metavar="N", help="GPUs per engine (tensor parallel); default: the best plan's")
    for role in ("prefill", "decode"):
        group.add_argument(f"--{role}-gpu", metavar="KIND", help=f"GPU kind of {role} engines, if another")
        group.add_argument(f"--{role}-tp", type=whole, metavar="N", help=f"GPUs per {role} engine, if another")
    group.add_argument("--network-gbps", type=real, metavar="GBPS", help="of each engine; default: its GPU's usual card")
    group.add_argument(
        "--layout", action="append", default=[], metavar="LAYOUT", help=f"a fixed layout, repeatable: {EXAMPLES}"
    )
    group.add_argument(
        "--price", action="append", default=[], metavar="KIND=USD", help="US$ per GPU-hour, repeatable; default: list price"
    )
    group.add_argument(
        "--calibration",
        action="append",
        type=Path,
        default=[],
        metavar="FILE",
        help="constants of a kind of GPU from an engine's own metrics (manage.py calibrate), repeatable",
    )
    group.add_argument("--dtype", default="auto", metavar="TYPE", help=f"of the weights: {', '.join(WEIGHTS)}")
    group.add_argument("--kv-dtype", default="auto", metavar="TYPE", help="of the KV cache, e.g. fp8; auto: the model's own")
    group.add_argument(
        "--max-num-seqs", type=whole, default=MAX_NUM_SEQS, metavar="N", help=f"as vLLM's, default {MAX_NUM_SEQS}"
    )
    group.add_argument(
        "--max-num-batched-tokens",
        type=whole,
        default=MAX_NUM_BATCHED_TOKENS,
        metavar="N",
        help=f"as vLLM's, default {MAX_NUM_BATCHED_TOKENS}",
    )


def _add_traffic(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("traffic: a trace, or lengths and a rate")
    group.add_argument("--trace", type=Path, metavar="FILE", help="Azure CSV, Mooncake JSONL or Twinpool JSONL")
    group.add_argument("--limit", type=whole, metavar="N", help="only the first N requests of the trace")
    group.add_argument("--scale-rate", type=real, metavar="X", help="X times as fast as recorded")
    group.add_argument("--input", type=whole, metavar="TOKENS", help="mean prompt length")
    group.add_argument("--output", type=whole, metavar="TOKENS", help="mean answer length")
    group.add_argument("--rate", type=real, metavar="R", help="requests per second; not needed with --saturate")
    group.add_argument("--length-cv", type=real, metavar="CV", help="of log-normal lengths; default 0: equal")
    group.add_argument("--arrival", metavar="KIND", help=f"one of {', '.join(ARRIVAL_KINDS)}; default {ARRIVAL_KINDS[0]}")
    group.add_argument("--cv", type=real, metavar="CV", help="of the gaps with --arrival gamma, default 1")
    group.add_argument(
        "--seconds", type=real, metavar="S", help=f"length of the traffic; default {SECONDS:.0f}, a trace's own"
    )
    group.add_argument(
        "--seeds", type=whole, metavar="N", help=f"draws of the traffic, default {SEEDS}, with --saturate {SATURATE_SEEDS}"
    )
    group.add_argument("--prefix-cached", type=whole, default=0, metavar="TOKENS", help="leading tokens that engines hold")


def _add_goal(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("goal")
    group.add_argument("--slo-ttft", type=real, default=Slo.ttft_ms, metavar="MS", help="limit of TTFT, default 2000 ms")
    group.add_argument("--slo-itl", type=real, default=Slo.itl_ms, metavar="MS", help="limit of ITL, default 50 ms")
    group.add_argument("--mode", default="compare", metavar="MODE", help=f"one of {', '.join(MODES)}; default compare")
    group.add_argument(
        "--saturate",
        nargs="?",
        const=SATURATE[0],
        metavar="HOW",
        help="find the highest rate within the SLO: steady (default; means keep it) or p99 (both p99s of a simulation do)",
    )


def asked(options: Mapping[str, Any]) -> ForecastRequest:
    """The request that the options mean. Raises ForecastRefused and the errors of the parts it reads."""
    calibrations = {each.gpu: each for each in map(_calibration, options["calibration"])}
    if len(calibrations) < len(options["calibration"]):
        raise ForecastRefused("give one --calibration for each kind of GPU")
    kinds = {**GPUS, **calibrations}
    layouts = tuple(parse_layout(text, options["gpu"], kinds) for text in options["layout"])
    if layouts and options["mode"] != "compare":
        raise ForecastRefused("give --mode or --layout, not both: a layout names its mode (agg, disagg, cond)")
    one_of_both(options, "layout", *SPLIT, hint="a layout names its engines, such as disagg:3xTP1+5xTP1@h200-sxm")
    seeds = options["seeds"]
    if seeds is None:
        seeds = SATURATE_SEEDS if options["saturate"] else SEEDS
    return ForecastRequest(
        model=options["model"],
        config=read_config(options["model"]),
        traffic=_traffic(options),
        slo=Slo(options["slo_ttft"], options["slo_itl"]),
        hardware=Hardware(gpu=options["gpu"]) if layouts else _hardware(options),
        layouts=layouts,
        mode=options["mode"],
        seeds=seeds,
        saturate=options["saturate"],
        network_gbps=options["network_gbps"],
        prefix_cached=options["prefix_cached"],
        prices=dict(map(_price, options["price"])),
        weights=options["dtype"],
        kv_dtype=options["kv_dtype"],
        calibrations=calibrations,
        max_num_seqs=options["max_num_seqs"],
        max_num_batched_tokens=options["max_num_batched_tokens"],
    )


def _calibration(path: Path) -> Calibration:
    try:
        return read_calibration(json.loads(read_document(path)))
    except OSError as error:
        raise ForecastRefused(f"calibration {str(path)!r:.200}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as problem:  # no JSON, no text, or no calibration
        raise ForecastRefused(f"calibration {str(path)!r:.200}: {problem}") from None


def _hardware(options: Mapping[str, Any]) -> Hardware:
    return Hardware(**{name: options[name] for name in ("gpu", *SPLIT) if options[name] is not None})


def _traffic(options: Mapping[str, Any]) -> Traffic:
    if options["trace"]:
        one_of_both(options, "trace", *DRAWN, hint="--scale-rate changes a trace's rate")
        return _recorded(options)
    if given(options, "limit", "scale_rate"):
        raise ForecastRefused("--limit and --scale-rate belong to --trace")
    if options["cv"] is not None and options["arrival"] != "gamma":
        raise ForecastRefused("--cv belongs to --arrival gamma")
    rate = options["rate"]
    if rate is None and options["saturate"]:
        rate = 1.0
    if options["input"] is None or options["output"] is None or rate is None:
        raise ForecastRefused("say what the traffic is: --trace FILE, or --input, --output and --rate")
    seconds = SECONDS if options["seconds"] is None else options["seconds"]
    return Drawn(
        Distribution(
            options["input"],
            options["output"],
            rate,
            seconds,
            options["length_cv"] or 0.0,
            options["arrival"] or ARRIVAL_KINDS[0],
            1.0 if options["cv"] is None else options["cv"],
        )
    )


def _recorded(options: Mapping[str, Any]) -> Recorded:
    path, limit, seconds, scale = (options[name] for name in ("trace", "limit", "seconds", "scale_rate"))
    scale = 1.0 if scale is None else scale
    if limit is not None:
        checks.whole("limit", limit, 1, MAX_REQUESTS)
    if seconds is not None:
        checks.positive("seconds", seconds, MAX_SECONDS, "s")
    checks.positive("scale-rate", scale, MAX_SCALE, "times")
    try:
        return Recorded(path.name, read_trace(path, limit, seconds, scale))
    except TraceRefused as refused:
        raise TraceRefused(f"trace {str(path)!r:.200}: {refused}") from None


def _price(text: str) -> tuple[str, float]:
    kind, _, price = text.partition("=")
    try:
        return kind.strip().lower(), float(price)
    except ValueError:
        raise ForecastRefused(f"price must look like h100-sxm=2.50 (US$ per GPU-hour), got {text!r:.60}") from None
