"""The frontier of a model from figures alone, for command, API and pages: a checked request goes in, layouts come out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controlplane.core.forecast import ForecastRefused
from controlplane.core.gpus import gpu
from controlplane.core.layout import MAX_TENSOR_PARALLEL
from controlplane.core.perf import DoesNotFit
from controlplane.core.planner import Alternative, ModelNow, PoolNow, frontier
from controlplane.core.planner_search import Search
from controlplane.core.protocol import Mode, Role, Slo
from controlplane.core.shapes import Shape
from controlplane.core.workload import Cell, Mix, Seen, Window, window_of
from controlplane.physics import checks
from controlplane.physics.asked import MAX_GBPS, MAX_GPUS, MAX_MS
from controlplane.physics.catalog import read_config
from controlplane.physics.commandline import one_of_both
from controlplane.physics.forecastdoc import rounded
from controlplane.physics.phases import stored_shape
from controlplane.physics.traces import TraceRefused, read_trace
from controlplane.physics.traffic import MAX_RATE, MAX_TOKENS

MODES: tuple[Mode, ...] = ("monolithic", "disaggregated", "conditional")
ROLES: tuple[Role, ...] = ("prefill", "decode", "mixed")
DEGREES = (1, 2, 4, 8)


@dataclass(frozen=True)
class PlanRequest:
    """Raises ForecastRefused, ConfigRefused and UnknownGpu, which name the remedy."""

    model: str
    shape: Shape
    gpu: str
    gpus: int
    rate: float
    mix: Mix
    burst: float = 1.0
    slo: Slo = field(default_factory=Slo)
    degrees: tuple[int, ...] = DEGREES
    modes: tuple[Mode, ...] = MODES
    network_gbps: float | None = None

    def __post_init__(self) -> None:
        gpu(self.gpu)
        checks.whole("gpus", self.gpus, 1, MAX_GPUS)
        checks.positive("rate", self.rate, MAX_RATE, "requests/s")
        checks.positive("slo-ttft", self.slo.ttft_ms, MAX_MS, "ms")
        checks.positive("slo-itl", self.slo.itl_ms, MAX_MS, "ms")
        for degree in self.degrees:
            checks.whole("tp", degree, 1, MAX_TENSOR_PARALLEL)
        for mode in self.modes:
            checks.one_of("mode", mode, MODES)
        if self.network_gbps is not None:
            checks.positive("network-gbps", self.network_gbps, MAX_GBPS, "Gb/s")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> PlanRequest:
        """The request that the options of `manage.py plan` mean. Raises TraceRefused too."""
        one_of_both(options, "trace", "input", "output", hint="a trace has its own lengths; --rate goes with both")
        window = _recorded(options["trace"]) if options["trace"] else None
        rate = options["rate"] if options["rate"] is not None else window.rate if window else None
        if rate is None:
            raise ForecastRefused("the load is not known: give --rate, or a --trace")
        return cls(
            model=options["config"],
            shape=stored_shape(read_config(options["config"]), "auto"),
            gpu=options["gpu"],
            gpus=options["gpus"],
            rate=rate,
            mix=window.mix if window else _given(options["input"], options["output"]),
            burst=window.burst if window else 1.0,
            slo=Slo(options["slo_ttft"], options["slo_itl"]),
            degrees=tuple(options["tp"] or DEGREES),
            modes=tuple(options["mode"] or MODES),
            network_gbps=options["network_gbps"],
        )

    @property
    def now(self) -> ModelNow:
        """As the planner takes it; sizes of pools are not looked at."""
        pools = tuple(PoolNow(role, 1, self.degrees[0], self.gpu, degrees=self.degrees) for role in ROLES)
        return ModelNow(
            self.model, self.shape, self.modes[0], pools, self.slo, modes=self.modes, network_gbps=self.network_gbps
        )


def layouts(asked: PlanRequest) -> tuple[Alternative, ...]:
    """The frontier, the cheapest first. Raises DoesNotFit where no engine can hold the model."""
    search = Search(asked.now, asked.mix)
    if not search.options("mixed"):
        search.speed(asked.gpu, max(asked.degrees))
        raise DoesNotFit(f"the model fits no engine of {', '.join(map(str, asked.degrees))} GPUs")
    return frontier(asked.now, asked.rate, asked.mix, {asked.gpu: asked.gpus}, asked.burst)


def document(found: Sequence[Alternative], asked: PlanRequest) -> dict[str, Any]:
    """For JSON; latencies in ms, null where a layout cannot keep up."""
    return {
        "model": asked.model,
        "requests_per_second": rounded(asked.rate),
        "input_tokens": rounded(asked.mix.prompt_tokens),
        "output_tokens": rounded(asked.mix.output_tokens),
        "slo": {"ttft_ms": asked.slo.ttft_ms, "itl_ms": asked.slo.itl_ms},
        "layouts": [
            {
                "mode": each.mode,
                "pools": [vars(pool) for pool in each.pools],
                "gpus": each.estimate.gpus,
                "cost_per_hour": rounded(each.estimate.cost_per_hour),
                "ttft_p99_ms": _finite(each.estimate.ttft_p99_ms),
                "itl_p99_ms": _finite(each.estimate.itl_p99_ms),
                "attained": rounded(each.estimate.attained),
                "busy": rounded(each.estimate.busy),
                "error": each.estimate.error,
                "keeps_targets": not each.why_not,
                "why_not": each.why_not,
            }
            for each in found
        ],
    }


def _finite(value: float) -> float | None:
    return rounded(value) if math.isfinite(value) else None


def _given(prompt: object, output: object) -> Mix:
    if prompt is None or output is None:
        raise ForecastRefused("the traffic is not known: give --input and --output, or a --trace")
    checks.whole("input", prompt, 1, MAX_TOKENS)
    checks.whole("output", output, 1, MAX_TOKENS)
    return Mix((Cell(1.0, float(prompt), float(output)),))  # type: ignore[arg-type]


def _recorded(path: Path) -> Window:
    try:
        arrivals = read_trace(path).arrivals
    except TraceRefused as refused:
        raise TraceRefused(f"--trace {str(path)!r:.200}: {refused}") from None
    seen = [Seen(each.at_s, each.prompt_tokens, each.output_tokens) for each in arrivals]
    return window_of(seen, 0.0, max(1.0, arrivals[-1].at_s))
