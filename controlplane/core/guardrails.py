"""The limits within which a canary is judged: what an operator may set. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from controlplane.core.codec import WrongShape, decode


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
    max_absent_s: float = 300.0
    """How long the canary may be without a ready engine that its mode needs."""
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
    "max_absent_s": 7 * 86_400.0,
    "session_s": 3600.0,
    "settle_s": 3600.0,
}
_POSITIVE = frozenset({"margin", "false_rollback", "false_promotion", "min_sessions", "max_duration_s"})


def _problem(name: str, value: float) -> str:
    above = value > 0 if name in _POSITIVE else value >= 0
    if math.isfinite(value) and above and value <= _MOST[name]:
        return ""
    return f"{name} must be {'more than' if name in _POSITIVE else 'at least'} 0 and at most {_MOST[name]:g}, not {value:g}"
