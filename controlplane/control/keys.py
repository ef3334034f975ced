"""Inference keys: made, rotated and revoked by actions as `control.actions` has them, read for the routing table.

A key itself is in nobody's hands but its client's: the row has its SHA-256, operation and audit have neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction
from django.db.models import Prefetch, Q, QuerySet
from django.utils import timezone

from controlplane.control import newkey
from controlplane.control.actions import forbid, record_change
from controlplane.control.actor import RANK, Actor
from controlplane.control.newkey import NewKey
from controlplane.control.refused import Refused, refuse_all
from controlplane.core.protocol import KeyEntry
from controlplane.fleet import models

MAX_OVERLAP_HOURS = 90 * 24
MAX_FORMER = 5
"""Secrets before the present one that may be good at once."""


def add_key(actor: Actor, new: NewKey, *, reason: str = "") -> tuple[models.Operation, str]:
    """Let clients that send a new key in. Returns the operation and the key, which nobody can read again. An owner's are of
    their teams, and for models that these own."""
    forbid(actor, "add_key", new.team)
    rows = list(models.Model.objects.all())
    served = {name for row in rows for name in (row.name, *row.aliases)}
    refuse_all("invalid", newkey.problems(new, served))
    if RANK[actor.role] < RANK["admin"]:
        refuse_all("forbidden", _not_theirs(new, rows))
    secret = newkey.new_secret()
    row = models.InferenceKey(
        name=new.name,
        team=new.team,
        sha256=newkey.digest(secret),
        model_names=list(new.model_names),
        requests_per_minute=new.requests_per_minute,
        tokens_per_minute=new.tokens_per_minute,
        max_priority=new.max_priority,
        expires_at=timezone.now() + timedelta(days=new.days) if new.days else None,
    )
    with transaction.atomic():
        try:
            with transaction.atomic():
                row.save(force_insert=True)
        except IntegrityError as error:
            taken = f"key {new.name} exists already (a revoked one keeps its name): choose another name"
            raise Refused("invalid", taken) from error
        after = {name: value for name, value in asdict(new).items() if name != "name"}
        return record_change("add_key", actor, reason, f"key:{new.name}", after=after, done=True), secret


def rotate_key(
    actor: Actor, name: str, *, overlap_hours: float, days: int | None = None, reason: str = ""
) -> tuple[models.Operation, str]:
    """Give a key a new secret; clients may go on with the old one for `overlap_hours`. `days`: it expires so long from now;
    None: when it did before. Returns the operation and the new secret, which nobody can read again."""
    if not 0 <= overlap_hours <= MAX_OVERLAP_HOURS:
        raise Refused("invalid", f"overlap_hours: 0 to {MAX_OVERLAP_HOURS}")
    if days is not None and not 1 <= days <= newkey.MAX_DAYS:
        raise Refused("invalid", f"days: 1 to {newkey.MAX_DAYS}; leave it out to keep the present end")
    secret, now = newkey.new_secret(), timezone.now()
    with transaction.atomic():
        row = _locked(actor, "rotate_key", name)
        if days is None and row.expires_at is not None and row.expires_at <= now:
            raise Refused("invalid", f"key {name} has expired: say for how many days it is good again")
        if row.former_secrets.filter(until__gt=now).count() >= MAX_FORMER:
            raise Refused("busy", f"{MAX_FORMER} former secrets of {name} are good still: wait, or revoke it")
        until = now + timedelta(hours=overlap_hours)
        models.FormerSecret.objects.create(key=row, sha256=row.sha256, until=until)
        row.sha256 = newkey.digest(secret)
        row.expires_at = now + timedelta(days=days) if days else row.expires_at
        row.save(update_fields=["sha256", "expires_at"])
        after = {"team": row.team, "former_until": until.isoformat(timespec="seconds"), "days": days}
        return record_change("rotate_key", actor, reason, f"key:{name}", after=after, done=True), secret


def revoke_key(actor: Actor, name: str, *, reason: str = "") -> models.Operation:
    """Let clients that send this key in no more, for good, nor with what it was before. The row stays, so that its name is
    never another key's."""
    with transaction.atomic():
        row = _locked(actor, "revoke_key", name)
        models.InferenceKey.objects.filter(pk=row.pk).update(revoked=True)
        return record_change(
            "revoke_key", actor, reason, f"key:{name}", before={"team": row.team, "revoked": False}, done=True
        )


def keys_seen_by(actor: Actor) -> QuerySet[models.InferenceKey]:
    """Keys that somebody may look at, the oldest first: operators all, others those of their teams."""
    rows = models.InferenceKey.objects.prefetch_related("former_secrets")
    return rows if RANK[actor.role] >= RANK["operator"] else rows.filter(team__in=actor.teams)


def former_until(row: models.InferenceKey, now: datetime) -> datetime | None:
    """How long clients may go on with what the key was before; None: not any more."""
    return max((each.until for each in row.former_secrets.all() if each.until > now), default=None)


def state_of(row: models.InferenceKey, now: datetime) -> str:
    """valid, expired or revoked."""
    if row.revoked:
        return "revoked"
    return "expired" if row.expires_at is not None and row.expires_at <= now else "valid"


def valid_keys(now: datetime) -> tuple[KeyEntry, ...]:
    """What routers accept, oldest first: neither revoked nor expired by `now`, and what they were while that is good."""
    rows = models.InferenceKey.objects.filter(Q(expires_at=None) | Q(expires_at__gt=now), revoked=False)
    former = Prefetch("former_secrets", models.FormerSecret.objects.filter(until__gt=now), to_attr="still_good")
    return tuple(_entry(row, sha256) for row in rows.prefetch_related(former) for sha256 in _digests(row))


def _digests(row: models.InferenceKey) -> Iterator[str]:
    yield row.sha256
    yield from (each.sha256 for each in row.still_good)  # type: ignore[attr-defined]


def _entry(row: models.InferenceKey, sha256: str) -> KeyEntry:
    return KeyEntry(
        sha256=sha256,
        team=row.team,
        models=tuple(row.model_names),
        requests_per_minute=row.requests_per_minute,
        tokens_per_minute=row.tokens_per_minute,
        max_priority=row.max_priority,
    )


def _locked(actor: Actor, verb: str, name: str) -> models.InferenceKey:
    """A key that is not revoked and that the actor may change. Who may see none of it is not told that it exists."""
    found = models.InferenceKey.objects.select_for_update().filter(name=name)
    row = found.first() if newkey.NAME.fullmatch(name) else None
    if row is None or not (RANK[actor.role] >= RANK["operator"] or row.team in actor.teams):
        forbid(actor, verb, next(iter(sorted(actor.teams)), ""))
        known = ", ".join(each.name for each in keys_seen_by(actor) if not each.revoked)[:500]
        raise Refused("not_found", f"there is no key {name!r:.80}; keys: {known or 'none'}")
    forbid(actor, verb, row.team)
    if row.revoked:
        raise Refused("invalid", f"key {name} is revoked already")
    return row


def _not_theirs(new: NewKey, rows: list[models.Model]) -> Iterator[str]:
    own = {name for row in rows if row.team == new.team for name in (row.name, *row.aliases)}
    for name in sorted(set(new.model_names) - own):
        yield f"model {name!r:.140} is not team {new.team}'s: an admin makes keys for other teams' models"
