"""When an alert begins and ends: rules' settings, what was observed and what is open in, moves out. Pure.

A value is bad beyond its threshold and good again within `clear_at`; between the two nothing changes. An alert fires after
its value was bad for `for_s`, and resolves after it was good for `clear_s`, so a value that wobbles makes no noise. A value
that is not known (None) is neither: no clock runs. Only time between two looks that say the same counts, and only if they
are at most MAX_GAP_S apart: while nobody looked nothing was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Severity = Literal["warn", "bad"]
Verdict = Literal["bad", "between", "good", "unknown"]
Phase = Literal["pending", "firing"]
Kind = Literal["pend", "fire", "drop", "resolve", "stay"]
"""pend: it is bad, but not for long enough; drop: it was pending and is not bad; stay: nothing but the clock moves."""

SEVERITIES: tuple[Severity, ...] = ("warn", "bad")
"""The mildest first."""
MAX_GAP_S = 60.0
GONE = "what it is about is no more"
SWITCHED_OFF = "the rule was switched off"
GOOD = "good again"


@dataclass(frozen=True)
class Setting:
    """How one rule judges. `above`: too much is bad, else too little. `clear_at`: on the good side of the threshold."""

    threshold: float
    clear_at: float
    for_s: float
    clear_s: float
    severity: Severity = "warn"
    above: bool = True
    enabled: bool = True

    def verdict(self, value: float | None) -> Verdict:
        if value is None:
            return "unknown"
        beyond, back = value - self.threshold, self.clear_at - value
        if not self.above:
            beyond, back = -beyond, -back
        return "bad" if beyond > 0 else "good" if back >= 0 else "between"


@dataclass(frozen=True)
class Course:
    """Where an open alert stands. `streak_s`: for how long it was seen bad (pending) or good (firing) without a break; `at`
    and `last`: the newest look and what it said."""

    phase: Phase
    streak_s: float
    at: float
    last: Verdict


@dataclass(frozen=True)
class Observation:
    """One thing that a rule looks at. `model`: whose it is ("" = nobody's), for settings and silences. `label`: what people
    call it. `facts`: numbers behind the value, to be shown."""

    subject: str
    value: float | None
    model: str = ""
    label: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Open:
    """An alert that is pending or firing."""

    id: int
    rule: str
    subject: str
    model: str
    course: Course


@dataclass(frozen=True)
class Move:
    """What becomes of one alert. `id` 0: it is new. `course` None: it is over. `seen` None: it was not looked for."""

    kind: Kind
    rule: str
    subject: str
    id: int = 0
    course: Course | None = None
    seen: Observation | None = None
    setting: Setting | None = None
    reason: str = ""


SettingOf = Callable[[str, str], Setting | None]
"""By rule and model; None: there is no such rule."""


def step(setting: Setting, course: Course | None, value: float | None, now: float) -> tuple[Kind, Course | None]:
    """One look at one value. `course` None: nothing is open."""
    verdict = setting.verdict(value)
    if course is None:
        if verdict != "bad":
            return "stay", None
        phase: Phase = "pending" if setting.for_s > 0 else "firing"
        return ("pend" if setting.for_s > 0 else "fire"), Course(phase, 0.0, now, verdict)
    if verdict == "unknown":
        return "stay", replace(course, at=now, last=verdict)
    gap = now - course.at
    counted = gap if verdict == course.last and 0 < gap <= MAX_GAP_S else 0.0
    if course.phase == "pending":
        if verdict != "bad":
            return "drop", None
        streak = course.streak_s + counted
        if streak >= setting.for_s:
            return "fire", Course("firing", 0.0, now, verdict)
        return "stay", Course("pending", streak, now, verdict)
    streak = course.streak_s + counted if verdict == "good" else 0.0
    if verdict == "good" and streak >= setting.clear_s:
        return "resolve", None
    return "stay", Course("firing", streak, now, verdict)


def decide(
    looks: Mapping[str, Sequence[Observation] | None], opened: Sequence[Open], setting_of: SettingOf, now: float
) -> list[Move]:
    """What becomes of every open alert, and which begin. `looks`: by rule, everything that it is about now; None: it could
    not be looked for, which changes nothing."""
    known = {(each.rule, each.subject): each for each in opened}
    moves = [move for each in opened if (move := _without_look(each, looks, setting_of, now)) is not None]
    for rule, seen in looks.items():
        for observation in seen or ():
            setting = setting_of(rule, observation.model)
            if setting is not None and setting.enabled:
                before = known.get((rule, observation.subject))
                moves.extend(_judged(rule, observation, setting, before, now))
    return moves


def _judged(rule: str, seen: Observation, setting: Setting, before: Open | None, now: float) -> Iterator[Move]:
    kind, course = step(setting, before.course if before else None, seen.value, now)
    if before or course:
        reason = GOOD if kind == "resolve" else ""
        yield Move(kind, rule, seen.subject, before.id if before else 0, course, seen, setting, reason)


def _without_look(
    opened: Open, looks: Mapping[str, Sequence[Observation] | None], setting_of: SettingOf, now: float
) -> Move | None:
    """The move of an alert whose value is not judged now; None: it is judged."""
    setting = setting_of(opened.rule, opened.model)
    if setting is None or not setting.enabled:
        return _ended(opened, SWITCHED_OFF)
    seen = looks.get(opened.rule)
    if seen is None:
        _, course = step(setting, opened.course, None, now)
        return Move("stay", opened.rule, opened.subject, opened.id, course, None, setting)
    if all(each.subject != opened.subject for each in seen):
        return _ended(opened, GONE)
    return None


def _ended(opened: Open, reason: str) -> Move:
    kind: Kind = "resolve" if opened.course.phase == "firing" else "drop"
    return Move(kind, opened.rule, opened.subject, opened.id, reason=reason)


FIRST_RETRY_S = 10.0
LONGEST_RETRY_S = 900.0
ATTEMPTS = 30
"""About six hours. A message that nobody took by then is given up."""


def retry_after_s(attempts: int) -> float | None:
    """Seconds until a message is sent again that failed so often; None: no more."""
    if attempts >= ATTEMPTS:
        return None
    return float(min(LONGEST_RETRY_S, FIRST_RETRY_S * 2 ** (attempts - 1)))
