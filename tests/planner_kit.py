"""Models, windows and fleets for the planner's tests: Llama-3.1-70B on H100s, times in seconds from 10⁶."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from controlplane.core.modelconfig import read_shape
from controlplane.core.planner import FleetNow, Guards, ModelNow, PoolNow
from controlplane.core.protocol import Role, Slo
from controlplane.core.shapes import Shape
from controlplane.core.workload import Cell, Mix, Window
from controlplane.physics.catalog import read_config

NOW = 1_000_000.0
WINDOW_S = 60.0
CHAT = Mix((Cell(1.0, 1000.0, 250.0),))
RAG = Mix((Cell(1.0, 8000.0, 200.0),))


@cache
def shape(name: str = "llama-3.1-70b") -> Shape:
    return read_shape(read_config(name))


def windows(
    rate: float | Callable[[float], float], mix: Mix = CHAT, count: int = 30, now_s: float = NOW, burst: float = 1.0
) -> tuple[Window, ...]:
    """`count` windows of a minute that end at `now_s`; the rate may depend on their end."""
    found = []
    for index in range(count, 0, -1):
        since = now_s - index * WINDOW_S
        each = rate(since + WINDOW_S) if callable(rate) else rate
        seen = mix if each else Mix()
        found.append(Window(since, since + WINDOW_S, each, seen, burst, round(each * WINDOW_S)))
    return tuple(found)


def pool(role: Role, engines: int, **more: Any) -> PoolNow:
    return PoolNow(role, engines, more.pop("tensor_parallel", 4), more.pop("gpu", "h100-sxm"), **more)


def whole(engines: int, seen: Sequence[Window], **more: Any) -> ModelNow:
    """A model served monolithic."""
    return _model((pool("mixed", engines),), "monolithic", seen, more)


def split(prefills: int, decodes: int, seen: Sequence[Window], **more: Any) -> ModelNow:
    """A disaggregated model."""
    return _model((pool("prefill", prefills), pool("decode", decodes)), "disaggregated", seen, more)


def _model(pools: tuple[PoolNow, ...], mode: Any, seen: Sequence[Window], more: dict[str, Any]) -> ModelNow:
    guards = more.pop("guards", Guards())
    base = ModelNow(
        name="llama",
        shape=shape(),
        mode=mode,
        pools=pools,
        slo=Slo(2000.0, 50.0),
        level="automatic",
        windows=tuple(seen),
        metrics_at_s=seen[-1].until_s if seen else None,
        guards=guards,
    )
    return replace(base, **more)


def fleet(*models: ModelNow, spare: int = 0, **more: Any) -> FleetNow:
    return FleetNow(models, {"h100-sxm": spare} if spare else {}, **more)
