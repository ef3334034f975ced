"""Checks of values that come from outside a forecast: each refusal names the field, what it was and what it may be."""

from __future__ import annotations

import math
from collections.abc import Sequence

from controlplane.core.forecast import ForecastRefused


def whole(name: str, value: object, least: int, most: int) -> None:
    """Raises ForecastRefused unless `value` is a whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ForecastRefused(f"{name} must be a whole number from {least:,} to {most:,}, got {_short(value)}")


def positive(name: str, value: object, most: float, unit: str) -> None:
    """Raises ForecastRefused unless `value` is a finite number above 0 and at most `most`."""
    if not _number(value) or not 0 < value <= most:  # type: ignore[operator]
        raise ForecastRefused(f"{name} must be above 0 and at most {most:,g} {unit}".rstrip() + f", got {_short(value)}")


def not_negative(name: str, value: object, most: float) -> None:
    """Raises ForecastRefused unless `value` is a finite number from 0 to `most`."""
    if not _number(value) or not 0 <= value <= most:  # type: ignore[operator]
        raise ForecastRefused(f"{name} must be from 0 to {most:,g}, got {_short(value)}")


def one_of(name: str, value: object, known: Sequence[str]) -> None:
    """Raises ForecastRefused unless `value` is one of the known words."""
    if value not in known:
        raise ForecastRefused(f"{name} must be one of {', '.join(known)}, got {_short(value)}")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
