"""The figures that live rows are made of: totals, rates and percentiles over the board's windows. Pure.

Numbers that are not known are None: a rate needs something that reports, a percentile needs a sample, a total leaves out
what is stale.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.core.cost import Price
from controlplane.core.sketches import Sketch, merged
from controlplane.telemetry.board import BUSY, STALE_S, Board, GpuState
from controlplane.telemetry.rows import LatencyMs
from controlplane.telemetry.view import FleetView, GpuView
from controlplane.telemetry.windows import Tally, covered_s

MINUTE_S = 60
FIVE_MINUTES_S = 300
TEN_MINUTES_S = 600


def is_fresh(state: Any, now: float) -> bool:
    return state is not None and now - state.at <= STALE_S


def busy_shares(gpus: Iterable[GpuView], fresh: dict[str, GpuState], now: float) -> dict[str, float]:
    """By uuid, over the last minute, of GPUs that are fresh and tell their activity."""
    known = ((gpu.uuid, fresh[gpu.uuid].minute.mean(BUSY, now)) for gpu in gpus if gpu.uuid in fresh)
    return {uuid: share for uuid, share in known if share is not None}


def effective_gpus(gpus: Iterable[GpuView], shares: Mapping[str, float], view: FleetView) -> dict[str, float]:
    """Sum of busy shares by role ("" = spare); empty when no fresh GPU tells its activity."""
    sums: dict[str, float] = {}
    for gpu in gpus:
        if gpu.uuid in shares:
            role = view.role_of(gpu.engine) if gpu.engine else ""
            sums[role] = sums.get(role, 0.0) + shares[gpu.uuid]
    return sums


@dataclass(frozen=True)
class Money:
    """US$ an hour: of all GPUs, and of what of those that tell their activity is not busy. None: a kind has no price, or
    there is no GPU. `guess`: some count at a list price that nobody gave."""

    cost: float | None = None
    idle: float | None = None
    guess: bool = False


def dollars_per_hour(gpus: Iterable[GpuView], shares: Mapping[str, float], prices: Mapping[str, Price]) -> Money:
    cost, idle, guess = None, 0.0, False
    for gpu in gpus:
        price = prices.get(gpu.kind)
        if price is None:
            return Money()
        cost, guess = (cost or 0.0) + price.per_hour, guess or price.guess
        if gpu.uuid in shares:
            idle += price.per_hour * (1.0 - shares[gpu.uuid])
    return Money(cost, idle if shares else None, guess)


def requests_per_s(board: Board, models: Iterable[str], now: float) -> float | None:
    """Finished requests of the last minute; None when no router reported within it."""
    if board.routers_since is None or now - board.routers_at > MINUTE_S:
        return None
    known = [board.models[model] for model in models if model in board.models]
    count = sum(window.over(MINUTE_S, now).counters["requests"] for window in known)
    return count / covered_s(MINUTE_S, now, board.routers_since)


def engine_rate(board: Board, tally: Tally, counter: str, now: float) -> float | None:
    """Of a last-minute tally, per second; None when no engine reports now."""
    if board.engines_since is None or not any(is_fresh(state, now) for state in board.engines.values()):
        return None
    return tally.counters[counter] / covered_s(MINUTE_S, now, board.engines_since)


def output_tallies(board: Board, now: float) -> Iterable[Tally]:
    """Prefill engines make one token per request too, which nobody gets: they are left out."""
    return (window.over(MINUTE_S, now) for (_, role), window in board.pools.items() if role != "prefill")


def pool_tallies(board: Board, model: str | None, span_s: int, now: float) -> Iterable[Tally]:
    return (window.over(span_s, now) for (name, _), window in board.pools.items() if model in (None, name))


def total(tallies: Iterable[Tally]) -> Tally:
    result = Tally()
    for tally in tallies:
        result.merge(tally)
    return result


def model_sketch(board: Board, model: str, name: str, now: float) -> Sketch:
    """A model's TTFT or ITL of the last five minutes as its clients saw it. Where no client streamed, the engines' own
    histograms stand in, of the roles that answer clients: for TTFT only `mixed`, because no single engine sees it whole."""
    if model in board.models:
        seen = board.models[model].over(FIVE_MINUTES_S, now).sketches[name]
        if seen.count:
            return seen
    roles = ("mixed",) if name == "ttft" else ("mixed", "decode")
    windows = [window for (owner, role), window in board.pools.items() if owner == model and role in roles]
    return merged(window.over(FIVE_MINUTES_S, now).sketches[name] for window in windows)


def worst_model(board: Board, view: FleetView, name: str, now: float) -> tuple[LatencyMs, str, float | None]:
    """The latency of the model that uses most of its SLO at p99, its name and its SLO."""
    worst: tuple[float, LatencyMs, str, float] | None = None
    for model in view.models:
        slo_ms = model.slo_ttft_ms if name == "ttft" else model.slo_itl_ms
        figures = latency(model_sketch(board, model.name, name, now))
        used = figures.p99 / slo_ms if figures.p99 is not None and slo_ms > 0 else None
        if used is not None and (worst is None or used > worst[0]):
            worst = (used, figures, model.name, slo_ms)
    return worst[1:] if worst else (LatencyMs(None, None, 0), "", None)


def latency(sketch: Sketch) -> LatencyMs:
    return LatencyMs(sketch.quantile(0.5), sketch.quantile(0.99), round(sketch.count))


def mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
