"""What a canary's sessions have shown so far, and what follows: go on, promote a step, or roll back. Pure.

The unit is a session, for its requests are alike: it counts once, in the arm it was first seen in, with what happened in its
first `session_s` seconds. Sessions of both arms that ended at about the same time are compared in blocks (core.betting), so
a load that rises and falls for both proves nothing, and one may look after every session.

- Rolled back: shown that the canary has a larger share of sessions over the SLO than main; or of failed sessions, or of
  sessions with a failed KV transfer, by more than its guardrail. Together wrong in at most `false_rollback` of canaries that
  are no worse. Or too many of its sessions had to be served by main, its engines
  are gone for too long, or the time is up and nothing is shown.
- Promoted a step: in this step enough sessions were seen, for long enough, and it is shown that the share over the SLO is
  less than `margin` above main's (wrong in at most `false_promotion`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from controlplane.core import betting
from controlplane.core.canary_words import sentence
from controlplane.core.guardrails import Guardrails as Guardrails
from controlplane.core.trial import MEASURES, Arm, Evidence, Measure

Action = Literal["continue", "promote", "roll_back"]

SHARE_OF_ALPHA: Mapping[Measure, float] = {"over": 0.6, "failed": 0.2, "kv_lost": 0.2}
"""How the chance of a false rollback is divided among what may cause one."""
LEAST_FOR_FALLBACK = 50
"""Canary sessions before the share of those that main had to serve says anything."""


@dataclass(frozen=True)
class Judgement:
    """`harm` and `no_worse`: how far the evidence has come; at 1 or more it is shown."""

    action: Action
    because: str
    """over, failed, kv_lost, fallback, absent, time: back; no_worse: promoted; sessions, time_in_step, undecided: wait."""
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
    lasted; `absent_s`: how long routers have not been told of it, for want of ready engines."""

    stages: int
    step_s: float
    age_s: float
    absent_s: float = 0.0


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
    words = sentence(judgement.because, evidence, guardrails, numbers)
    return Verdict(judgement.action, judgement.because, words, numbers)


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
    if progress.absent_s > guardrails.max_absent_s:
        return "roll_back", "absent"
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
        "absent_s": round(progress.absent_s, 1),
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
