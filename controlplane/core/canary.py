"""What a canary's sessions have shown so far, and what follows: go on, promote a step, or roll back. Pure.

The unit is a session, for its requests are alike: it counts once, in the arm it was first seen in, with what happened in its
first `session_s` seconds. Sessions of both arms that ended at about the same time are compared in blocks (core.betting), so
a load that rises and falls for both proves nothing, and one may look after every session.

- Rolled back: shown that the canary has a larger share of sessions over the SLO than main; or of failed sessions, or of
  sessions with a failed KV transfer, by more than its guardrail. Together wrong in at most `false_rollback` of canaries that
  are no worse. Or too many of its sessions had to be served by main, or the time is up and nothing is shown.
- Promoted a step: in this step enough sessions were seen, for long enough, and it is shown that the share over the SLO is
  less than `margin` above main's (wrong in at most `false_promotion`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from controlplane.core import betting
from controlplane.core.codec import WrongShape, decode
from controlplane.core.trial import MEASURES, Arm, Evidence, Measure

Action = Literal["continue", "promote", "roll_back"]

SHARE_OF_ALPHA: Mapping[Measure, float] = {"over": 0.6, "failed": 0.2, "kv_lost": 0.2}
"""How the chance of a false rollback is divided among what may cause one."""
LEAST_FOR_FALLBACK = 50
"""Canary sessions before the share of those that main had to serve says anything."""


@dataclass(frozen=True)
class Guardrails:
    """Shares are of sessions, 0 to 1. What an operator may change of a canary, also while it runs."""

    margin: float = 0.03
    """How much larger than main's the canary's share of sessions over the SLO may be."""
    false_rollback: float = 0.05
    false_promotion: float = 0.05
    min_sessions: int = 200
    """Of each arm in every step, before it may be promoted."""
    min_step_s: float = 300.0
    max_duration_s: float = 14_400.0
    """Of the whole canary, pauses included."""
    max_failed: float = 0.01
    """How much larger than main's the canary's share of sessions with a failed request may be."""
    max_kv_lost: float = 0.01
    """The same for sessions in which a KV transfer failed."""
    max_fallback: float = 0.1
    """Share of the canary's sessions that main may have to serve for want of a usable canary engine."""
    session_s: float = 30.0
    """How long after its first ended request what happens to a session counts."""
    settle_s: float = 60.0
    """After a start, a step or a pause nothing counts for so long: caches are cold."""

    def __post_init__(self) -> None:
        problem = next(filter(None, (_problem(field.name, getattr(self, field.name)) for field in fields(self))), "")
        if problem:
            raise ValueError(problem)

    @classmethod
    def read(cls, stored: object) -> Guardrails:
        """From JSON; what is left out keeps its default. Raises ValueError with what is wrong, in words."""
        try:
            if isinstance(stored, Mapping) and (unknown := stored.keys() - {field.name for field in fields(cls)}):
                raise WrongShape("", f"unknown guardrail {', '.join(sorted(map(str, unknown)))!r:.80}")
            return decode(cls, stored)
        except WrongShape as error:
            raise ValueError(f"guardrails: {error}") from error


_MOST: Mapping[str, float] = {
    "margin": 0.5,
    "false_rollback": 0.5,
    "false_promotion": 0.5,
    "max_failed": 0.99,
    "max_kv_lost": 0.99,
    "max_fallback": 1.0,
    "min_sessions": 1_000_000,
    "min_step_s": 7 * 86_400.0,
    "max_duration_s": 30 * 86_400.0,
    "session_s": 3600.0,
    "settle_s": 3600.0,
}
_POSITIVE = frozenset({"margin", "false_rollback", "false_promotion", "min_sessions", "max_duration_s"})


def _problem(name: str, value: float) -> str:
    above = value > 0 if name in _POSITIVE else value >= 0
    if math.isfinite(value) and above and value <= _MOST[name]:
        return ""
    return f"{name} must be {'more than' if name in _POSITIVE else 'at least'} 0 and at most {_MOST[name]:g}, not {value:g}"


@dataclass(frozen=True)
class Judgement:
    """`harm` and `no_worse`: how far the evidence has come; at 1 or more it is shown."""

    action: Action
    because: str
    """over, failed, kv_lost, fallback, time: a rollback; no_worse: a promotion; and sessions, time_in_step, undecided."""
    harm: Mapping[Measure, float]
    no_worse: float


@dataclass(frozen=True)
class Verdict:
    """A judgement to keep and to show: `numbers` with it, and `sentence` says it in words."""

    action: Action
    because: str
    sentence: str
    numbers: Mapping[str, Any]


@dataclass(frozen=True)
class Progress:
    """`stages`: steps of the whole canary, those to come included. `step_s`, `age_s`: how long this step and the canary have
    lasted."""

    stages: int
    step_s: float
    age_s: float


def judge(evidence: Evidence, guardrails: Guardrails, progress: Progress) -> Judgement:
    """May be asked after every session."""
    stages = max(progress.stages, len(evidence.steps))
    harm = {measure: _harm(evidence, guardrails, measure, stages) for measure in MEASURES}
    wealth = betting.log_wealth(evidence.step("over"), "below", guardrails.margin)
    no_worse = wealth / -math.log(guardrails.false_promotion)
    action, because = _action(evidence, guardrails, harm, no_worse, progress)
    return Judgement(action, because, harm, no_worse)


def decide(evidence: Evidence, guardrails: Guardrails, progress: Progress) -> Verdict:
    """The judgement with everything that is to be known of it."""
    judgement = judge(evidence, guardrails, progress)
    numbers = _numbers(evidence, guardrails, judgement, progress)
    sentence = _sentence(judgement.because, evidence, guardrails, numbers)
    return Verdict(judgement.action, judgement.because, sentence, numbers)


def _harm(evidence: Evidence, guardrails: Guardrails, measure: Measure, stages: int) -> float:
    allowed = {"over": 0.0, "failed": guardrails.max_failed, "kv_lost": guardrails.max_kv_lost}[measure]
    wealth = betting.log_wealth_since_any(evidence.stages(measure), stages, "above", allowed)
    return wealth / -math.log(guardrails.false_rollback * SHARE_OF_ALPHA[measure])


def _action(
    evidence: Evidence, guardrails: Guardrails, harm: Mapping[Measure, float], no_worse: float, progress: Progress
) -> tuple[Action, str]:
    for measure in ("failed", "kv_lost", "over"):
        if harm[measure] >= 1:
            return "roll_back", measure
    if evidence.canary.asked >= LEAST_FOR_FALLBACK and evidence.canary.fallback_share > guardrails.max_fallback:
        return "roll_back", "fallback"
    fewest = min(evidence.step_canary, evidence.step_main)
    if no_worse >= 1 and fewest >= guardrails.min_sessions and progress.step_s >= guardrails.min_step_s:
        return "promote", "no_worse"
    if progress.age_s >= guardrails.max_duration_s:
        return "roll_back", "time"
    if fewest < guardrails.min_sessions:
        return "continue", "sessions"
    return "continue", "time_in_step" if no_worse >= 1 else "undecided"


def _numbers(evidence: Evidence, guardrails: Guardrails, judgement: Judgement, progress: Progress) -> dict[str, Any]:
    step = evidence.step("over")
    lower = betting.bounds(step, guardrails.false_rollback * SHARE_OF_ALPHA["over"])[0]
    upper = betting.bounds(step, guardrails.false_promotion)[1]
    return {
        "canary": _arm(evidence.canary),
        "main": _arm(evidence.main),
        "step": {
            "canary": evidence.step_canary,
            "main": evidence.step_main,
            "blocks": sum(step.values()),
            "seconds": round(progress.step_s, 1),
        },
        "difference": {"seen": mean_difference(step), "lower": lower, "upper": upper, "margin": guardrails.margin},
        "harm": {measure: round(value, 4) for measure, value in judgement.harm.items()},
        "no_worse": round(judgement.no_worse, 4),
        "age_s": round(progress.age_s, 1),
    }


def _arm(arm: Arm) -> dict[str, Any]:
    return {
        "sessions": arm.sessions,
        "over": arm.over,
        "failed": arm.failed,
        "kv_lost": arm.kv_lost,
        "fell_back": arm.fell_back,
        "ttft_p99_ms": arm.ttft_ms.p99,
        "itl_p99_ms": arm.itl_ms.p99,
    }


def mean_difference(tally: betting.Tally) -> float | None:
    """Mean of the blocks' differences; None without blocks."""
    blocks = sum(tally.values())
    return sum(block.difference * count for block, count in tally.items()) / blocks if blocks else None


# --- Words ----------------------------------------------------------------------------------------------------------------


def _sentence(because: str, evidence: Evidence, guardrails: Guardrails, numbers: Mapping[str, Any]) -> str:
    canary, main = evidence.canary, evidence.main
    seen = f"{_part(canary.over, canary.sessions)} of the canary's sessions and {_part(main.over, main.sessions)} of main's"
    difference = numbers["difference"]
    between = f"between {_points(difference['lower'])} and {_points(difference['upper'])} points"
    match because:
        case "over":
            return f"Rolled back: {seen} were over the SLO; the canary is worse."
        case "failed":
            return f"Rolled back: {_against('failed', canary.failed, main.failed, evidence)}."
        case "kv_lost":
            return f"Rolled back: {_against('had a failed KV transfer', canary.kv_lost, main.kv_lost, evidence)}."
        case "fallback":
            part = _part(canary.fell_back, canary.asked)
            most = f"{guardrails.max_fallback:.0%}"
            return f"Rolled back: {part} of the canary's sessions had to be served by main, at most {most} may."
        case "time":
            lasted = _duration(numbers["age_s"])
            return f"Rolled back: after {lasted} it is not shown that the canary is no worse; {seen} were over the SLO."
        case "no_worse":
            return f"Promoted: {seen} were over the SLO; the difference is at most {_points(difference['upper'])} points."
        case "sessions":
            fewest = min(evidence.step_canary, evidence.step_main)
            return f"Waiting for sessions: {fewest} of {guardrails.min_sessions} were seen in each arm."
        case "time_in_step":
            left = _duration(guardrails.min_step_s - numbers["step"]["seconds"])
            return f"No worse so far: {seen} were over the SLO; this step lasts {left} more."
    return f"Undecided: {seen} were over the SLO; the difference is {between}."


def _against(what: str, canary: int, main: int, evidence: Evidence) -> str:
    mine, others = _part(canary, evidence.canary.sessions), _part(main, evidence.main.sessions)
    return f"{mine} of the canary's sessions {what}, and {others} of main's"


def _part(count: int, total: int) -> str:
    return f"{count:,} of {total:,} ({count / total:.1%})" if total else "0 of 0"


def _points(value: float) -> str:
    return f"{100 * value:+.1f}"


def _duration(seconds: float) -> str:
    minutes = max(seconds, 0.0) / 60
    if minutes < 2:
        return f"{max(seconds, 0.0):.0f} s"
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
