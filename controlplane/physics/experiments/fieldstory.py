"""The field story: Llama-70B on 64 H100, whole and split, beside what was seen on real machines (docs/experiments).

Everything is computed from the phase model and the forecast's simulation as they are. Times in milliseconds, shares 0..1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.core import kvsize
from controlplane.core.forecast import Arrival, Forecast, Gaps, Outcome, Settings, simulate, summarise
from controlplane.core.gpus import gpu
from controlplane.core.layout import Layout, monolithic, split
from controlplane.core.modelconfig import read_shape
from controlplane.core.perf import DoesNotFit, PhaseModel, StepCost
from controlplane.core.protocol import Slo
from controlplane.core.shapes import Shape
from controlplane.physics.asked import ForecastRequest
from controlplane.physics.catalog import read_config
from controlplane.physics.experiments import timeline
from controlplane.physics.forecasting import Report
from controlplane.physics.steady import steady
from controlplane.physics.traffic import Drawn
from controlplane.physics.workload import Distribution, draw

MODEL, GPU, GPUS, TENSOR_PARALLEL = "llama-3.1-70b", "h100-sxm", 64, 4
ENGINES = GPUS // TENSOR_PARALLEL
LONG, SHORT = (4096, 300), (210, 80)
"""Prompt and answer tokens."""
DECODE_BATCHES = (1, 2, 16, 32)
OTHER_DEGREES, OTHER_BATCH = (2, 8), 16
"""A decode step on engines of other sizes, for comparison."""
TIMELINE_RATE, TIMELINE_SECONDS = 16.0, 20.0
"""The rate must be one of those for long requests."""
LINKS_GBPS = (100.0, 400.0)
STALL = 5.0
"""A gap between tokens of so many times the median is a stall: decode steps alone never differ that much."""
SLO = Slo(ttft_ms=1500.0, itl_ms=50.0)
SETTINGS = Settings(max_num_seqs=128)


@dataclass(frozen=True)
class Plan:
    """How much is simulated. Rates are requests/s of the whole fleet."""

    long_rates: tuple[float, ...] = (3.0, 8.0, TIMELINE_RATE, 24.0, 32.0, 40.0)
    short_rates: tuple[float, ...] = (50.0, 100.0, 200.0)
    seeds: int = 3
    long_seconds: float = 120.0
    short_seconds: float = 30.0
    probe_requests: int = 600
    """By which splits are compared."""


@dataclass(frozen=True)
class Story:
    """What every part of the experiment needs."""

    shape: Shape
    model: PhaseModel
    report: Report
    plan: Plan

    def arrivals(self, tokens: tuple[int, int], rate: float, seconds: float, seed: int) -> tuple[Arrival, ...]:
        return draw(Distribution(*tokens, rate=rate, seconds=seconds), seed)

    def simulated(self, layout: Layout, arrivals: Sequence[Arrival]) -> Outcome:
        return simulate(self.shape, layout, arrivals, SETTINGS)


def field_story(report: Report = lambda what, share: None, plan: Plan = Plan()) -> dict[str, Any]:
    """The experiment's document: phases, transfers, load sweeps and a timeline. About a minute of computing."""
    shape = read_shape(read_config(MODEL))
    story = Story(shape, PhaseModel(shape, gpu(GPU), TENSOR_PARALLEL), report, plan)
    report("phases", 0.0)
    long = [_long(story, rate, 0.05 + 0.7 * nth / len(plan.long_rates)) for nth, rate in enumerate(plan.long_rates)]
    for_long = long[plan.long_rates.index(TIMELINE_RATE)]["split"]["layout"]
    short = [
        _short(story, rate, for_long, 0.75 + 0.2 * nth / len(plan.short_rates)) for nth, rate in enumerate(plan.short_rates)
    ]
    report("steady state", 0.95)
    return {
        "model": MODEL,
        "gpu": GPU,
        "gpus": GPUS,
        "tensor_parallel": TENSOR_PARALLEL,
        "seeds": plan.seeds,
        "long_tokens": list(LONG),
        "short_tokens": list(SHORT),
        "guesses": list(story.model.guesses),
        "prefill": _activity(story.model.prefill(LONG[0])),
        "decode": [{"batch": batch, **_activity(_decode(story.model, batch))} for batch in DECODE_BATCHES],
        "decode_other_tp": [{"tensor_parallel": degree, **_other_degree(shape, degree)} for degree in OTHER_DEGREES],
        "transfer": [{"gbps": gbps, "milliseconds": 1e3 * transfer_s(shape, LONG[0], gbps)} for gbps in LINKS_GBPS],
        "transfer_bytes": kvsize.kv_bytes_of_shape(shape) * LONG[0],
        "slo": {"ttft_ms": SLO.ttft_ms, "itl_ms": SLO.itl_ms},
        "capacity": {"long": _capacity(LONG), "short": _capacity(SHORT)},
        "long": long,
        "short": short,
        "timeline": timeline.document(story.model, SETTINGS, LONG, TIMELINE_RATE, _pools(for_long), TIMELINE_SECONDS),
    }


def transfer_s(shape: Shape, tokens: int, gbps: float) -> float:
    """Seconds that the KV cache of a prompt takes over a link of `gbps` (10^9 bits/s)."""
    return kvsize.kv_bytes_of_shape(shape) * tokens * 8 / (gbps * 1e9)


def whole() -> Layout:
    return monolithic(ENGINES, TENSOR_PARALLEL, GPU)


def splits() -> list[Layout]:
    """Every division of the engines into two pools."""
    return [split((count, TENSOR_PARALLEL, GPU), (ENGINES - count, TENSOR_PARALLEL, GPU)) for count in range(1, ENGINES)]


def _other_degree(shape: Shape, degree: int) -> dict[str, Any]:
    model = PhaseModel(shape, gpu(GPU), degree)
    try:
        room = model.kv_capacity_tokens(SETTINGS.memory_utilization, SETTINGS.max_num_batched_tokens)
    except DoesNotFit:
        room = 0
    return {"batch": OTHER_BATCH, "fits": room >= OTHER_BATCH * sum(LONG), **_activity(_decode(model, OTHER_BATCH))}


def _decode(model: PhaseModel, batch: int) -> StepCost:
    """A step in the middle of the long answers."""
    return model.decode(batch, LONG[0] + LONG[1] / 2)


def _activity(cost: StepCost) -> dict[str, float]:
    return {
        "milliseconds": 1e3 * cost.seconds,
        "tensor": cost.tensor,
        "tensor_peak": cost.tensor_peak,
        "dram": cost.dram,
        "mfu": cost.mfu,
    }


def _long(story: Story, rate: float, share: float) -> dict[str, Any]:
    story.report(f"{LONG[0]:,} + {LONG[1]} tokens at {rate:g} req/s", share)
    best = _best_split(story, LONG, rate)
    return _compared(story, LONG, rate, story.plan.long_seconds, {"whole": whole(), "split": best})


def _short(story: Story, rate: float, for_long: str, share: float) -> dict[str, Any]:
    """The short requests whole, on the split that suits them best, and on the one that was made for the long ones."""
    story.report(f"{SHORT[0]} + {SHORT[1]} tokens at {rate:g} req/s", share)
    unfit = next(layout for layout in splits() if layout.text == for_long)
    layouts = {"whole": whole(), "split": _best_split(story, SHORT, rate), "split_for_long": unfit}
    return _compared(story, SHORT, rate, story.plan.short_seconds, layouts)


def _best_split(story: Story, tokens: tuple[int, int], rate: float) -> Layout:
    """The split with the least p99 of the whole answer's time, by a short simulation of each."""
    arrivals = story.arrivals(tokens, rate, story.plan.probe_requests / rate, seed=1)

    def p99_ms(layout: Layout) -> float:
        latency = summarise([story.simulated(layout, arrivals)], SLO).e2e_ms
        return latency.p99.value if latency else float("inf")

    return min(splits(), key=p99_ms)


def _compared(
    story: Story, tokens: tuple[int, int], rate: float, seconds: float, layouts: Mapping[str, Layout]
) -> dict[str, Any]:
    """Layouts under the same requests."""
    draws = [story.arrivals(tokens, rate, seconds, seed) for seed in range(1, story.plan.seeds + 1)]
    found: dict[str, Any] = {"rate": rate}
    for name, layout in layouts.items():
        outcomes = [story.simulated(layout, arrivals) for arrivals in draws]
        found[name] = _figures(layout, summarise(outcomes, SLO), outcomes)
    return found


def _figures(layout: Layout, forecast: Forecast, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    latencies = {name: getattr(forecast, name) for name in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms")}
    gaps = Gaps()
    for outcome in outcomes:
        gaps.merge(outcome.gaps)
    return {
        "layout": layout.text,
        **{
            name: {"p50": latency.p50.value, "p99": latency.p99.value} if latency else None
            for name, latency in latencies.items()
        },
        "stalled": _stalled(gaps),
        "longest_gap_ms": 1e3 * gaps.quantile(1.0),
        "requests_per_second": forecast.requests_per_second.value,
        "attained": forecast.attained.value,
        "pools": {
            pool.role: {
                "engines": pool.gpus // TENSOR_PARALLEL,
                "tensor": pool.tensor.value,
                "tensor_in_steps": pool.tensor_in_steps.value,
                "tensor_peak": pool.tensor_peak.value,
                "dram_in_steps": pool.dram_in_steps.value,
            }
            for pool in forecast.pools
        },
    }


def _stalled(gaps: Gaps) -> float:
    """Share of tokens that came STALL times the median later or more."""
    limit, low, high = STALL * gaps.quantile(0.5), 0.0, 1.0
    if gaps.quantile(1.0) < limit:
        return 0.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if gaps.quantile(middle) >= limit else (middle, high)
    return 1 - high


def _capacity(tokens: tuple[int, int]) -> dict[str, Any]:
    """Requests/s whole and on the split that takes most, in a steady state whose means keep the SLO (physics/steady.py)."""
    traffic = Drawn(Distribution(*tokens, rate=1.0, seconds=1.0))
    asked = ForecastRequest(MODEL, read_config(MODEL), traffic, SLO, max_num_seqs=SETTINGS.max_num_seqs)
    rates = {layout.text: steady(asked, layout).rate for layout in splits()}
    best = max(rates, key=lambda text: rates[text])
    prefill, decode = _pools(best)
    return {"whole": steady(asked, whole()).rate, "split": rates[best], "prefill": prefill, "decode": decode}


def _pools(layout: str) -> tuple[int, int]:
    """Engines in the prefill and the decode pool of one of `splits`."""
    found = next(each for each in splits() if each.text == layout)
    return found.pools[0].engines, found.pools[1].engines
