"""Writes what a look of the planner came to: proposals made, seen again or void, and why models were left alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from django.db import transaction

from controlplane.control.actions.sizes import main_pools
from controlplane.control.models import Level, PlannerHold, Proposal, ProposalState
from controlplane.control.planning.gather import setting_of
from controlplane.control.planning.history import PLANNER
from controlplane.control.planning.plain import moment, plain
from controlplane.core.planner import FleetNow, Hold
from controlplane.core.planner import Proposal as Proposed
from controlplane.core.proposals import Rejection, Review, Standing, Void, key_of
from controlplane.core.protocol import ROLES_OF_MODE
from controlplane.core.storable import storable_text
from controlplane.fleet import models

GOES_ON = timedelta(minutes=10)
"""A hold that was not seen for so long is another one when it comes again."""
KEPT = timedelta(days=30)
"""Holds, and proposals that nobody decided on."""
UNDECIDED = (ProposalState.EXPIRED, ProposalState.SUPERSEDED)


def standing() -> list[Standing]:
    """Open proposals."""
    rows = Proposal.objects.filter(state=ProposalState.OPEN).select_related("model").order_by("pk")
    return [Standing(row.pk, row.model.name, row.key, row.expires_at.timestamp()) for row in rows]


def rejections(fleet: FleetNow, now_s: float) -> list[Rejection]:
    """Those that still hold the planner back: for as long as it keeps what a person changed."""
    kept_s = {each.name: each.guards.manual_s for each in fleet.models}
    since = moment(now_s - max(kept_s.values(), default=0.0))
    rows = Proposal.objects.filter(state=ProposalState.REJECTED, decided_at__gte=since).select_related("model")
    return [
        Rejection(
            row.model.name,
            row.key,
            row.decided_by,
            row.decision,
            row.decided_at.timestamp() + kept_s.get(row.model.name, 0.0),
        )
        for row in rows
        if row.decided_at is not None
    ]


def overtaken() -> list[Void]:
    """Open proposals whose model is not any more what they were made for."""
    rows = Proposal.objects.filter(state=ProposalState.OPEN).select_related("model").order_by("pk")
    return [Void(row.pk, "superseded", "The model was changed meanwhile.") for row in rows if not _as_made_for(row)]


def end(void: Iterable[Void], now_s: float) -> None:
    """Proposals that nobody decided on. Where somebody was asked to, the audit tells that nobody did."""
    for each in void:
        with transaction.atomic():
            row = Proposal.objects.select_for_update().filter(pk=each.number, state=ProposalState.OPEN).first()
            if row is None:
                continue  # decided meanwhile
            row.state, row.decided_at, row.decided_by = ProposalState(each.ending), moment(now_s), PLANNER
            row.decision = storable_text(each.why)[:500]
            row.save(update_fields=["state", "decided_at", "decided_by", "decision"])
            if each.ending == "expired" and row.level != Level.ADVISE:
                models.AuditEntry.objects.create(
                    actor=PLANNER,
                    verb="expire_proposal",
                    subject=f"proposal:{row.pk}",
                    reason=row.decision,
                    before={"state": "open"},
                    after={"state": row.state, "title": row.title},
                )


def write(review: Review, now_s: float) -> None:
    """All of one look, row by row: nobody who locks a model to decide on its proposal may wait for us while we wait for
    them. What a process that dies leaves out, the next look writes."""
    by_name = {row.name: row for row in models.Model.objects.all()}
    end(review.void, now_s)
    for number, proposed in review.seen:
        if proposed.model in by_name:
            _see(number, proposed, by_name[proposed.model], now_s)
    for proposed in review.made:
        if proposed.model in by_name:
            _make(proposed, by_name, now_s)
    for hold in review.holds:
        if hold.model in by_name:
            _hold(hold, by_name[hold.model], now_s)
    PlannerHold.objects.filter(seen_at__lt=moment(now_s) - KEPT).delete()
    Proposal.objects.filter(state__in=UNDECIDED, decided_at__lt=moment(now_s) - KEPT).delete()


def _as_made_for(row: Proposal) -> bool:
    pools = main_pools(row.model)
    now = {role: pools[role].desired_engines if role in pools else 0 for role in ROLES_OF_MODE[row.model.mode]}
    return row.model.mode == row.mode_before and now == {pool["role"]: pool["engines"] for pool in row.before}


def _figures(proposed: Proposed, now_s: float) -> dict[str, Any]:
    """What each look makes anew."""
    return {
        "reasons": [storable_text(each) for each in proposed.reasons],
        "alternatives": plain(proposed.alternatives),
        "inputs": plain(proposed.inputs),
        "present": plain(proposed.now),
        "predicted": plain(proposed.then),
        "seen_at": moment(now_s),
    }


def _see(number: int, proposed: Proposed, model: models.Model, now_s: float) -> None:
    """The same change again. Advice lasts as long as it is given; what somebody is asked for keeps its time."""
    level = setting_of(model).level
    more: dict[str, Any] = {"expires_at": moment(proposed.expires_at_s)} if level == Level.ADVISE else {}
    row = Proposal.objects.filter(pk=number, state=ProposalState.OPEN)
    row.update(level=level, **_figures(proposed, now_s), **more)


def _make(proposed: Proposed, by_name: Mapping[str, models.Model], now_s: float) -> None:
    model = by_name[proposed.model]
    lents = (*proposed.takes, *proposed.gives_back)
    if Proposal.objects.filter(model=model, state=ProposalState.OPEN).exists():
        return
    Proposal.objects.create(
        model=model,
        key=key_of(proposed),
        level=setting_of(model).level,
        cause=proposed.cause,
        title=proposed.title[:500],
        mode_before=proposed.mode_before,
        mode=proposed.mode,
        before=plain(proposed.before),
        pools=plain(proposed.pools),
        moves=proposed.moves,
        giver=by_name.get(lents[0].giver) if lents else None,
        trade=_trade(proposed) if lents else {},
        created_at=moment(now_s),
        expires_at=moment(proposed.expires_at_s),
        **_figures(proposed, now_s),
    )


def _trade(proposed: Proposed) -> dict[str, Any]:
    return {
        name: plain(getattr(proposed, name)) for name in ("takes", "gives_back", "giver_now", "giver_then", "giver_pools")
    }


def _hold(hold: Hold, model: models.Model, now_s: float) -> None:
    now = moment(now_s)
    told = {
        "reason": storable_text(hold.reason)[:500],
        "seen_at": now,
        "present": plain(hold.now),
        "inputs": plain(hold.inputs),
    }
    newest = PlannerHold.objects.filter(model=model).first()
    if newest is not None and newest.code == hold.code and now - newest.seen_at < GOES_ON:
        PlannerHold.objects.filter(pk=newest.pk).update(**told)
    else:
        PlannerHold.objects.create(model=model, code=hold.code, since=now, **told)
