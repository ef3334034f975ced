"""Whether to disaggregate a model: five checks, the rule for short prompts, and what the forecast says. Pure.

Checks 1 (decode share), 4 (GPUs) and 5 (transport) decide; 2 (KV against the network) and 3 (prefix hits) warn, and make
`conditional` the better mode where they fail. The rule for short prompts wins over all of them. Where checks and forecast
disagree only an experiment tells: try a canary.
"""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.core.advisor_checks import MIN_GPUS, MIN_SAMPLES, SHORT_PROMPT_TOKENS, all_checks
from controlplane.core.advisor_flips import flips, plain_knobs
from controlplane.core.advisor_gain import gain_of
from controlplane.core.advisor_types import (
    TRANSPORTS,
    Advice,
    Check,
    CheckName,
    Flip,
    Gain,
    Knob,
    Measured,
    ModeForecast,
    Situation,
    State,
    Transport,
    Verdict,
)
from controlplane.core.advisor_verdict import Judged, judge

__all__ = [
    "MIN_GPUS",
    "MIN_SAMPLES",
    "SHORT_PROMPT_TOKENS",
    "TRANSPORTS",
    "Advice",
    "Check",
    "CheckName",
    "Flip",
    "Gain",
    "Judged",
    "Knob",
    "Measured",
    "ModeForecast",
    "Situation",
    "State",
    "Transport",
    "Verdict",
    "advise",
]


def advise(situation: Situation, forecasts: Sequence[ModeForecast] = (), knobs: Sequence[Knob] | None = None) -> Advice:
    """The advice for `situation`. `forecasts`: of all three modes on the same GPUs and traffic, or none while they are not
    known. `knobs`: how inputs change the situation, where better is known than turning each figure alone."""
    gain = gain_of(forecasts)
    judged = judge(all_checks(situation), gain)
    return Advice(
        verdict=judged.verdict,
        mode=judged.mode,
        sentence=judged.sentence,
        checks=judged.checks,
        forecasts=tuple(forecasts),
        gain=gain,
        flips=flips(judged.verdict, plain_knobs(situation, gain) if knobs is None else knobs),
    )
