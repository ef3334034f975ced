"""From checks and forecast to the verdict, the mode to run and the sentence that says why. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from controlplane.core.advisor_checks import DECISIVE, SHORT_PROMPT_TOKENS
from controlplane.core.advisor_gain import NAMES, percent
from controlplane.core.advisor_types import Check, Gain, Verdict
from controlplane.core.protocol import Mode

Leaning = Literal["gain", "loss", "even"]


@dataclass(frozen=True)
class Judged:
    verdict: Verdict
    mode: Mode
    sentence: str
    checks: tuple[Check, ...]


def judge(checks: Sequence[Check], gain: Gain | None) -> Judged:
    """The verdict of `all_checks` and of the forecast's gain, if it is known."""
    by_name = {check.name: check for check in checks}
    failed = [by_name[name] for name in DECISIVE if by_name[name].state == "fail"]
    unknown = [by_name[name] for name in DECISIVE if by_name[name].state == "unknown"]
    short = by_name["short_prompts"]
    hardware = [check for check in failed if check.name != "decode_share"]
    if short.state == "fail":
        verdict, mode, sentence = _no(short.sentence)
    elif (unknown or short.state == "unknown") and not hardware:
        missing = unknown[0] if unknown else short
        verdict, mode, sentence = "not_enough_data", "monolithic", f"Not enough data: {_lower(missing.sentence)}"
    elif failed:
        verdict, mode, sentence = _against(failed, gain)
    else:
        verdict, mode, sentence = _for(checks, short, gain)
    return Judged(verdict, mode, sentence, tuple(checks))


def needs_gain(checks: Sequence[Check]) -> bool:
    """Whether the forecast has a say in the verdict."""
    short = next(check for check in checks if check.name == "short_prompts")
    return short.state != "fail"


def leaning(gain: Gain) -> Leaning:
    """What the forecast says, where its interval leaves no doubt."""
    return "gain" if gain.low > 0 else "loss" if gain.high < 0 else "even"


def _against(failed: Sequence[Check], gain: Gain | None) -> tuple[Verdict, Mode, str]:
    why = " ".join(check.sentence for check in failed[:1])
    if gain and leaning(gain) == "gain":
        names = " and ".join(check.title for check in failed)
        told = f"Try a canary of {NAMES[gain.mode]}: {_expected(gain)}, but this check fails: {names}."
        return "try_canary", gain.mode, told
    return _no(why)


def _for(checks: Sequence[Check], short: Check, gain: Gain | None) -> tuple[Verdict, Mode, str]:
    warnings = [check for check in checks if check.state == "fail"]
    usual: Mode = "conditional" if warnings else "disaggregated"
    if gain is None:
        return "yes", usual, _yes(usual, "decoding dominates, and GPUs and transport suffice", warnings)
    lean = leaning(gain)
    if lean == "gain":
        return "yes", gain.mode, _yes(gain.mode, _expected(gain), warnings)
    said = "a loss" if lean == "loss" else "no clear gain"
    if short.value is not None and short.value < SHORT_PROMPT_TOKENS:
        few = f"prompts have {short.value:,.0f} tokens, fewer than {SHORT_PROMPT_TOKENS}"
        return _no(f"{few}, and the forecast expects {said} ({percent(gain.ratio)})")
    expects = f"the forecast expects {said} ({percent(gain.ratio)})" if gain.reachable else "no mode keeps the targets"
    if warnings:
        told = f"the checks that decide speak for splitting{_though(warnings)}, and {expects}"
    else:
        told = f"the checks speak for splitting, but {expects}"
    return "try_canary", gain.mode, f"Try a canary: {told}."


def _yes(mode: Mode, why: str, warnings: Sequence[Check]) -> str:
    but = _though(warnings) if warnings else ""
    how = "Disaggregate" if mode == "disaggregated" else "Disaggregate per request (conditional)"
    return f"{how}: {why}{but}."


def _though(failed: Sequence[Check]) -> str:
    which = "this check fails" if len(failed) == 1 else "these checks fail"
    return f", though {which}: {' and '.join(check.title for check in failed)}"


def _expected(gain: Gain) -> str:
    if math.isinf(gain.ratio):
        return "by the forecast monolithic serving keeps the targets at no rate"
    return f"the forecast expects {percent(gain.ratio)} requests within the targets"


def _no(why: str) -> tuple[Verdict, Mode, str]:
    return "no", "monolithic", f"Stay monolithic: {_lower(why).rstrip('.')}."


def _lower(sentence: str) -> str:
    """As the second part of a sentence; names in capitals stay."""
    return sentence if sentence[:2].isupper() else sentence[0].lower() + sentence[1:]
