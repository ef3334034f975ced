"""Faults that a simulated engine was told to have: read, checked, counted and forgotten. What each does is in
docs/simulated-engine.md; others do it. Pure: times come from the caller.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from controlplane.core.engine_args import ArgumentRefused, OneOf, Rule, Share, Whole

LONGEST_S = 86_400.0
_SECONDS = Share(0.0, LONGEST_S)
_LIMITS: Mapping[str, Rule] = {"duration_s": Share(0.001, LONGEST_S), "count": Whole(1, 1 << 31), "share": Share(0.0, 1.0)}
_DURATION: Mapping[str, Rule] = {"duration_s": _LIMITS["duration_s"]}


class Kind(NamedTuple):
    """One fault: its fields, those it cannot do without, and the field that a bare value means."""

    fields: Mapping[str, Rule]
    needed: tuple[str, ...] = ()
    bare: str = ""
    at_once: bool = False
    """It happens when it is asked for and is over: nothing of it lasts."""


KINDS: Mapping[str, Kind] = {
    "die": Kind({"after_s": _SECONDS}, bare="after_s", at_once=True),
    "restart": Kind({"after_s": _SECONDS, "down_s": _SECONDS}, bare="down_s", at_once=True),
    "forget_cache": Kind({}, at_once=True),
    "hang": Kind({"what": OneOf(("steps", "process")), **_DURATION}, bare="what"),
    "slow": Kind({"factor": Share(0.01, 10_000.0), **_DURATION}, ("factor",), "factor"),
    "refuse": Kind(_LIMITS, bare="share"),
    "status": Kind({"code": Whole(400, 599), **_LIMITS}, ("code",), "code"),
    "transfer": Kind({"mode": OneOf(("fail", "delay", "corrupt")), "delay_s": _SECONDS, **_LIMITS}, ("mode",), "mode"),
    "leak_blocks": Kind({"blocks": Whole(1, 1 << 31), **_DURATION}, ("blocks",), "blocks"),
    "expire_early": Kind({"lease_s": _SECONDS, **_DURATION}, ("lease_s",), "lease_s"),
    "stale_metrics": Kind(_DURATION),
}


class Problem(NamedTuple):
    """What is wrong with a field, e.g. `status.code`."""

    field: str
    text: str


class FaultsRefused(ValueError):
    """Nothing of what was asked for is done."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(f"{problem.field} {problem.text}" for problem in problems))
        self.problems = problems


@dataclass
class Fault:
    """One that lasts. `hits`: how often it struck."""

    values: Mapping[str, Any]
    ends_at: float = math.inf
    hits: int = 0
    _owed: float = field(default=0.0, repr=False)

    def strikes(self) -> bool:
        """Whether it takes this occasion: an exact share of them, evenly spread, so that a run can be repeated."""
        self._owed += float(self.values.get("share", 1.0))
        if self._owed < 1.0 - 1e-9:
            return False
        self._owed -= 1.0
        self.hits += 1
        return True

    @property
    def used_up(self) -> bool:
        return self.hits >= float(self.values.get("count", math.inf))


class Faults:
    """The faults of one engine. `now` is any clock that does not run backwards."""

    def __init__(self) -> None:
        self._lasting: dict[str, Fault] = {}
        self.struck: dict[str, int] = dict.fromkeys(KINDS, 0)
        """How often each fault struck since the start, cleared ones included."""

    @property
    def any(self) -> bool:
        """Whether there may be any: to be asked before the rest, on paths that are taken often."""
        return bool(self._lasting)

    def set(self, wanted: Mapping[str, Mapping[str, Any]], now: float) -> None:
        """Begin what `read` has read; the same fault again replaces the former. Those of a moment are only counted."""
        for name, values in wanted.items():
            if "share" not in KINDS[name].fields:
                self.struck[name] += 1  # there are no occasions that it could wait for
            if not KINDS[name].at_once:
                self._lasting[name] = Fault(values, now + values.get("duration_s", math.inf))

    def get(self, name: str, now: float) -> Mapping[str, Any] | None:
        """The values of a fault that lasts, without a strike; None if there is none."""
        fault = self._now(name, now)
        return fault.values if fault else None

    def strike(self, name: str, now: float) -> Mapping[str, Any] | None:
        """The values of a fault if it takes this occasion; its last one ends it."""
        fault = self._now(name, now)
        if fault is None or not fault.strikes():
            return None
        self.struck[name] += 1
        if fault.used_up:
            del self._lasting[name]
        return fault.values

    def _now(self, name: str, now: float) -> Fault | None:
        fault = self._lasting.get(name)
        if fault and now >= fault.ends_at:
            del self._lasting[name]
            return None
        return fault

    def clear(self, name: str | None = None) -> None:
        """End one fault, or all."""
        if name is None:
            self._lasting.clear()
        else:
            self._lasting.pop(name, None)

    def report(self, now: float) -> dict[str, Any]:
        """What lasts: each fault's values, hits so far and what is left of it."""
        for name in list(self._lasting):
            self._now(name, now)
        return {name: _shown(fault, now) for name, fault in sorted(self._lasting.items())}


def _shown(fault: Fault, now: float) -> dict[str, Any]:
    shown = {**fault.values, "hits": fault.hits}
    if fault.ends_at != math.inf:
        shown["ends_in_s"] = round(fault.ends_at - now, 3)
    if "count" in fault.values:
        shown["left"] = fault.values["count"] - fault.hits
    return shown


def read(document: Any) -> dict[str, Mapping[str, Any]]:
    """The faults that a JSON object asks for, checked: {name: {field: value}}; `true` means no fields, a bare value the
    fault's main one. Raises FaultsRefused with every problem."""
    if not isinstance(document, dict) or not document:
        raise FaultsRefused([Problem("(body)", f"must be an object of faults: {', '.join(sorted(KINDS))}")])
    problems: list[Problem] = []
    wanted = {name: _read_one(name, value, problems) for name, value in document.items()}
    if problems:
        raise FaultsRefused(problems)
    return wanted


def _read_one(name: str, value: Any, problems: list[Problem]) -> Mapping[str, Any]:
    kind = KINDS.get(name)
    if kind is None:
        problems.append(Problem(f"{name:.60}", f"is no fault; faults: {', '.join(sorted(KINDS))}"))
        return {}
    if value is True:
        value = {}
    elif not isinstance(value, dict):
        if not kind.bare:
            problems.append(Problem(name, "must be true or an object of fields"))
            return {}
        value = {kind.bare: value}
    known = {key: _check(name, key, given, kind, problems) for key, given in value.items()}
    for key in kind.needed:
        if key not in value:
            problems.append(Problem(f"{name}.{key}", "is missing"))
    if known.get("mode") == "delay" and "delay_s" not in value:
        problems.append(Problem(f"{name}.delay_s", "is missing: how long transfers are delayed"))
    return known


def _check(name: str, key: str, given: Any, kind: Kind, problems: list[Problem]) -> Any:
    rule = kind.fields.get(key)
    if rule is None:
        allowed = ", ".join(sorted(kind.fields)) or "none"
        problems.append(Problem(f"{name}.{key:.60}", f"is no field of this fault; fields: {allowed}"))
        return None
    try:
        return rule.check(key, given)
    except ArgumentRefused as refusal:
        problems.append(Problem(f"{name}.{key}", refusal.problem))
        return None
