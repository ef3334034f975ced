"""How the planner is set for a model: what it may do, within which limits, and which loads are known to come."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from django.db import transaction

from controlplane.control.actions.change import begin, forbid
from controlplane.control.actor import Actor
from controlplane.control.models import Level, PlannerSetting
from controlplane.control.newmodel import MAX_ENGINES
from controlplane.control.refused import refuse_all
from controlplane.core.codec import WrongShape, decode, encode
from controlplane.core.gpus import GPUS
from controlplane.core.layout import MAX_TENSOR_PARALLEL
from controlplane.core.planner import Guards, Peak, Span
from controlplane.core.predict import DAY_S
from controlplane.core.storable import storable_text
from controlplane.fleet import models

PARTS = ("level", "priority", "modes", "floors", "ceilings", "kinds", "degrees", "guards", "peaks")
MAX_PRIORITY = 1000
MAX_SPANS = 50
MAX_WHY = 200
MAX_RATE = 1e6
RANGES: Mapping[str, tuple[float, float]] = {
    "stale_s": (30, 3600),
    "min_samples": (1, 1_000_000),
    "cooldown_s": (0, DAY_S),
    "manual_s": (0, 7 * DAY_S),
    "moves_per_hour": (0, 1000),
    "hysteresis": (0, 0.9),
    "headroom": (0, 2),
    "idle_s": (60, DAY_S),
    "horizon_s": (60, 7200),
    "lifetime_s": (60, DAY_S),
}
"""What each number of Guards may be."""
SPANS = ("slots", "freezes")


@dataclass(frozen=True)
class PlannerChange:
    """What is to be set; None: as it is. `guards`: fields of core.planner.Guards by name, None for the default again; the
    other parts replace what was set. `floors`, `ceilings`: engines by role. `kinds`, `degrees`: by role, GPU kinds and
    tensor-parallel degrees that may be proposed beside the pool's own. `peaks`: as core.planner.Peak."""

    level: str | None = None
    priority: int | None = None
    modes: Sequence[str] | None = None
    floors: Mapping[str, int] | None = None
    ceilings: Mapping[str, int] | None = None
    kinds: Mapping[str, Sequence[str]] | None = None
    degrees: Mapping[str, Sequence[int]] | None = None
    guards: Mapping[str, Any] | None = None
    peaks: Sequence[Mapping[str, Any]] | None = None


def set_planner(
    actor: Actor, name: str, change: PlannerChange, *, reason: str = "", expected_version: int | None = None
) -> models.Operation:
    """Set the planner for one model. Its priority is an operator's: by it models take GPUs from others."""
    with transaction.atomic():
        begun = begin(actor, "set_planner", name, reason=reason, expected_version=expected_version)
        if change.priority is not None:
            forbid(actor, "set_priority", begun.model.team, begun.model.name)
        row = PlannerSetting.objects.filter(model=begun.model).first() or PlannerSetting(model=begun.model)
        before = {part: getattr(row, part) for part in PARTS}
        refuse_all("invalid", _wrong(change))
        after = _merged(before, change)
        refuse_all("invalid", _wrong_together(after))
        for part, value in after.items():
            setattr(row, part, value)
        row.save()
        changed = [part for part in PARTS if before[part] != after[part]]
        was = {part: before[part] for part in changed}
        return begun.record(done=True, was={"planner": was}, planner={part: after[part] for part in changed})


def _merged(before: Mapping[str, Any], change: PlannerChange) -> dict[str, Any]:
    """What is set then, as it fits into JSON."""
    after = dict(before)
    for part in PARTS:
        value = getattr(change, part)
        if value is None:
            continue
        value = plain_part(part, value)
        if part == "guards":
            value = {name: each for name, each in {**before["guards"], **value}.items() if each is not None}
        after[part] = value
    return after


def plain_part(part: str, value: Any) -> Any:
    """One part of a PlannerChange as it is stored. Raises WrongShape for spans and peaks that are none."""
    if part == "guards":
        return {**value, **{name: _known(Span, value[name]) for name in SPANS if isinstance(value.get(name), list | tuple)}}
    if part == "peaks":
        return _known(Peak, value)
    if part in ("kinds", "degrees"):
        return {role: list(dict.fromkeys(each)) for role, each in value.items() if each}
    if isinstance(value, Mapping):
        return dict(value)
    return value if isinstance(value, str | int) else list(value)


def _known(kind: type[Span] | type[Peak], spans: Sequence[Any]) -> Any:
    """Without what nobody reads."""
    return [encode(decode(kind, each)) for each in spans]


def _wrong(change: PlannerChange) -> Iterator[str]:
    if change.level is not None and change.level not in Level.values:
        yield f"level {change.level!r:.40}: one of {', '.join(Level.values)}"
    if change.priority is not None and not (_whole(change.priority) and abs(change.priority) <= MAX_PRIORITY):
        yield f"priority: a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}"
    for mode in change.modes or ():
        if mode not in models.Mode.values:
            yield f"mode {mode!r:.40}: one of {', '.join(models.Mode.values)}"
    for what, sizes in (("floors", change.floors), ("ceilings", change.ceilings)):
        for role, engines in (sizes or {}).items():
            if role not in models.Role.values:
                yield f"{what}: there is no pool {role!r:.40}; pools: {', '.join(models.Role.values)}"
            elif not (_whole(engines) and 1 <= engines <= MAX_ENGINES):
                yield f"{what}: pool {role}: 1 to {MAX_ENGINES} engines, not {engines!r:.20}"
    yield from _wrong_hardware("kinds", change.kinds or {}, tuple(GPUS))
    yield from _wrong_hardware("degrees", change.degrees or {}, range(1, MAX_TENSOR_PARALLEL + 1))
    yield from _wrong_guards(change.guards or {})
    yield from _wrong_spans("peaks", change.peaks or (), Peak)


def _wrong_hardware(what: str, wanted: Mapping[str, Any], offered: Sequence[str] | range) -> Iterator[str]:
    known = f"1 to {offered[-1]}" if isinstance(offered, range) else ", ".join(offered)
    for role, found in wanted.items():
        if role not in models.Role.values:
            yield f"{what}: there is no pool {role!r:.40}; pools: {', '.join(models.Role.values)}"
        elif not isinstance(found, list | tuple):
            yield f"{what}: pool {role}: a list of {known}"
        else:
            wrong = [each for each in found if isinstance(each, bool | float) or each not in offered]
            yield from (f"{what}: pool {role}: {each!r:.40}: one of {known}" for each in wrong[:1])


def _wrong_guards(guards: Mapping[str, Any]) -> Iterator[str]:
    known = {field.name for field in fields(Guards)}
    for name, value in guards.items():
        if name not in known:
            yield f"there is no guard {name!r:.40}; guards: {', '.join(sorted(known))}"
        elif value is None:
            continue
        elif name in SPANS:
            yield from _wrong_spans(name, value, Span)
        elif name in RANGES:
            low, high = RANGES[name]
            if not (_number(value) and low <= value <= high):
                yield f"{name}: {low:g} to {high:g}, not {value!r:.20}"
        elif not isinstance(value, bool):
            yield f"{name}: true or false"


def _wrong_spans(name: str, spans: Any, kind: type[Span] | type[Peak]) -> Iterator[str]:
    if not isinstance(spans, list | tuple):
        yield f"{name}: a list"
        return
    if len(spans) > MAX_SPANS:
        yield f"{name}: at most {MAX_SPANS}"
        return
    for index, each in enumerate(spans):
        try:
            found: Span | Peak = decode(kind, each, f"{name}[{index}]")
        except WrongShape as wrong:
            yield str(wrong)
            continue
        yield from (f"{name}[{index}]: {why}" for why in _wrong_span(found))


def _wrong_span(span: Span | Peak) -> Iterator[str]:
    times = (span.since_s, span.until_s)
    if not all(map(math.isfinite, times)):
        yield "since_s and until_s are seconds"
    elif span.daily and not all(0 <= each <= DAY_S for each in times):
        yield f"of every day: seconds from 0 to {DAY_S:g}"
    elif span.since_s == span.until_s or (not span.daily and span.since_s > span.until_s):
        yield "until_s must be later than since_s"
    if len(span.why) > MAX_WHY or storable_text(span.why) != span.why:
        yield f"why: at most {MAX_WHY} characters of plain text"
    if isinstance(span, Peak) and not 0 < span.rate <= MAX_RATE:
        yield f"rate: more than 0 and at most {MAX_RATE:g} requests/s"


def _wrong_together(after: Mapping[str, Any]) -> Iterator[str]:
    for role, ceiling in after["ceilings"].items():
        if after["floors"].get(role, 1) > ceiling:
            yield f"pool {role}: its floor {after['floors'][role]} is above its ceiling {ceiling}"
    try:
        decode(Guards, after["guards"], "guards")
    except WrongShape as wrong:
        yield str(wrong)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
