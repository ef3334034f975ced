"""Rates of a simulation, counted where it is neither starting nor running out.

Over all the time, start and tail included, a short run would show a lower rate than the layout really serves, and the slower
the answers, the lower. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from controlplane.core.forecast import Arrival, Figure, Forecast, Outcome, Served
from controlplane.core.forecast_summary import interval
from controlplane.core.protocol import Slo

START = 0.2
"""Share of the traffic's time that is not counted, while the engines fill."""


@dataclass(frozen=True)
class Rates:
    """Per second: finished requests, their output tokens, and those of the requests that kept the SLO."""

    requests: float
    tokens: float
    good: float


def counted(outcome: Outcome, arrivals: Sequence[Arrival], slo: Slo) -> Rates:
    """What finished between the first fifth of the traffic and its last arrival; the whole run where that is nothing."""
    first, last = arrivals[0].at_s, arrivals[-1].at_s
    start = first + START * (last - first)
    ended = [one for one in outcome.served if start < arrivals[one.number].at_s + one.e2e_s <= last]
    return _rates(ended, last - start, slo) if ended else _rates(outcome.served, outcome.span_s, slo)


def at_rate(outcome: Outcome, rate: float, slo: Slo) -> Rates:
    """Where as much ends as arrives, at `rate` requests/s: shares of the arrivals, not counts over a time."""
    return _rates(outcome.served, outcome.arrived / rate, slo)


def with_rates(forecast: Forecast, rates: Sequence[Rates]) -> Forecast:
    """`forecast` with these rates (one per seed) and what follows from them."""
    tokens = interval([each.tokens for each in rates])
    cost = None
    if all(each.tokens for each in rates):
        cost = interval([forecast.cost_per_hour / 3600 / each.tokens * 1e6 for each in rates])
    return replace(
        forecast,
        requests_per_second=interval([each.requests for each in rates]),
        tokens_per_second=tokens,
        tokens_per_second_per_gpu=_over(tokens, forecast.gpus),
        goodput=interval([each.good for each in rates]),
        cost_per_million_tokens=cost,
    )


def _rates(served: Sequence[Served], seconds: float, slo: Slo) -> Rates:
    good = sum(one.ttft_s * 1e3 <= slo.ttft_ms and (one.tpot_s or 0.0) * 1e3 <= slo.itl_ms for one in served)
    return Rates(len(served) / seconds, sum(one.output_tokens for one in served) / seconds, good / seconds)


def _over(figure: Figure, gpus: int) -> Figure:
    return Figure(*(None if value is None else value / gpus for value in figure))  # type: ignore[arg-type]
