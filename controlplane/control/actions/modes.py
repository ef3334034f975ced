"""How a model is served: by mixed engines, or by prefill and decode engines, always or when it pays."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from django.db import transaction

from controlplane.control.actions.change import NewStep, begin
from controlplane.control.actions.sizes import main_pools, resize, size_problems, size_steps, split_over, too_small
from controlplane.control.actor import Actor
from controlplane.control.refused import Refused, refuse_all
from controlplane.core.protocol import ROLES_OF_MODE, Mode
from controlplane.fleet import models

MAX_THRESHOLD_TOKENS = 1 << 24


def set_mode(
    actor: Actor,
    name: str,
    mode: str,
    *,
    split: Mapping[str, int] | None = None,
    min_uncached_tokens: int | None = None,
    min_uncached_ratio: float | None = None,
    reason: str = "",
    expected_version: int | None = None,
) -> models.Operation:
    """Serve a model in another mode, or in the same one with other thresholds (of mode conditional).

    `split`: engines by role of the new mode; without it the engines there are, in the proportion the pools had before, or
    a third of them for prefill. The routing table follows once engines are ready and verified for that mode.
    """
    refuse_all("invalid", _wrong(mode, min_uncached_tokens, min_uncached_ratio))
    with transaction.atomic():
        change = begin(actor, "set_mode", name, reason=reason, expected_version=expected_version)
        model, pools = change.model, main_pools(change.model)
        if canary := model.canaries.filter(ended_at=None).first():
            raise Refused("busy", f"canary {canary.pk} of {name} runs: promote or end it first")
        sizes = {role: pool.desired_engines for role, pool in pools.items()}
        target = _target(mode, split, sizes)
        roles = ROLES_OF_MODE[mode]
        refuse_all("invalid", size_problems(target, roles))
        refuse_all("unsafe", too_small(model, mode, target, {role: pool.floor for role, pool in pools.items()}))
        resize(model, dict.fromkeys(pools, 0) | target)
        refuse_all("invalid", cannot_hand_off(model, mode))
        fields: dict[str, Any] = {"mode": mode}
        if min_uncached_tokens is not None:
            fields["conditional_min_uncached_tokens"] = min_uncached_tokens
        if min_uncached_ratio is not None:
            fields["conditional_min_uncached_ratio"] = float(min_uncached_ratio)
        models.Model.objects.filter(pk=model.pk).update(**fields)
        steps = size_steps(change)
        if model.served_mode != mode:
            steps.append(NewStep("switch"))
        return change.record(steps, done=not steps)


def _wrong(mode: str, tokens: Any, ratio: Any) -> Iterator[str]:
    if mode not in get_args(Mode):
        yield f"mode {mode!r:.40}: one of {', '.join(get_args(Mode))}"
    elif (tokens is not None or ratio is not None) and mode != "conditional":
        yield f"thresholds belong to mode conditional, not {mode}"
    if tokens is not None and (type(tokens) is not int or not 0 <= tokens <= MAX_THRESHOLD_TOKENS):
        yield f"min_uncached_tokens: a whole number from 0 to {MAX_THRESHOLD_TOKENS}, not {tokens!r:.20}"
    number = isinstance(ratio, int | float) and not isinstance(ratio, bool) and math.isfinite(ratio)
    if ratio is not None and not (number and 0 <= ratio <= 1):
        yield f"min_uncached_ratio: a number from 0 to 1, not {ratio!r:.20}"


def _target(mode: str, split: Mapping[str, int] | None, sizes: Mapping[str, int]) -> dict[str, int]:
    if split is not None:
        return dict(split)
    if all(sizes.get(role) for role in ROLES_OF_MODE[mode]) and not any(
        engines for role, engines in sizes.items() if role not in ROLES_OF_MODE[mode]
    ):
        return {role: sizes[role] for role in ROLES_OF_MODE[mode]}
    return split_over(mode, sum(sizes.values()), sizes)


def cannot_hand_off(model: models.Model, mode: str) -> Iterator[str]:
    """Why engines of `model` could not hand KV over as `mode` needs it."""
    if mode == "monolithic":
        return
    if model.connector == "none":
        yield f"mode {mode} hands KV over, and {model.name} has no connector: register it with nixl or example"
    degrees = sorted(set(model.pools.filter(desired_engines__gt=0).values_list("tensor_parallel", flat=True)))
    if degrees and any(large % small for small in degrees for large in degrees if large > small):
        known = ", ".join(map(str, degrees))
        yield f"KV cannot be handed over between tensor-parallel degrees {known}: one must divide the other"
    ready = Counter(model.engines.filter(wanted=True, state="ready").values_list("compat", flat=True))
    alone = [compat for compat, engines in ready.items() if engines == 1]
    if len(ready) > 1 and alone:
        yield (
            f"{len(alone)} engines of {model.name} differ from all others in version, dtype, block size or connector: "
            "roll_out makes them alike"
        )
