"""How fine a chart of a window can be: rows of ten seconds are kept for days, others for longer. Reads the configuration."""

from __future__ import annotations

from controlplane.config import config
from controlplane.telemetry.queries.windows import Level, Window

DAY_S = 86_400


def finest(window: Window) -> Level:
    """Of models and pools."""
    return Level.TEN_SECONDS if _has_tens(window) else Level.MINUTE


def finest_of_engines(window: Window) -> Level:
    """Of engines, which have no minutes."""
    return Level.TEN_SECONDS if _has_tens(window) else Level.HOUR


def _has_tens(window: Window) -> bool:
    return window.now - window.since <= config().keep_engine_10s_days * DAY_S
