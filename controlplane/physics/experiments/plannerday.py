"""A simulated day: 24 hours of virtual time on 64 GPUs, split by the planner, by a reactive autoscaler, or never changed.

The forecast's event simulation serves recorded traffic; the planner is the product's own (core/planner) and sees what it
would see in a fleet. Attainment is the share of all requests that arrived whose TTFT and mean time per output token were
within the targets.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from controlplane.core.forecast import Arrival, Outcome, Pool, Settings, simulate_pools
from controlplane.core.gpus import gpu
from controlplane.core.perf import PhaseModel
from controlplane.core.planner import Guards, ModelNow
from controlplane.core.protocol import Slo
from controlplane.core.shapes import Shape
from controlplane.physics.catalog import read_config
from controlplane.physics.experiments.daycontrol import Fixed, Planned, Reactive, Ticking, pools_now
from controlplane.physics.experiments.daykept import Kept, key_of
from controlplane.physics.experiments.daytraffic import (
    DAY_S,
    HOUR_S,
    SECOND_SEED,
    SECOND_SHIFTING,
    SECOND_STATIONARY,
    SEED,
    SHIFTING,
    STATIONARY,
    Curve,
    Hour,
    day,
)
from controlplane.physics.forecasting import Report
from controlplane.physics.phases import stored_shape

MODEL, WEIGHTS, GPU, GPUS, TENSOR_PARALLEL = "llama-3.1-405b", "fp8", "a100-sxm", 64, 8
ENGINES = GPUS // TENSOR_PARALLEL
START = (4, 4)
"""Of the controls that move engines: halves, as whoever knows nothing of the traffic would begin."""
SLO = Slo(ttft_ms=8000.0, itl_ms=48.0)
MOST_PROMPT = 12_000
"""Longer documents are left out: one of them alone takes longer than the target."""
GUARDS = Guards(give_up=False, min_samples=20, cooldown_s=600.0, horizon_s=900.0)
SETTINGS = Settings(max_num_seqs=256)
PLANNER, REACTIVE = "planner", "reactive ±1"
FIXED = {f"fixed {split}:{ENGINES - split}": split for split in range(ENGINES - 1, 0, -1)}
CONTROLS = (PLANNER, *FIXED, REACTIVE)
TRAFFIC: Mapping[str, tuple[Mapping[str, Curve], int]] = {
    "shifting": (SHIFTING, SEED),
    "stationary": (STATIONARY, SEED),
    "second shifting": (SECOND_SHIFTING, SECOND_SEED),
    "second stationary": (SECOND_STATIONARY, SECOND_SEED),
}
"""Curves, and the seed of their draw."""


@dataclass(frozen=True)
class Run:
    """One control over one day."""

    name: str
    outcome: Outcome
    control: Ticking
    seconds: float
    """CPU time of the simulation, the control's included."""

    def document(self, slo: Slo, hours: int) -> dict[str, Any]:
        arrivals = self.control.arrivals
        good = [0] * hours
        total = [0] * hours
        for each in arrivals:
            total[_hour(each, hours)] += 1
        for served in self.outcome.served:
            in_time = served.ttft_s * 1e3 <= slo.ttft_ms and (served.tpot_s or 0.0) * 1e3 <= slo.itl_ms
            good[_hour(arrivals[served.number], hours)] += in_time
        moves = self.control.retasks.moves
        return {
            "name": self.name,
            "attained": sum(good) / len(arrivals),
            "by_hour": [right / count if count else None for right, count in zip(good, total, strict=True)],
            "moves": len(moves),
            "most_moves_in_an_hour": max((sum(0 <= at - first < HOUR_S for at in moves) for first in moves), default=0),
            "splits": [[round(at), prefills, decodes] for at, prefills, decodes in self.control.retasks.log],
            "unfinished": self.outcome.unfinished,
            "cpu_s": self.seconds,
        }


def planner_day(
    hours: Sequence[Hour],
    report: Report | None = None,
    seconds: float = DAY_S,
    only: str = "",
    controls: Sequence[str] = (),
    keep: Path | None = None,
) -> dict[str, Any]:
    """Each traffic under all controls. `only`: one of TRAFFIC; `controls`: some of CONTROLS (empty: all); `keep`: a
    file of finished runs, which are not computed again (daykept). Raises ForecastRefused for that file."""
    told: Report = report or (lambda what, share: None)
    shape = stored_shape(read_config(MODEL), WEIGHTS)
    kept, found = Kept(keep), {}
    for name, (curves, seed) in TRAFFIC.items():
        if only in ("", name):
            arrivals = day(hours, curves, seconds, seed)
            found[name] = traffic_document(name, shape, arrivals, seconds, controls or CONTROLS, told, kept)
    return {
        "model": MODEL,
        "weights": WEIGHTS,
        "gpus": GPUS,
        "gpu": GPU,
        "tensor_parallel": TENSOR_PARALLEL,
        "slo": {"ttft_ms": SLO.ttft_ms, "itl_ms": SLO.itl_ms},
        "seconds": seconds,
        "traffic": found,
    }


def traffic_document(
    name: str,
    shape: Shape,
    arrivals: Sequence[Arrival],
    seconds: float,
    names: Sequence[str],
    told: Report,
    kept: Kept,
) -> dict[str, Any]:
    model = ModelNow(
        name="day",
        shape=shape,
        mode="disaggregated",
        pools=pools_now(*START, TENSOR_PARALLEL, GPU),
        slo=SLO,
        level="automatic",
        guards=GUARDS,
    )
    controls: dict[str, Ticking] = {PLANNER: Planned(arrivals, model, *START), REACTIVE: Reactive(arrivals, SLO, *START)}
    controls |= {name: Fixed(arrivals, SLO, split, ENGINES - split) for name, split in FIXED.items()}
    runs = []
    for index, each in enumerate(names):
        control = controls[each]
        told(f"{name}: {each}", index / len(names))
        start = (control.retasks.count("prefill"), ENGINES)
        setting = (MODEL, WEIGHTS, GPU, TENSOR_PARALLEL, SLO, GUARDS, SETTINGS, seconds, each, start)
        runs.append(kept.run(key_of(setting, arrivals), partial(_document, each, shape, arrivals, control, seconds)))
    return {
        "requests": len(arrivals),
        "prompt_tokens": sum(each.prompt_tokens for each in arrivals) / len(arrivals),
        "output_tokens": sum(each.output_tokens for each in arrivals) / len(arrivals),
        "runs": runs,
    }


def _document(name: str, shape: Shape, arrivals: Sequence[Arrival], control: Ticking, seconds: float) -> dict[str, Any]:
    return _run(name, shape, arrivals, control, seconds).document(SLO, max(1, round(seconds / HOUR_S)))


def _run(name: str, shape: Shape, arrivals: Sequence[Arrival], control: Ticking, seconds: float) -> Run:
    model = PhaseModel(shape, gpu(GPU), TENSOR_PARALLEL)
    prefills = control.retasks.count("prefill")
    pools = Pool("prefill", prefills, model), Pool("decode", ENGINES - prefills, model)
    began = time.process_time()
    settings = replace(SETTINGS, horizon_s=seconds + HOUR_S)
    outcome = simulate_pools(pools, arrivals, settings, "disaggregated", None, control)
    return Run(name, outcome, control, time.process_time() - began)


def _hour(each: Arrival, hours: int) -> int:
    return min(hours - 1, int(each.at_s / HOUR_S))


def summary(document: Mapping[str, Any]) -> str:
    """For a terminal."""
    lines = [
        f"{document['model']} ({document['weights']}) on {document['gpus']} {document['gpu']}, "
        f"TTFT {document['slo']['ttft_ms']:,.0f} ms, ITL {document['slo']['itl_ms']:,.0f} ms, "
        f"{document['seconds'] / HOUR_S:,.0f} h of virtual time"
    ]
    for name, traffic in document["traffic"].items():
        lines += ["", f"{name}: {traffic['requests']:,} requests, {traffic['prompt_tokens']:,.0f} tokens in"]
        lines += [
            f"  {run['name']:<14}{run['attained']:8.2%} in time, {run['moves']:3} moves, at most "
            f"{run['most_moves_in_an_hour']} in an hour, {run['cpu_s']:,.0f} s of CPU"
            for run in sorted(traffic["runs"], key=lambda run: -run["attained"])
        ]
    return "\n".join(lines)
