"""What a split of GPUs would do under a workload: the event simulation's entrance. Pure: no clock, no randomness, no I/O."""

from __future__ import annotations

from controlplane.core.forecast_gaps import Gaps
from controlplane.core.forecast_summary import Figure, Forecast, Percentiles, PoolForecast, summarise
from controlplane.core.forecast_types import (
    Arrival,
    ForecastRefused,
    Outcome,
    Pool,
    PoolTotals,
    Progress,
    Served,
    Settings,
)

__all__ = [
    "Arrival",
    "Figure",
    "Forecast",
    "ForecastRefused",
    "Gaps",
    "Outcome",
    "Percentiles",
    "Pool",
    "PoolForecast",
    "PoolTotals",
    "Progress",
    "Served",
    "Settings",
    "summarise",
]
