"""A canary's verdict in one plain sentence. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controlplane.core.guardrails import Guardrails
from controlplane.core.trial import Evidence


def sentence(because: str, evidence: Evidence, guardrails: Guardrails, numbers: Mapping[str, Any]) -> str:
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
        case "absent":
            return f"Rolled back: for {_duration(numbers['absent_s'])} the canary had no ready engine that its mode needs."
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
