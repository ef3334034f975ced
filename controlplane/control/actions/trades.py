"""GPUs that go from one model to another when both change their pools at once."""

from __future__ import annotations

from collections.abc import Mapping

from django.db import transaction

from controlplane.control.actions.change import Change, begin, link, lock_models
from controlplane.control.actions.sizes import leaving_engines, main_pools, resize, size_problems, size_steps, too_small
from controlplane.control.actor import Actor
from controlplane.control.refused import refuse_all
from controlplane.fleet import models


def trade_gpus(
    actor: Actor, giver: str, less: Mapping[str, int], taker: str, more: Mapping[str, int], *, reason: str = ""
) -> tuple[models.Operation, models.Operation]:
    """Give pools of `giver` the sizes `less` and those of `taker` the sizes `more` (engines by role), which may use the GPUs
    that `giver` gives up. As `move_gpus` between two models, but of several pools: the operations of both, which know each
    other."""
    with transaction.atomic():
        lock_models(giver, taker)
        change = begin(actor, "move_gpus", giver, reason=reason)
        gain = begin(actor, "move_gpus", taker, reason=reason)
        for one, sizes in ((change, less), (gain, more)):
            _resize(one, sizes)
        leaving = leaving_engines(change.model)
        gives = change.record(size_steps(change))
        gets = gain.record(size_steps(gain, freed=leaving))
        link(gives, gets)
        return gives, gets


def _resize(change: Change, sizes: Mapping[str, int]) -> None:
    pools = main_pools(change.model)
    refuse_all("invalid", size_problems(sizes, pools))
    target = {role: pool.desired_engines for role, pool in pools.items()} | dict(sizes)
    floors = {role: pool.floor for role, pool in pools.items()}
    refuse_all("unsafe", too_small(change.model, change.model.mode, target, floors))
    resize(change.model, sizes)
