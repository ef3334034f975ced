"""Inference keys: made and revoked by actions as `control.actions` has them, read for the routing table.

A key itself is in nobody's hands but its client's: the row has its SHA-256, operation and audit have neither.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone

from controlplane.control import newkey
from controlplane.control.actions import forbid, record_change
from controlplane.control.actor import Actor
from controlplane.control.newkey import NewKey
from controlplane.control.refused import Refused, refuse_all
from controlplane.core.protocol import KeyEntry
from controlplane.fleet import models


def add_key(actor: Actor, new: NewKey, *, reason: str = "") -> tuple[models.Operation, str]:
    """Let clients that send a new key in. Returns the operation and the key, which nobody can read again."""
    forbid(actor, "add_key")
    served = {name for row in models.Model.objects.all() for name in (row.name, *row.aliases)}
    refuse_all("invalid", newkey.problems(new, served))
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


def revoke_key(actor: Actor, name: str, *, reason: str = "") -> models.Operation:
    """Let clients that send this key in no more, for good. The row stays, so that its name is never another key's."""
    forbid(actor, "revoke_key")
    with transaction.atomic():
        found = models.InferenceKey.objects.select_for_update().filter(name=name)
        row = found.first() if newkey.NAME.fullmatch(name) else None
        if row is None:
            known = ", ".join(models.InferenceKey.objects.filter(revoked=False).values_list("name", flat=True)[:20])
            raise Refused("not_found", f"there is no key {name!r:.80}; keys: {known or 'none'}")
        if row.revoked:
            raise Refused("invalid", f"key {name} is revoked already")
        models.InferenceKey.objects.filter(pk=row.pk).update(revoked=True)
        return record_change(
            "revoke_key", actor, reason, f"key:{name}", before={"team": row.team, "revoked": False}, done=True
        )


def valid_keys(now: datetime) -> tuple[KeyEntry, ...]:
    """What routers accept, oldest first: neither revoked nor expired by `now`."""
    rows = models.InferenceKey.objects.filter(Q(expires_at=None) | Q(expires_at__gt=now), revoked=False)
    return tuple(
        KeyEntry(
            sha256=row.sha256,
            team=row.team,
            models=tuple(row.model_names),
            requests_per_minute=row.requests_per_minute,
            tokens_per_minute=row.tokens_per_minute,
            max_priority=row.max_priority,
        )
        for row in rows
    )
