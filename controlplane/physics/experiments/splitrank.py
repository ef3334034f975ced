"""Whether the planner's closed form finds the splits that the event simulation finds, on random hours. Seeded.

A setting is a model on a kind of engine, some minutes of recorded traffic in a random mix, a load and targets. Every split
of its engines is simulated, and told by the closed form from the minutes' windows alone. Engines, targets and loads are not
those of the simulated day (plannerday), which is kept for the end.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from controlplane.core.backlog import Backlog, Traffic, minute_of
from controlplane.core.capacity import EngineSpeed, Load, local_cells, met
from controlplane.core.forecast import Arrival, Pool, Settings, simulate_pools
from controlplane.core.gpus import gpu
from controlplane.core.perf import PhaseModel
from controlplane.core.workload import Mix, Seen, Window, merged_mix, mix_of, window_of
from controlplane.physics.catalog import read_config
from controlplane.physics.experiments.daytraffic import HOUR_S, Hour
from controlplane.physics.forecasting import Report
from controlplane.physics.phases import stored_shape

ENGINES = (
    ("llama-3.1-70b", "auto", "l40s", 8),
    ("llama-3.1-70b", "auto", "a100-sxm", 8),
    ("llama-3.1-70b", "fp8", "h100-sxm", 2),
    ("qwen3-32b", "auto", "l40s", 4),
    ("llama-3.1-8b", "auto", "l40s", 1),
)
"""(model, weights, GPU, tensor parallel)."""
COUNTS = (6, 8, 10, 12)
MINUTES = (30, 45)
MINUTE_S = 60.0
FEWEST, MOST = 1500, 11_000
"""Requests of a setting: others are drawn anew."""
TIED = 0.01
"""Shares in time that are no further apart are equally good."""
FIRST_SEED = 1000


@dataclass(frozen=True)
class Setting:
    """`targets_s`: TTFT and mean time per token."""

    seed: int
    engine: PhaseModel
    engines: int
    seconds: float
    arrivals: tuple[Arrival, ...]
    targets_s: tuple[float, float]


def drawn(seed: int, hours: Sequence[Hour]) -> Setting | None:
    """The setting of a seed; None where its requests are too few or too many."""
    dice = random.Random(f"splitrank:{seed}")  # noqa: S311 - a simulation's draw, no secret
    name, weights, kind, degree = dice.choice(ENGINES)
    engine = PhaseModel(stored_shape(read_config(name), weights), gpu(kind), degree)
    engines, seconds = dice.choice(COUNTS), MINUTE_S * dice.choice(MINUTES)
    first_s = dice.uniform(0, HOUR_S - seconds)
    shares = {hour.name: dice.random() ** 2 for hour in hours}
    found = [
        each._replace(at_s=each.at_s - first_s)
        for hour in hours
        for each in hour.arrivals
        if first_s <= each.at_s < first_s + seconds and dice.random() < shares[hour.name]
    ]
    if not found:
        return None
    speed = EngineSpeed(engine, _mix(found))
    ttft_s = max(1.3 * max(map(math.fsum, speed.prompts_s)), 10 * speed.step_s(1)) * dice.choice((1, 1.5, 2.5))
    itl_s = speed.step_s(1) * dice.choice((1.08, 1.12, 1.2, 1.35))
    copies = dice.uniform(0.5, 1) * engines / _engines_needed(found, speed, seconds, itl_s)
    arrivals = sorted(
        each._replace(at_s=each.at_s if copy == 0 else dice.uniform(each.at_s, min(seconds, each.at_s + 5)))
        for each in found
        for copy in range(int(copies) + (dice.random() < copies % 1))
    )
    if not FEWEST <= len(arrivals) <= MOST:
        return None
    numbered = tuple(each._replace(session=number + 1) for number, each in enumerate(arrivals))
    return Setting(seed, engine, engines, seconds, numbered, (ttft_s, itl_s))


def _mix(arrivals: Sequence[Arrival]) -> Mix:
    return mix_of(_seen(arrivals))


def _seen(arrivals: Sequence[Arrival]) -> list[Seen]:
    return [Seen(each.at_s, each.prompt_tokens, each.output_tokens) for each in arrivals]


def _engines_needed(arrivals: Sequence[Arrival], speed: EngineSpeed, seconds: float, itl_s: float) -> float:
    """Engines that would be busy all the time on average: prompts, and answers at the batch that the target allows."""
    cells = zip(speed.mix.cells, speed.prompts_s, strict=True)
    prompts = math.fsum(cell.requests * math.fsum(steps) for cell, steps in cells) / seconds
    batch = max(size for size in range(1, math.ceil(speed.most) + 1) if size == 1 or speed.step_s(size) <= itl_s)
    return prompts + len(arrivals) / seconds * speed.mix.output_tokens * itl_s / batch


def compared(setting: Setting) -> dict[str, Any]:
    """By split: shares in time as simulated, by the closed form with backlog, and by that of each minute as if it lasted."""
    seen = _seen(setting.arrivals)
    count = round(setting.seconds / MINUTE_S)
    windows = [window_of(seen, MINUTE_S * number, MINUTE_S * (number + 1)) for number in range(count)]
    usual = merged_mix((each.mix, 1.0) for each in windows)
    speed = EngineSpeed(setting.engine, usual)
    traffic = Traffic(tuple(minute_of(each, 1.0, 1.0, usual) for each in windows), 1.0)
    backlog = Backlog(traffic, speed, speed, lambda mix: local_cells(mix, "disaggregated"))
    splits = range(1, setting.engines)
    return {
        "seed": setting.seed,
        "engines": setting.engines,
        "requests": len(setting.arrivals),
        "simulated": [_simulated(setting, split) for split in splits],
        "backlog": [
            backlog.course(setting.engines - split, split, 1.0).judged(*setting.targets_s).in_time for split in splits
        ],
        "lasting": [_lasting(setting, windows, speed, split) for split in splits],
    }


def _simulated(setting: Setting, prefills: int) -> float:
    pools = Pool("prefill", prefills, setting.engine), Pool("decode", setting.engines - prefills, setting.engine)
    settings = Settings(horizon_s=setting.seconds + HOUR_S)
    ttft_s, itl_s = setting.targets_s
    served = simulate_pools(pools, setting.arrivals, settings, "disaggregated").served
    return sum(each.ttft_s <= ttft_s and (each.tpot_s or 0.0) <= itl_s for each in served) / len(setting.arrivals)


def _lasting(setting: Setting, windows: Sequence[Window], speed: EngineSpeed, prefills: int) -> float:
    answer, prefill = (speed, setting.engines - prefills), (speed, prefills)
    local = local_cells(speed.mix, "disaggregated")
    known = [each for each in windows if each.rate]
    loads = [Load(each.rate, speed.mix, each.burst) for each in known]
    good = math.fsum(load.rate * met(load, answer, prefill, local, setting.targets_s).attained for load in loads)
    return good / math.fsum(load.rate for load in loads)


def split_rank(hours: Sequence[Hour], count: int, report: Report | None = None, first: int = FIRST_SEED) -> dict[str, Any]:
    """`count` settings from seed `first` on, and how well both closed forms do on them."""
    told: Report = report or (lambda what, share: None)
    rows: list[dict[str, Any]] = []
    seed = first
    while len(rows) < count:
        told(f"setting {len(rows) + 1} of {count}", len(rows) / count)
        setting = drawn(seed, hours)
        seed += 1
        if setting is not None:
            rows.append(compared(setting))
    return {"settings": rows, **{name: _agreement(rows, name) for name in ("backlog", "lasting")}}


def _agreement(rows: Sequence[Mapping[str, Any]], name: str) -> dict[str, float]:
    """`error`: mean distance of the shares; `lost`: how many more requests the best split had in time than the chosen one,
    on average and at most; `found`: how often the chosen one is as good as the best."""
    lost = [max(row["simulated"]) - row["simulated"][_best(row[name])] for row in rows]
    errors = [fmean(abs(a - b) for a, b in zip(row["simulated"], row[name], strict=True)) for row in rows]
    return {
        "error": fmean(errors),
        "lost": fmean(lost),
        "most_lost": max(lost),
        "found": sum(each <= TIED for each in lost) / len(lost),
    }


def _best(shares: Sequence[float]) -> int:
    return max(range(len(shares)), key=shares.__getitem__)


def summary(document: Mapping[str, Any]) -> str:
    """For a terminal."""
    names = {"backlog": "with backlog", "lasting": "each minute as if it lasted"}
    lines = [
        f"{len(document['settings'])} settings, {sum(len(row['simulated']) for row in document['settings'])} simulations"
    ]
    for name, words in names.items():
        found = document[name]
        lines.append(
            f"  {words:<28} share in time off by {found['error']:.3f}; as good a split as the best in {found['found']:.0%}; "
            f"lost {found['lost']:.2%}, at most {found['most_lost']:.2%}"
        )
    return "\n".join(lines)
