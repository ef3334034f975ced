"""The advisor without a cluster, for command, API and page: a checked request goes in, advice and a document come out.

The best layout of each mode is found in closed form (core/advisor_offline), then simulated with several draws of the traffic
for the highest rate within the targets. `seeds=0` leaves the simulation out: an answer in about a second, whose gain is the
closed form's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from controlplane.core import kvsize
from controlplane.core.advisor import TRANSPORTS, Advice, ModeForecast, Transport, advise
from controlplane.core.advisor_knobs import knobs
from controlplane.core.advisor_offline import MAX_NUM_SEQS, MODES, Offline, transfer_times
from controlplane.core.cost import MOST_PER_HOUR
from controlplane.core.forecast import (
    Arrival,
    Criterion,
    ForecastRefused,
    Outcome,
    Settings,
    highest_rate,
    pools_of,
    summarise,
)
from controlplane.core.forecast_summary import interval
from controlplane.core.gpus import gpu
from controlplane.core.layout import WORD_OF_MODE, Layout, parse_layout
from controlplane.core.planner_layouts import Layouted
from controlplane.core.protocol import Mode, Slo
from controlplane.core.workload import Cell, Mix, Seen, mix_of
from controlplane.physics import checks
from controlplane.physics.asked import MAX_GBPS, MAX_GPUS, MAX_MS
from controlplane.physics.forecastdoc import rounded
from controlplane.physics.forecasting import Report
from controlplane.physics.phases import stored_shape
from controlplane.physics.traces import Trace
from controlplane.physics.traffic import MAX_RATE, MAX_TOKENS
from controlplane.physics.workload import NO_LIMIT, Distribution, draw

SEEDS = 3
MAX_SEEDS = 10
TOLERANCE = 0.05
MOST_REQUESTS = 1500
"""Of one simulation."""
PATTERN_S = 60.0
MAX_HIT = 0.99


@dataclass(frozen=True)
class AdviceRequest:
    """What the advisor is asked without a cluster. Raises ForecastRefused, ConfigRefused, UnknownGpu, which name the remedy.

    `input`, `output`: mean tokens; with a `trace` they are not looked at. `prefix_hit`: share of a prompt's KV that the
    decode side holds, 0..0.99; None: the trace's own, or 0. `network_gbps`: of each engine. `prices`: US$ per
    GPU-hour by kind, list prices where a kind has none. `rate`: requests/s that layouts are looked for.
    """

    model: str
    config: Mapping[str, Any]
    gpus: int
    gpu: str
    network_gbps: float
    transport: Transport = "rdma"
    input: int | None = None
    output: int | None = None
    prefix_hit: float | None = None
    trace: Trace | None = None
    trace_name: str = ""
    prefill_gpu: str | None = None
    decode_gpu: str | None = None
    slo: Slo = field(default_factory=Slo)
    kv_dtype: str = "auto"
    weights: str = "auto"
    seeds: int = SEEDS
    prices: Mapping[str, float] = field(default_factory=dict)
    rate: float | None = None

    def __post_init__(self) -> None:
        checks.whole("gpus", self.gpus, 1, MAX_GPUS)
        checks.positive("network-gbps", self.network_gbps, MAX_GBPS, "Gb/s")
        checks.one_of("transport", self.transport, TRANSPORTS)
        checks.positive("slo-ttft", self.slo.ttft_ms, MAX_MS, "ms")
        checks.positive("slo-itl", self.slo.itl_ms, MAX_MS, "ms")
        checks.whole("seeds", self.seeds, 0, MAX_SEEDS)
        if self.prefix_hit is not None:
            checks.not_negative("prefix-hit", self.prefix_hit, MAX_HIT)
        if self.trace is None:
            if self.input is None or self.output is None:
                raise ForecastRefused("the traffic is not known: give --input and --output, or a --trace")
            checks.whole("input", self.input, 1, MAX_TOKENS)
            checks.whole("output", self.output, 2, MAX_TOKENS)
        if self.rate is not None:
            checks.positive("rate", self.rate, MAX_RATE, "requests/s")
        for kind, price in self.prices.items():
            gpu(kind)
            checks.not_negative(f"price of {kind}", price, MOST_PER_HOUR)
        for kind in {self.gpu, self.prefill_gpu or self.gpu, self.decode_gpu or self.gpu}:
            gpu(kind)
        kvsize.transfer_bytes_per_token(stored_shape(self.config, self.weights), self.kv_dtype)

    @property
    def price_of(self) -> dict[str, float]:
        """US$ per GPU-hour of the kinds that are asked about."""
        kinds = dict.fromkeys((self.prefill_gpu or self.gpu, self.decode_gpu or self.gpu))
        return {kind: self.prices.get(kind, gpu(kind).price_per_hour) for kind in kinds}

    @property
    def offline(self) -> Offline:
        mix, samples, seconds = self._mix()
        return Offline(
            shape=stored_shape(self.config, self.weights),
            mix=mix,
            gpus=self.gpus,
            prefill_gpu=self.prefill_gpu or self.gpu,
            decode_gpu=self.decode_gpu or self.gpu,
            network_gbps=self.network_gbps,
            slo=self.slo,
            transport=self.transport,
            kv_dtype=self.kv_dtype,
            samples=samples,
            window_s=seconds,
            source=f"trace {self.trace_name}".strip() if self.trace else "given",
        )

    def _mix(self) -> tuple[Mix, int | None, float | None]:
        if self.trace is None:
            prompt, output = self.input or 1, self.output or 2
            cached = min(prompt - 1.0, prompt * (self.prefix_hit or 0.0))
            return Mix((Cell(1.0, prompt, output, cached),)), None, None
        arrivals = self.trace.arrivals
        held = _held(arrivals, self.trace.block_tokens)
        if self.prefix_hit is not None:
            held = [round(each.prompt_tokens * self.prefix_hit) for each in arrivals]
        seen = [
            Seen(each.at_s, each.prompt_tokens, max(2, each.output_tokens), cached)
            for each, cached in zip(arrivals, held, strict=True)
        ]
        return mix_of(seen), len(arrivals), arrivals[-1].at_s - arrivals[0].at_s

    def arrivals(self, seed: int) -> tuple[Arrival, ...]:
        """A pattern to be repeated at any rate."""
        if self.trace is not None:
            return self.trace.arrivals
        rate = MOST_REQUESTS / PATTERN_S
        most = stored_shape(self.config, self.weights).max_positions or NO_LIMIT
        return draw(Distribution(self.input or 1, self.output or 2, rate, PATTERN_S), seed, most)

    @property
    def settings(self) -> Settings:
        block = self.trace.block_tokens if self.trace and self.prefix_hit is None else 0
        cached = 0
        if self.prefix_hit and not block:
            prompts = [each.prompt_tokens for each in self.trace.arrivals] if self.trace else [self.input or 1]
            cached = min(min(prompts) - 1, round(sum(prompts) / len(prompts) * self.prefix_hit))
        return Settings(
            max_num_seqs=MAX_NUM_SEQS,
            block_size=block or Settings.block_size,
            network_gbps=self.offline.gbps,
            kv_dtype=self.kv_dtype,
            prefix_cached=max(0, cached),
        )


def advise_offline(asked: AdviceRequest, report: Report | None = None) -> Advice:
    """The advice for a request. Raises DoesNotFit where no engine can hold the model, ForecastRefused and its like."""
    told: Report = report or (lambda what, share: None)
    offline = asked.offline
    situation = offline.situation
    forecasts, ratios = [], {}
    for index, mode in enumerate(MODES):
        told(f"looking for the best {mode} layout", index / len(MODES))
        best = offline.best(mode)
        forecast = _forecast(asked, offline, mode, best, told)
        forecasts.append(forecast)
        if best:
            ratios[mode] = forecast.requests_per_second / best[0]
    told("looking for what would change the verdict", None)
    return advise(situation, forecasts, knobs(replace(offline, ratios=ratios)))


def document(advice: Advice, asked: AdviceRequest) -> dict[str, Any]:
    """For JSON, with stable keys; shares 0..1, money US$. Infinite figures are null."""
    offline = asked.offline
    tokens = max(1, round(offline.mix.prompt_tokens))
    return {
        "model": asked.model,
        "verdict": advice.verdict,
        "mode": advice.mode,
        "sentence": advice.sentence,
        "checks": [_plain(vars(check)) for check in advice.checks],
        "gain": _plain(vars(advice.gain)) if advice.gain else None,
        "forecasts": [_plain(vars(each)) for each in advice.forecasts],
        "flips": [_plain(vars(flip)) for flip in advice.flips],
        "transfer": _plain({"tokens": tokens, **transfer_times(offline, tokens)}),
        "inputs": {
            "gpus": asked.gpus,
            "prefill_gpu": offline.prefill_gpu,
            "decode_gpu": offline.decode_gpu,
            "network_gbps": asked.network_gbps,
            "transport": asked.transport,
            "input_tokens": rounded(offline.mix.prompt_tokens),
            "output_tokens": rounded(offline.mix.output_tokens),
            "prefix_hit": rounded(offline.mix.prefix_hit_share),
            "requests": offline.samples,
            "slo": {"ttft_ms": asked.slo.ttft_ms, "itl_ms": asked.slo.itl_ms},
            "prices": asked.price_of,
            "seeds": asked.seeds if asked.trace is None else min(1, asked.seeds),
        },
    }


def _plain(figures: Mapping[str, Any]) -> dict[str, Any]:
    def value(of: Any) -> Any:
        if isinstance(of, float):
            return rounded(of) if math.isfinite(of) else None
        return list(of) if isinstance(of, tuple) else of

    return {key: value(of) for key, of in figures.items()}


def _forecast(
    asked: AdviceRequest, offline: Offline, mode: Mode, best: tuple[float, Layouted] | None, told: Report
) -> ModeForecast:
    if best is None:
        return ModeForecast(mode, "", 0.0, 0.0, 0.0, notes=("no layout on these GPUs keeps the targets at any rate",))
    rate, found = best
    layout = layout_of(found)
    estimate = found.estimate
    if not asked.seeds:
        return ModeForecast(
            mode=mode,
            layout=layout.text,
            requests_per_second=rate,
            low=rate,
            high=rate,
            at_rate=rate,
            ttft_p99_ms=estimate.ttft_p99_ms,
            itl_p99_ms=estimate.itl_p99_ms,
            attained=estimate.attained,
            cost_per_million_tokens=_per_million(asked, offline, layout, rate),
            notes=("closed form, not simulated",),
        )
    return _simulated(asked, offline, mode, layout, rate, told)


def _simulated(
    asked: AdviceRequest, offline: Offline, mode: Mode, layout: Layout, near: float, told: Report
) -> ModeForecast:
    rates: list[float] = []
    outcomes: list[Outcome] = []
    criterion = Criterion(asked.slo, tolerance=TOLERANCE, most_requests=MOST_REQUESTS)
    settings = asked.settings
    pools = pools_of(offline.shape, layout, settings)
    seeds = range(1, (1 if asked.trace else asked.seeds) + 1)
    for seed in seeds:
        told(f"simulating {layout.text}, draw {seed}", (MODES.index(mode) + (seed - 1) / len(seeds)) / len(MODES))
        found = highest_rate(pools, asked.arrivals(seed), settings, mode, criterion, near=near)
        rates.append(found.requests_per_second)
        outcomes += [found.outcome] if found.outcome else []
    rate = interval(rates)
    seen = summarise(outcomes, asked.slo) if outcomes else None
    return ModeForecast(
        mode=mode,
        layout=layout.text,
        requests_per_second=rate.value,
        low=max(0.0, rate.value if rate.low is None else rate.low),
        high=rate.value if rate.high is None else rate.high,
        at_rate=rate.value,
        ttft_p99_ms=seen.ttft_ms.p99.value if seen and seen.ttft_ms else None,
        itl_p99_ms=seen.itl_ms.p99.value if seen and seen.itl_ms else None,
        attained=seen.attained.value if seen else None,
        cost_per_million_tokens=_per_million(asked, offline, layout, rate.value),
        notes=() if rate.value else ("no rate keeps both targets in the simulation",),
    )


def layout_of(found: Layouted) -> Layout:
    """As layouts are written and simulated."""
    pools = "+".join(pool.text for pool in found.pools)
    return parse_layout(f"{WORD_OF_MODE[found.mode]}:{pools}", found.pools[0].gpu)


def _per_million(asked: AdviceRequest, offline: Offline, layout: Layout, rate: float) -> float | None:
    tokens = rate * offline.mix.output_tokens
    prices = asked.price_of
    cost = sum(prices[kind] * count for kind, count in layout.gpus_by_kind.items())
    return cost / (tokens * 3600) * 1e6 if tokens else None


def _held(arrivals: Sequence[Arrival], block_tokens: int) -> list[int]:
    """Of each prompt the tokens that an endless cache would hold already."""
    known: set[int] = set()
    held = []
    for each in arrivals:
        hits = next((index for index, key in enumerate(each.prefix) if key not in known), len(each.prefix))
        held.append(min(each.prompt_tokens - 1, hits * block_tokens))
        known.update(each.prefix)
    return held
