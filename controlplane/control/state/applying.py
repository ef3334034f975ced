"""Applies a document: what differs is decided (core.threeway), asked of the actions in one transaction, and either all of it
is accepted or nothing is changed. The last document that was applied is kept, so that what somebody changed by hand since is
told and left alone.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from django.db import transaction

from controlplane.control.actions.change import forbid, lock_models, record_change
from controlplane.control.actions.registration import lock_names
from controlplane.control.actor import Actor
from controlplane.control.models import AppliedState
from controlplane.control.refused import Refused
from controlplane.control.state import document
from controlplane.control.state.making import make
from controlplane.core.storable import storable_text
from controlplane.core.threeway import Decision, Document, Drift, Edit, covers, decide
from controlplane.fleet import models

LARGE = frozenset({"config"})
"""Fields whose values a plan names by a digest."""
MAX_REASONS = 50


@dataclass(frozen=True)
class Done:
    """One edit and what it came to. `steps`: how many of each kind, by pool; `operation`: 0 in a plan."""

    edit: Edit
    operation: int
    steps: tuple[tuple[str, str, int], ...]


@dataclass(frozen=True)
class Applied:
    """`operation`: the whole; 0 in a plan, and where nothing was to be done."""

    done: tuple[Done, ...]
    drifts: tuple[Drift, ...]
    operation: int


def plan_state(actor: Actor, wanted: Document, *, force: bool = False, take: Collection[str] = ()) -> Applied:
    """What `apply_state` would do. Changes nothing; raises Refused as it would."""
    with transaction.atomic():
        found = apply_state(actor, wanted, force=force, take=take)
        transaction.set_rollback(True)
    return Applied(tuple(Done(each.edit, 0, each.steps) for each in found.done), found.drifts, 0)


def apply_state(
    actor: Actor, wanted: Document, *, force: bool = False, take: Collection[str] = (), reason: str = ""
) -> Applied:
    """Make the fleet's desired state what the document says. Of what was changed by hand since the last time only what
    `take` names (paths, as drift tells them) is overwritten, or with `force` all. Raises Refused, with every reason."""
    forbid(actor, "apply_state")
    with transaction.atomic():
        AppliedState.objects.bulk_create([AppliedState(pk=1)], ignore_conflicts=True)
        row = AppliedState.objects.select_for_update().get(pk=1)
        lock_names()
        lock_models(*wanted.get("models", {}))
        decision = decide(
            wanted, document.present(), row.document, lambda path: force or any(covers(each, path) for each in take)
        )
        done = _make_all(actor, decision, reason)
        operation = _keep(actor, row, decision, done, reason)
        return Applied(tuple(done), decision.drifts, operation)


def _make_all(actor: Actor, decision: Decision, reason: str) -> list[Done]:
    """Every edit in an order in which they can be; one that is refused is tried again after others that were not, because a
    name or a quota may have become free. Raises Refused."""
    waiting = sorted(decision.edits, key=_turn)
    made: dict[str, Done] = {}
    while waiting:
        refusals: list[tuple[Edit, Refused]] = []
        for edit in waiting:
            try:
                with transaction.atomic():
                    operation = make(actor, edit, reason)
            except Refused as refused:
                refusals.append((edit, refused))
            else:
                made[edit.path] = Done(edit, operation.pk, _steps(operation))
        if refusals and len(refusals) == len(waiting):
            _refuse(refusals)
        waiting = [edit for edit, _ in refusals]
    return [made[edit.path] for edit in decision.edits]


def _turn(edit: Edit) -> tuple[bool, int]:
    """Teams, models, rules; what is removed goes last and the other way round."""
    place = document.SECTIONS.index(edit.section)
    removed = edit.verb == "remove"
    return removed, -place if removed else place


def _refuse(refusals: list[tuple[Edit, Refused]]) -> None:
    first = refusals[0][1]
    reasons = [f"{edit.path}: {reason}" for edit, refused in refusals for reason in refused.reasons]
    more = [f"and {len(reasons) - MAX_REASONS} more"] if len(reasons) > MAX_REASONS else []
    raise Refused(first.kind, *reasons[:MAX_REASONS], *more, operation=first.operation)


def _steps(operation: models.Operation) -> tuple[tuple[str, str, int], ...]:
    found = Counter((step.verb, step.role) for step in operation.steps.all())
    return tuple((verb, role, count) for (verb, role), count in found.items())


def _keep(actor: Actor, row: AppliedState, decision: Decision, done: list[Done], reason: str) -> int:
    """Remember the document; the operation that says so, 0 if there is nothing new."""
    base = {section: items for section, items in decision.base.items() if items}
    if not done and row.document == base:
        return 0
    before = {"sha256": digest(row.document)} if row.document else {}
    row.document, row.actor = base, storable_text(actor.name)[:150]
    row.save()
    changed = [f"{each.edit.verb} {each.edit.path}" for each in done]
    after = {
        "sha256": digest(base),
        "changes": changed[:200],
        "operations": [each.operation for each in done][:200],
        "drift": [each.path for each in decision.drifts][:200],
    }
    return record_change("apply_state", actor, reason, "state:all", before=before, after=after, done=True).pk


def digest(value: Any) -> str:
    """SHA-256 of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def shown(applied: Applied) -> dict[str, Any]:
    """As the API and the command tell it."""
    return {
        "changes": [
            {
                "path": each.edit.path,
                "change": each.edit.verb,
                "fields": {
                    path: {"now": _short(path, now), "wanted": _short(path, wanted)}
                    for path, (now, wanted) in each.edit.fields.items()
                },
                "steps": [{"verb": verb, "role": role, "count": count} for verb, role, count in each.steps],
                "operation": each.operation or None,
            }
            for each in applied.done
        ],
        "drift": [
            {
                "path": each.path,
                "applied": _short(each.field, each.applied),
                "now": _short(each.field, each.now),
                "wanted": _short(each.field, each.wanted),
            }
            for each in applied.drifts
        ],
        "operation": applied.operation or None,
    }


def _short(path: str, value: Any) -> Any:
    return f"sha256:{digest(value)[:16]}" if path in LARGE and isinstance(value, Mapping) else value
