"""What people, or the planner itself, decide on proposals. Carried out by the actions that people use too, in the same
transaction as the decision, so that no process that dies leaves one without the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.db import transaction
from django.utils import timezone

from controlplane.control.actions.change import forbid, link_to, lock_models, record_audit, record_change
from controlplane.control.actions.modes import set_mode
from controlplane.control.actions.pools import rebalance
from controlplane.control.actions.sizes import main_pools
from controlplane.control.actions.trades import trade_gpus
from controlplane.control.actor import Actor
from controlplane.control.models import Level, PlannerSetting, Proposal, ProposalState
from controlplane.control.planning.history import FOR_PROPOSAL
from controlplane.control.refused import Refused, refuse_all
from controlplane.core.protocol import ROLES_OF_MODE
from controlplane.core.storable import shows_nothing, storable_text
from controlplane.fleet import models


def approve_proposal(actor: Actor, number: int, *, reason: str = "") -> models.Operation:
    """Carry a proposal out as it was made. Refused, kind stale, if the model is not any more what it was made for. Returns
    the operation that does it."""
    with transaction.atomic():
        row = _open(actor, "approve_proposal", number)
        refuse_all("invalid", (*_only_advice(row), *_other_shapes(row)))
        found = _carry_out(actor, row, _why(row, reason))
        for operation in found:
            link_to(operation, FOR_PROPOSAL, row.pk)
        return _decided(actor, "approve_proposal", row, found[0], reason)


def modify_proposal(
    actor: Actor, number: int, sizes: Mapping[str, int], *, mode: str = "", reason: str = ""
) -> models.Operation:
    """Carry out other sizes (engines by role) or another mode instead of what was proposed. It counts as a change by hand:
    the planner adopts it. `mode` empty: the proposed one."""
    with transaction.atomic():
        row = _open(actor, "modify_proposal", number)
        if row.trade:
            raise Refused("invalid", "GPUs of two models move in this proposal: approve or reject it as it is")
        row.modified = {"mode": mode or row.mode, "pools": dict(sizes)}
        operation = _one_model(actor, row.model, row.modified["mode"], sizes, _why(row, reason))
        return _decided(actor, "modify_proposal", row, operation, reason)


def reject_proposal(actor: Actor, number: int, *, reason: str = "") -> models.Operation:
    """Say no, with a reason. The same change is not proposed again for as long as a change by hand is kept."""
    with transaction.atomic():
        row = _open(actor, "reject_proposal", number)
        if shows_nothing(reason):
            raise Refused("invalid", "a rejection needs a reason: whoever reads it must know why")
        after = {"state": "rejected", "title": row.title}
        operation = record_change(
            "reject_proposal", actor, reason, _subject(row), before={"state": "open"}, after=after, done=True
        )
        _close(actor, row, ProposalState.REJECTED, reason)
        return operation


def _open(actor: Actor, verb: str, number: int) -> Proposal:
    """The proposal, locked together with the models that it is about, in the order in which every action locks."""
    seen = Proposal.objects.select_related("model", "giver").filter(pk=number).first()
    if seen is None:
        raise Refused("not_found", f"there is no proposal {number}")
    forbid(actor, verb, seen.model.team, seen.model.name)
    lock_models(seen.model.name, *([seen.giver.name] if seen.giver else []))
    row = Proposal.objects.select_for_update(of=("self",)).select_related("model", "giver").filter(pk=number).first()
    if row is None:
        raise Refused("not_found", f"there is no proposal {number}")
    if row.state != ProposalState.OPEN:
        raise Refused("stale", f"proposal {number} is {row.state}: {row.decision or 'it was decided'}")
    if row.expires_at <= timezone.now():
        raise Refused("stale", f"proposal {number} was void at {row.expires_at:%H:%M} UTC: the planner will look again")
    return row


def _only_advice(row: Proposal) -> Iterator[str]:
    setting = PlannerSetting.objects.filter(model=row.model).first() or PlannerSetting(model=row.model)
    if setting.level in (Level.OFF, Level.ADVISE):
        level = "is off" if setting.level == Level.OFF else "only advises"
        yield f"the planner {level} for {row.model.name}: set its level to approve, or make the change yourself"


def _other_shapes(row: Proposal) -> Iterator[str]:
    """Pools whose engines would have other GPUs, or another number of them, and the commands that do it: engines are made
    anew for it, which nobody approves with a change of sizes."""
    was = {pool["role"]: pool for pool in row.before}
    other = next(iter(was.values()))
    name, sizes = row.model.name, " ".join(f"{pool['role']}={pool['engines']}" for pool in row.pools)
    for pool in row.pools:
        like = was.get(pool["role"], other)
        role, degree = pool["role"], pool["tensor_parallel"]
        if degree != like["tensor_parallel"]:
            yield (
                f"engines of pool {role} would have {degree} GPUs each instead of {like['tensor_parallel']}, which no pool "
                f"changes: offer the model under another name too (`manage.py register_model NAME --tp {degree} …`), move "
                f"its clients there, then `manage.py retire_model {name}`"
            )
        elif pool["gpu"] != like["gpu"]:
            yield (
                f"engines of pool {role} would have GPUs of kind {pool['gpu']} instead of {like['gpu']}: `manage.py "
                f"update_model {name} --gpu-kind {role}={pool['gpu']}`, then `manage.py roll_out {name}` replaces its "
                f"engines one after the other under traffic, then `manage.py rebalance {name} {sizes}`"
            )


def _carry_out(actor: Actor, row: Proposal, reason: str) -> list[models.Operation]:
    """The operation of the proposal's model, then the other model's."""
    _refuse_changed(row)
    if not row.trade:
        return [_one_model(actor, row.model, row.mode, row.sizes, reason)]
    if row.mode != row.mode_before:
        raise Refused("invalid", f"take {row.model.name} to mode {row.mode} first: GPUs move between models in one mode")
    if row.giver is None:
        raise Refused("not_found", "the other model of this proposal is gone")
    takes, gives_back = row.trade.get("takes", []), row.trade.get("gives_back", [])
    theirs = {role: pool.desired_engines for role, pool in main_pools(row.giver).items()}
    for sign, lents in ((-1, takes), (1, gives_back)):
        for lent in lents:
            theirs[lent["role"]] = theirs.get(lent["role"], 0) + sign * lent["engines"]
    changed = {lent["role"]: theirs[lent["role"]] for lent in (*takes, *gives_back)}
    if any(engines < 0 for engines in changed.values()):
        raise Refused("stale", f"{row.giver.name} has not the engines any more that it would give")
    if takes:
        other, own = trade_gpus(actor, row.giver.name, changed, row.model.name, row.sizes, reason=reason)
    else:
        own, other = trade_gpus(actor, row.model.name, row.sizes, row.giver.name, changed, reason=reason)
    return [own, other]


def _one_model(actor: Actor, model: models.Model, mode: str, sizes: Mapping[str, int], reason: str) -> models.Operation:
    if mode != model.mode:
        return set_mode(actor, model.name, mode, split=sizes, reason=reason)
    return rebalance(actor, model.name, sizes, reason=reason)


def _refuse_changed(row: Proposal) -> None:
    pools = main_pools(row.model)
    now = {role: pools[role].desired_engines if role in pools else 0 for role in ROLES_OF_MODE[row.model.mode]}
    then = {pool["role"]: pool["engines"] for pool in row.before}
    if row.model.mode != row.mode_before or now != then:
        raise Refused("stale", f"{row.model.name} has changed since proposal {row.pk} was made: the planner will look again")


def _decided(actor: Actor, verb: str, row: Proposal, operation: models.Operation, reason: str) -> models.Operation:
    row.operation = operation
    after: dict[str, Any] = {"state": "approved", "mode": row.modified.get("mode", row.mode), "pools": row.sizes}
    record_audit(verb, actor, reason, _subject(row), operation, {"state": "open"}, after)
    _close(actor, row, ProposalState.APPROVED, reason)
    return operation


def _close(actor: Actor, row: Proposal, state: ProposalState, reason: str) -> None:
    row.state, row.decided_at, row.hindrance = state, timezone.now(), ""
    row.decided_by, row.decision = storable_text(actor.name)[:150], storable_text(reason)[:500]
    row.save()


def _subject(row: Proposal) -> str:
    return f"proposal:{row.pk}"


def _why(row: Proposal, reason: str) -> str:
    """The operation's reason: the person's, else the planner's weightiest."""
    told = reason or next(iter(row.reasons), "")
    return f"proposal {row.pk}: {told}"[:500]
