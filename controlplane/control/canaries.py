"""What running canaries have shown and what follows: from routers' reports to a verdict, and from it to the next step, the
promotion or the way back, by the system's own hand.

Everything needed is in rows, so any tick may die at any line. Sampling pauses while an operation of the model runs (engines
move, caches are cold), and starts anew a while after it: what began in between counts for neither arm.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import redis
from django.db import transaction
from django.utils import timezone

from controlplane.control import actions, canary_reports
from controlplane.control.actor import Actor
from controlplane.control.refused import Refused
from controlplane.core.canary import Guardrails, Progress, Verdict, decide
from controlplane.core.codec import decode, encode
from controlplane.core.lifecycle import ENDED
from controlplane.core.protocol import SessionSeen
from controlplane.core.signing import Secret
from controlplane.core.trial import Evidence
from controlplane.fleet import models

log = logging.getLogger(__name__)

SYSTEM = Actor.system("canary")


@dataclass(frozen=True)
class Sampling:
    """Canary.evidence: all that a verdict and the next reading need. Times are Unix seconds."""

    position: str = "0-0"
    """Of the routers' reports, how far they were read."""
    since: float | None = None
    """When nothing disturbed the model any more; None: something does."""
    step_since: float = 0.0
    """Of the step that `evidence` is about: Canary.step_since."""
    absent_since: float | None = None
    """Since when the routing table has not had the canary; None: it has."""
    evidence: Evidence = field(default_factory=Evidence)

    def moved_to(self, step_since: float) -> Sampling:
        """The canary has gone on to another step, perhaps by an operator's hand."""
        if not self.step_since or step_since == self.step_since:
            return replace(self, step_since=step_since)
        return replace(self, step_since=step_since, since=None, evidence=self.evidence.next_step())


def advance_canaries(valkey: redis.Redis, key: Secret, said: dict[str, str]) -> None:
    """One tick of every running canary. `key`: the routers' (core.signing.router_key); `said`: what was logged already, by
    subject. Raises redis and database errors."""
    for canary in models.Canary.objects.filter(ended_at=None).select_related("model"):
        subject = f"canary {canary.pk} of {canary.model.name}"
        try:
            verdict = _sample(valkey, key, canary)
        except ValueError as error:
            trouble = f"its row cannot be read, end it: {error}"
        else:
            trouble = _act(canary, verdict) if verdict is not None else ""
        if trouble and said.get(subject) != trouble:
            log.warning("%s: %s", subject, trouble)
        said[subject] = trouble
    _forget_ended(valkey)


def _sample(valkey: redis.Redis, key: Secret, canary: models.Canary) -> Verdict | None:
    """The verdict by all that is known now; None while sampling pauses. Raises ValueError for a spoilt row."""
    before = read_sampling(canary)
    busy = canary.model.operations.exclude(state__in=ENDED).exists()
    seen: list[SessionSeen] = []
    if busy:
        position = canary_reports.newest_position(valkey, canary.pk, before.position)
    else:
        seen, position = canary_reports.read_reports(valkey, key, canary.pk, before.position)
    with transaction.atomic():
        row = models.Canary.objects.select_for_update().filter(pk=canary.pk, ended_at=None).first()
        if row is None or row.evidence != canary.evidence:
            return None  # ended, or told of by another tick
        sampling = replace(before, position=position).moved_to(row.step_since.timestamp())
        if busy:
            canary_reports.drop_unsettled(row)
            return _keep(row, replace(sampling, since=None, absent_since=None), None)
        sampling, verdict = _judge(row, sampling, seen, share_in_table(canary.model.name))
        return _keep(row, sampling, verdict)


def _judge(row: models.Canary, sampling: Sampling, seen: list[SessionSeen], share: float | None) -> tuple[Sampling, Verdict]:
    """`share`: of sessions, that routers give the canary now; None: it is not in their table."""
    guardrails, now = Guardrails.read(row.guardrails), timezone.now().timestamp()
    since = sampling.since if sampling.since is not None else now
    absent_since = None if share is not None else sampling.absent_since or now
    canary_reports.keep_sessions(row, seen, since + guardrails.settle_s)
    settled = canary_reports.take_settled(row, guardrails.session_s)
    evidence = sampling.evidence.with_sessions(settled, share if share is not None else row.share)
    progress = Progress(
        stages=len(evidence.steps) + len(row.steps),
        step_s=max(0.0, now - since - guardrails.settle_s),
        age_s=now - row.started_at.timestamp(),
        absent_s=now - absent_since if absent_since is not None else 0.0,
    )
    found = replace(sampling, since=since, absent_since=absent_since, evidence=evidence)
    return found, decide(evidence, guardrails, progress)


def read_sampling(canary: models.Canary) -> Sampling:
    return decode(Sampling, canary.evidence)


def _keep(row: models.Canary, sampling: Sampling, verdict: Verdict | None) -> Verdict | None:
    fields: dict[str, Any] = {"evidence": encode(sampling), "paused": verdict is None}
    if verdict is not None:
        fields["verdict"] = encode(verdict)
    models.Canary.objects.filter(pk=row.pk).update(**fields)
    return verdict


def _act(canary: models.Canary, verdict: Verdict) -> str:
    """Do what the verdict asks for; returns why it cannot be done now. The next tick tries again."""
    name, version = canary.model.name, canary.model.version
    try:
        if verdict.action == "promote":
            actions.promote_canary(SYSTEM, name, reason=verdict.sentence, expected_version=version)
        elif verdict.action == "roll_back":
            actions.end_canary(SYSTEM, name, outcome="rolled_back", reason=verdict.sentence, expected_version=version)
        else:
            return ""
    except Refused as refused:
        return "; ".join(refused.reasons)
    log.info("canary %d of %s: %s", canary.pk, name, verdict.sentence)
    return ""


def share_in_table(model: str) -> float | None:
    """The share of sessions that routers give the model's canary by the newest table; None if it has none there."""
    document = models.TableState.objects.filter(id=1).values_list("document", flat=True).first() or {}
    found: Iterable[Any] = (each.get("canary") for each in document.get("models", ()) if each["name"] == model)
    return next((float(canary["share"]) for canary in found if canary), None)


def _forget_ended(valkey: redis.Redis) -> None:
    """Sessions of canaries that have ended, and what was told of them and not read."""
    over = models.CanarySession.objects.exclude(canary__ended_at=None)
    for canary in over.values_list("canary_id", flat=True).order_by("canary_id").distinct():
        canary_reports.forget_stream(valkey, canary)
        models.CanarySession.objects.filter(canary_id=canary).delete()
