"""What every action shares: the model's row locked and the rules checked, then operation, steps and audit in one place.

Verbs of steps, as `core.progress` moves them along: `start` and `stop` (one engine of the pool), `retask` (an engine has
become a member of the pool without a restart), `switch` (the routing table has the mode that is desired), `hold` and
`release` (an engine is out of the table and quiet; is back in it), `replace` (one engine of the pool is of the newest
launch). `engine` is empty until the loop has chosen one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from controlplane.control import commands
from controlplane.control.actor import VERBS, Actor, may
from controlplane.control.desire import Desire, changes, desire_of
from controlplane.control.refused import Refused
from controlplane.core.lifecycle import ENDED
from controlplane.core.secretwords import hide
from controlplane.core.storable import shows_nothing, storable_text
from controlplane.fleet import models

MAX_REASON = 500


@dataclass(frozen=True)
class NewStep:
    verb: str
    role: str = ""
    engine: str = ""
    arm: str = models.MAIN


@dataclass(frozen=True)
class Change:
    """A change of one model that its rules allow, not written yet. `old`: what was desired before."""

    actor: Actor
    verb: str
    model: models.Model
    reason: str
    old: Desire

    def record(
        self,
        steps: Sequence[NewStep] = (),
        *,
        subject: str = "",
        done: bool = False,
        undoes: models.Operation | None = None,
        was: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> models.Operation:
        """The operation, with what is desired otherwise than before as `before` and `after`. `done`: nothing is left for
        the loop to do. `was` is kept in `before` and `more` in `after`."""
        before, after = changes(self.old, desire_of(self.model))
        return record_change(
            self.verb,
            self.actor,
            self.reason,
            subject or f"model:{self.model.name}",
            model=self.model,
            before=before | dict(was or {}),
            after=after | more,
            steps=steps,
            done=done,
            undoes=undoes,
        )


def begin(
    actor: Actor,
    verb: str,
    name: str,
    *,
    reason: str = "",
    expected_version: int | None = None,
    supersedes: Sequence[models.Operation] = (),
) -> Change:
    """Lock the model's row until the transaction ends and check the rules of `verb`. Raises Refused."""
    model = lock_model(name)
    forbid(actor, verb, model.team, model.name)
    rule = VERBS[verb]
    if rule.alone:
        _refuse_busy(model, supersedes)
    if expected_version is not None and expected_version != model.version:
        raise Refused(
            "stale", f"{name} has changed since you read it (version {expected_version}, now {model.version}): look again"
        )
    if rule.frozen:
        refuse_frozen(model)
    return Change(actor, verb, model, reason, desire_of(model))


def forbid(actor: Actor, verb: str, team: str = "", model: str = "") -> None:
    """Raises Refused, kind forbidden, unless `actor` may (`control.actor.may`)."""
    why_not = may(actor, verb, team, model)
    if why_not:
        raise Refused("forbidden", why_not)


def lock_model(name: str) -> models.Model:
    """The model's row, locked: actions on one model come one after the other."""
    model = models.Model.objects.select_for_update().filter(name=storable_text(name)).first()
    if model is None:
        known = ", ".join(models.Model.objects.values_list("name", flat=True)[:20])
        raise Refused("not_found", f"there is no model {name!r:.140}; models: {known or 'none'}")
    return model


def lock_models(*names: str) -> None:
    """The rows of several models, always in the same order: who wants the same two waits, and never for each other."""
    known = [storable_text(name) for name in names]
    list(models.Model.objects.select_for_update().filter(name__in=known).order_by("pk"))


def link(*operations: models.Operation) -> None:
    """Let two operations know each other: GPUs go from one's model to the other's."""
    for one, two in permutations(operations, 2):
        link_to(one, "partner", two.pk)


def link_to(operation: models.Operation, what: str, number: int) -> None:
    """Let an operation know what it belongs to."""
    operation.after = operation.after | {what: number}
    operation.save(update_fields=["after"])


def open_operations(model: models.Model) -> list[models.Operation]:
    """What runs on this model now, oldest first."""
    return list(model.operations.exclude(state__in=ENDED).order_by("pk"))


def _refuse_busy(model: models.Model, supersedes: Sequence[models.Operation]) -> None:
    others = [each for each in open_operations(model) if each not in supersedes]
    if others:
        reasons = (
            f"operation {each.pk} ({each.verb}) of {each.actor} still runs on {model.name}: wait for it, or cancel it"
            for each in others
        )
        raise Refused("busy", *reasons, operation=others[0].pk)


def refuse_frozen(model: models.Model) -> None:
    """Raises Refused, kind frozen, while changes of this model are forbidden."""
    if model.frozen_until is not None and model.frozen_until > timezone.now():
        why = f" ({model.frozen_reason})" if model.frozen_reason else ""
        raise Refused(
            "frozen", f"{model.name} is frozen until {model.frozen_until:%Y-%m-%d %H:%M} UTC{why}: unfreeze it first"
        )


def record_change(
    verb: str,
    actor: Actor,
    reason: str,
    subject: str,
    *,
    model: models.Model | None = None,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    steps: Sequence[NewStep] = (),
    done: bool = False,
    undoes: models.Operation | None = None,
) -> models.Operation:
    """The operation with its steps and the audit entry, in the caller's transaction; the model's version rises, and the
    loop is woken on commit."""
    name, text = _told(actor, reason)
    both = {"before": before or {}, "after": after or {}}
    ended = {"state": "done", "outcome": "nothing further to do", "finished_at": timezone.now()} if done else {}
    operation = models.Operation.objects.create(
        verb=verb, model=model, actor=name, reason=text, undoes=undoes, **both, **ended
    )
    models.Step.objects.bulk_create(
        models.Step(operation=operation, index=index, verb=step.verb, role=step.role, engine=step.engine, arm=step.arm)
        for index, step in enumerate(steps)
    )
    record_audit(verb, actor, reason, subject, operation, **both)
    if model is not None:
        models.Model.objects.filter(pk=model.pk).update(version=F("version") + 1)
    return operation


def record_audit(
    verb: str,
    actor: Actor,
    reason: str,
    subject: str,
    operation: models.Operation,
    before: dict[str, Any],
    after: dict[str, Any],
) -> None:
    """Who did what to an operation and why; the loop is woken on commit."""
    name, text = _told(actor, reason)
    models.AuditEntry.objects.create(
        actor=name,
        verb=verb,
        subject=hide(subject)[:255],
        reason=text,
        operation=operation,
        before=hide(before),
        after=hide(after),
    )
    transaction.on_commit(commands.wake)


def _told(actor: Actor, reason: str) -> tuple[str, str]:
    """Name and reason as PostgreSQL takes them, without secrets that somebody pasted."""
    name, text = storable_text(actor.name), hide(storable_text(reason))
    if text and shows_nothing(text):
        raise Refused("invalid", "reason: there is nothing in it that a reader could see")
    if len(text) > MAX_REASON:
        raise Refused("invalid", f"reason: at most {MAX_REASON} characters, not {len(text)}")
    return name[:150], text
