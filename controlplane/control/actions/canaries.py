"""Trials of another mode on a part of a model's sessions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, get_args

from django.db import transaction
from django.utils import timezone

from controlplane.control.actions.change import Change, NewStep, begin
from controlplane.control.actions.modes import cannot_hand_off
from controlplane.control.actions.sizes import main_pools, resize, size_problems, size_steps, split_over
from controlplane.control.actor import Actor
from controlplane.control.refused import Refused, refuse_all
from controlplane.core.canary import Guardrails
from controlplane.core.lifecycle import CANARY, move
from controlplane.core.protocol import ROLES_OF_MODE, Mode
from controlplane.core.storable import storable_text
from controlplane.fleet import models

SHARED_MODES = frozenset({"conditional", "disaggregated"})
DEFAULT_SHARE = 0.1
"""Of sessions, on shared engines; an arm of its own has the share of its engines."""


def set_canary(
    actor: Actor,
    name: str,
    mode: str,
    *,
    engines: Mapping[str, int] | None = None,
    share: float | None = None,
    shared: bool = False,
    steps: Sequence[float] = (),
    guardrails: Mapping[str, Any] | None = None,
    reason: str = "",
    expected_version: int | None = None,
) -> models.Operation:
    """Begin a trial of `mode`.

    `engines`: by role, taken from the main pools; the fewest that the mode needs if not given. `share` of sessions, at most
    the part of all engines that the arm has, which is what it gets if not given. `shared`: no engines of its own, only
    between conditional and disaggregated. `steps`: rising shares that follow while the verdict is good; after the last
    one the mode is the model's.
    """
    refuse_all("invalid", _wrong(mode, engines, share, shared, steps))
    with transaction.atomic():
        change = begin(actor, "set_canary", name, reason=reason, expected_version=expected_version)
        model = change.model
        if running := running_canary(model):
            raise Refused("busy", f"canary {running.pk} of {name} runs: promote or end it first")
        refuse_all("invalid", unfit(model, mode, shared))
        part = _give_engines(model, mode, engines) if not shared else 1.0
        wanted = share if share is not None else min(part, DEFAULT_SHARE) if shared else part
        if wanted > part:
            problem = f"share {wanted:g} is more than the arm's part of the engines, {part:.2f}"
            raise Refused("invalid", f"{problem}: give it more engines")
        canary = models.Canary.objects.create(
            model=model, mode=mode, shared=shared, share=wanted, steps=list(steps), guardrails=_guardrails(guardrails or {})
        )
        found = size_steps(change)
        operation = change.record(found, done=not found)
        models.Canary.objects.filter(pk=canary.pk).update(operation=operation)
        return operation


def promote_canary(
    actor: Actor, name: str, *, fully: bool = False, reason: str = "", expected_version: int | None = None
) -> models.Operation:
    """Go on to the next share of the running canary; after its last step, or `fully` at once, its mode is the model's and
    its engines join the others."""
    with transaction.atomic():
        change = begin(actor, "promote_canary", name, reason=reason, expected_version=expected_version)
        canary = _running(change)
        if canary.steps and not fully:
            return _next_step(change, canary)
        model = change.model
        sizes, arm = _sizes(model, models.MAIN), _sizes(model, models.CANARY)
        both = Counter(sizes) + Counter(arm)
        like = both if ROLES_OF_MODE[canary.mode] == ROLES_OF_MODE[model.mode] else arm
        resize(model, dict.fromkeys(arm, 0), models.CANARY)
        resize(model, dict.fromkeys(sizes, 0) | split_over(canary.mode, both.total(), like))
        models.Model.objects.filter(pk=model.pk).update(mode=canary.mode)
        _end(canary, "promoted", reason or f"promoted by {actor.name}")
        steps = size_steps(change)
        if model.served_mode != canary.mode:
            steps.append(NewStep("switch"))
        return change.record(steps, done=not steps)


def end_canary(
    actor: Actor,
    name: str,
    *,
    outcome: Literal["rolled_back", "cancelled"] = "cancelled",
    reason: str = "",
    expected_version: int | None = None,
) -> models.Operation:
    """End the running canary without its mode; its engines go back. `outcome` rolled_back: because of its verdict."""
    with transaction.atomic():
        change = begin(actor, "end_canary", name, reason=reason, expected_version=expected_version)
        canary = _running(change)
        _take_engines_back(change.model, canary)
        _end(canary, outcome, reason or f"ended by {actor.name}")
        steps = size_steps(change)
        return change.record(steps, done=not steps)


def update_canary(
    actor: Actor, name: str, guardrails: Mapping[str, Any], *, reason: str = "", expected_version: int | None = None
) -> models.Operation:
    """Give the running canary other guardrails; those that are not named stay."""
    with transaction.atomic():
        change = begin(actor, "update_canary", name, reason=reason, expected_version=expected_version)
        canary = _running(change)
        new = _guardrails(canary.guardrails | dict(guardrails))
        models.Canary.objects.filter(pk=canary.pk).update(guardrails=new)
        return change.record(done=True, was={"guardrails": canary.guardrails}, guardrails=new)


def _guardrails(given: Mapping[str, Any]) -> dict[str, Any]:
    try:
        Guardrails.read(given)
    except ValueError as error:
        raise Refused("invalid", str(error)) from error
    return dict(given)


def running_canary(model: models.Model) -> models.Canary | None:
    return model.canaries.filter(ended_at=None).first()


def _running(change: Change) -> models.Canary:
    canary = running_canary(change.model)
    if canary is None:
        raise Refused("not_found", f"no canary of {change.model.name} runs")
    return canary


def _end(canary: models.Canary, state: str, reason: str) -> None:
    models.Canary.objects.filter(pk=canary.pk).update(
        state=move(CANARY, canary.state, state), ended_at=timezone.now(), reason=storable_text(reason)[:500]
    )


def _next_step(change: Change, canary: models.Canary) -> models.Operation:
    share, *later = canary.steps
    model, steps = change.model, []
    if not canary.shared:
        _take_engines_back(model, canary)
        total = sum(_sizes(model, models.MAIN).values())
        engines = max(len(ROLES_OF_MODE[canary.mode]), round(share * total))
        share = min(share, _give_engines(model, canary.mode, split_over(canary.mode, engines, _sizes(model, models.CANARY))))
        steps = size_steps(change)
    models.Canary.objects.filter(pk=canary.pk).update(share=share, steps=later, step_since=timezone.now())
    return change.record(steps, done=not steps, was={"share": canary.share}, share=share)


def _wrong(mode: str, engines: Mapping[str, int] | None, share: Any, shared: Any, steps: Any) -> Iterator[str]:
    if mode not in get_args(Mode):
        yield f"mode {mode!r:.40}: one of {', '.join(get_args(Mode))}"
    elif engines is not None:
        if shared:
            yield "a canary on shared engines has none of its own: leave out either"
        yield from size_problems(engines, ROLES_OF_MODE[mode])
        if any(not engines.get(role) for role in ROLES_OF_MODE[mode]):
            yield f"a canary of mode {mode} needs at least one engine in each of {', '.join(ROLES_OF_MODE[mode])}"
    if not isinstance(shared, bool):
        yield f"shared: true or false, not {shared!r:.20}"
    if not isinstance(steps, list | tuple):
        yield f"steps: a list of shares, not {steps!r:.20}"
        return
    shares = [*([] if share is None else [share]), *steps]
    if not all(type(each) in (int, float) and math.isfinite(each) and 0 < each <= 1 for each in shares):
        yield "shares: more than 0, at most 1"
    elif any(one >= two for one, two in pairwise(shares)):
        yield "steps: shares that rise, each more than the one before"


def unfit(model: models.Model, mode: str, shared: bool) -> Iterator[str]:
    """Why `mode` cannot be tried on `model` as it is."""
    if mode == model.mode:
        yield f"{model.name} is {mode} already: a canary tries another mode"
    if shared and {mode, model.mode} != SHARED_MODES:
        yield f"on shared engines only conditional is tried against disaggregated, not {mode} against {model.mode}"
    yield from cannot_hand_off(model, mode)


def _sizes(model: models.Model, arm: str) -> dict[str, int]:
    return dict(models.Pool.objects.filter(model=model, arm=arm).values_list("role", "desired_engines"))


def _give_engines(model: models.Model, mode: str, engines: Mapping[str, int] | None) -> float:
    """Take the arm's engines from the main pools, from the one with most to spare first. Returns the arm's part of all."""
    wanted = dict(engines or dict.fromkeys(ROLES_OF_MODE[mode], 1))
    pools, sizes = main_pools(model), _sizes(model, models.MAIN)
    total = sum(sizes.values())
    serving = ROLES_OF_MODE[model.mode]
    keep = {role: max(1, pools[role].floor) if role in serving else 0 for role in pools}
    for _ in range(sum(wanted.values())):
        role = max(pools, key=lambda each: sizes[each] - keep[each])
        if sizes[role] <= keep[role]:
            needed = sum(wanted.values())
            reason = f"the canary needs {needed} engines, and the main pools must keep {sum(keep.values())} of their {total}"
            raise Refused("unsafe", f"{reason}: scale them up first")
        sizes[role] -= 1
    resize(model, sizes)
    resize(model, wanted, models.CANARY)
    return sum(wanted.values()) / total


def _take_engines_back(model: models.Model, canary: models.Canary) -> None:
    """The main pools as they were before the canary if they have been let alone, else in the proportion they have."""
    arm, sizes = _sizes(model, models.CANARY), _sizes(model, models.MAIN)
    total = sum(arm.values()) + sum(sizes.values())
    before = canary.operation.before.get("pools", {}) if canary.operation else {}
    old = sizes | {role: engines for role, engines in before.items() if role in sizes}
    resize(model, dict.fromkeys(arm, 0), models.CANARY)
    resize(model, old if sum(old.values()) == total else sizes | split_over(model.mode, total, sizes))
