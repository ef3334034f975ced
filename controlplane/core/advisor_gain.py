"""What splitting gains by the forecasts of the three modes, with its interval. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from controlplane.core.advisor_types import Gain, ModeForecast
from controlplane.core.protocol import Mode

MODEL_ERROR = 0.094
"""Of a ratio between two modes, relative: nine in ten searches of split layouts are within it (docs/model-accuracy.md)."""
NAMES: dict[Mode, str] = {
    "monolithic": "monolithic serving",
    "disaggregated": "disaggregation",
    "conditional": "deciding per request",
}


def gain_of(forecasts: Sequence[ModeForecast]) -> Gain | None:
    """The better of `disaggregated` and `conditional` against `monolithic`; None unless both sides are there."""
    whole = next((each for each in forecasts if each.mode == "monolithic"), None)
    split = [each for each in forecasts if each.mode != "monolithic"]
    if whole is None or not split:
        return None
    best = max(split, key=lambda each: each.requests_per_second)
    if not whole.requests_per_second:
        return _without_whole(best)
    ratio = best.requests_per_second / whole.requests_per_second - 1
    low = _ratio(best.low, whole.high) * (1 - MODEL_ERROR) - 1
    high = _ratio(best.high, whole.low) * (1 + MODEL_ERROR) - 1
    verb = "serves" if best.requests_per_second else "would serve"
    sentence = (
        f"{NAMES[best.mode].capitalize()} {verb} {best.requests_per_second:,.1f} requests/s within the targets where "
        f"monolithic serving takes {whole.requests_per_second:,.1f}: {percent(ratio)} ({percent(low)} to {percent(high)})."
    )
    return Gain(best.mode, ratio, low, high, sentence)


def percent(share: float) -> str:
    """A signed share for people."""
    if math.isinf(share):
        return "beyond measure"
    return f"{'−' if share < 0 else '+'}{100 * abs(share):,.0f} %"


def _without_whole(best: ModeForecast) -> Gain:
    if not best.requests_per_second:
        return Gain(best.mode, 0.0, 0.0, 0.0, "No mode keeps the targets on these GPUs at any rate.")
    sentence = (
        f"{NAMES[best.mode].capitalize()} serves {best.requests_per_second:,.1f} requests/s within the targets; monolithic "
        f"serving keeps them at no rate."
    )
    return Gain(best.mode, math.inf, math.inf, math.inf, sentence)


def _ratio(one: float, other: float) -> float:
    return one / other if other else math.inf
