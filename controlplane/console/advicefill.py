"""The advisor's form filled from a model of the fleet: config, GPUs, network, targets and what was asked of it of late."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import accumulate

from controlplane.control.planning.advice import advised
from controlplane.control.planning.gather import bare_model, setting_of
from controlplane.core.advisor import Situation
from controlplane.core.gpus import GPUS
from controlplane.core.observed_load import Sampled
from controlplane.core.planner import ModelNow
from controlplane.core.planner_inputs import MIX_S
from controlplane.fleet.models import Model
from controlplane.physics.advising import MOST_REQUESTS
from controlplane.physics.catalog import config_names, read_config
from controlplane.telemetry.queries import loads

ENOUGH = 100
"""Requests of the last half hour, with fewer the whole last day is taken."""
DAY_S = 86_400.0
COMPACT = (",", ":")


def filled(row: Model, now_s: float) -> dict[str, str]:
    """Values of the form's fields by name; what is not known of the model is left out. Raises django.db.Error."""
    model = bare_model(row, setting_of(row), now_s)
    recent = recorded(row.name, now_s)
    found = {
        **_config(row),
        "of": row.name,
        "traffic": "model" if recent else "lengths",
        "slo_ttft_ms": f"{row.slo_ttft_ms:g}",
        "slo_itl_ms": f"{row.slo_itl_ms:g}",
        "kv_dtype": _precision(str(model.kv_dtype)),
        **_hardware(model, advised(row, now_s)[1]),
    }
    if recent:
        weights = sum(weight for _, weight in recent)
        found["input_tokens"] = f"{sum(seen.prompt_tokens * weight for seen, weight in recent) / weights:.0f}"
        found["output_tokens"] = f"{max(2.0, sum(seen.output_tokens * weight for seen, weight in recent) / weights):.0f}"
        hits = sum(seen.cached_tokens * weight for seen, weight in recent)
        prompts = sum(seen.prompt_tokens * weight for seen, weight in recent)
        found["prefix_hit"] = f"{min(99.0, 100 * hits / prompts):.0f}"
        found |= _rate(recent)
    return found


def _config(row: Model) -> dict[str, str]:
    """By its name if it ships, else pasted."""
    known = next((name for name in config_names() if read_config(name) == row.config), None)
    return {"model": known} if known else {"model": "own", "config": json.dumps(row.config, separators=COMPACT)}


def recorded(name: str, now_s: float) -> list[Sampled]:
    """Requests of the model's last half hour, or day if they were few, the newest first, with how many each stands for."""
    found = loads.sample(name, now_s - MIX_S, now_s)
    return found if len(found) >= ENOUGH else loads.sample(name, now_s - DAY_S, now_s)


def trace(found: Sequence[Sampled]) -> str:
    """As many requests as a simulation takes, as a trace of Twinpool's own kind: of thinned ones each as often as it stands
    for others, so that slow ones, which are always told, are not too many."""
    oldest_first = sorted(found, key=lambda each: each[0].at_s)
    first = oldest_first[0][0].at_s if oldest_first else 0.0
    lines = (
        {"at_s": round(seen.at_s - first, 3), "prompt_tokens": seen.prompt_tokens, "output_tokens": seen.output_tokens}
        for seen, _ in _evenly(oldest_first)
    )
    return "".join(f"{json.dumps(line, separators=COMPACT)}\n" for line in lines)


def _evenly(found: Sequence[Sampled]) -> Iterator[Sampled]:
    """At equal distances in what they stand for together."""
    ends = list(accumulate(weight for _, weight in found))
    count = min(MOST_REQUESTS, len(found))
    place = 0
    for index in range(count):
        while ends[place] <= (index + 0.5) * ends[-1] / count:
            place += 1
        yield found[place]


def _rate(recent: Sequence[Sampled]) -> dict[str, str]:
    span_s = recent[0][0].at_s - recent[-1][0].at_s
    return {"rate": f"{sum(weight for _, weight in recent) / span_s:.4g}"} if span_s > 0 else {}


def _precision(kv_cache_dtype: str) -> str:
    if kv_cache_dtype.startswith("fp8"):
        return "fp8"
    return "bf16" if kv_cache_dtype == "bfloat16" else "auto"


def _hardware(model: ModelNow, situation: Situation) -> dict[str, str]:
    found: dict[str, str] = {"transport": situation.transport}
    if situation.gpus:
        found["gpus"] = f"{situation.gpus}"
    if model.network_gbps:
        found["network_gbps"] = f"{model.network_gbps:g}"
    kinds = {pool.role: pool.gpu for pool in model.pools if pool.gpu in GPUS}
    if not kinds:
        return found
    found["gpu"] = kinds.get("mixed") or kinds.get("decode") or next(iter(kinds.values()))
    return found | {
        f"{role}_gpu": kinds[role] for role in ("prefill", "decode") if kinds.get(role, found["gpu"]) != found["gpu"]
    }
