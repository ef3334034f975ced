"""Teams and how many GPUs their models may hold together. Who is in them is the business of accounts."""

from __future__ import annotations

from django.db import transaction

from controlplane.control.actions.change import forbid, record_change
from controlplane.control.actor import Actor
from controlplane.control.newkey import NAME
from controlplane.control.refused import Refused
from controlplane.core.storable import storable_text
from controlplane.fleet import models

MAX_QUOTA = 1_000_000


def set_team(actor: Actor, name: str, gpu_quota: int | None, *, reason: str = "") -> models.Operation:
    """Make a team, or change its quota (None: no limit). A quota that is smaller than what the team holds stops nothing that
    runs; its models cannot grow."""
    forbid(actor, "set_team")
    if not NAME.fullmatch(name):
        raise Refused(
            "invalid", f"team {name!r:.80}: letters, digits, '.', '_' and '-', at most 63, a letter or digit first"
        )
    if gpu_quota is not None and (type(gpu_quota) is not int or not 0 <= gpu_quota <= MAX_QUOTA):
        raise Refused("invalid", f"gpu_quota: 0 to {MAX_QUOTA}, or none")
    with transaction.atomic():
        row = models.Team.objects.select_for_update().filter(name=name).first()
        before = {"gpu_quota": row.gpu_quota} if row else {}
        models.Team.objects.update_or_create(name=name, defaults={"gpu_quota": gpu_quota})
        return record_change(
            "set_team", actor, reason, f"team:{name}", before=before, after={"gpu_quota": gpu_quota}, done=True
        )


def remove_team(actor: Actor, name: str, *, reason: str = "") -> models.Operation:
    """Only one that owns no model: its members lose what they may do by it."""
    forbid(actor, "remove_team")
    with transaction.atomic():
        row = models.Team.objects.select_for_update().filter(name=storable_text(name)).first()
        if row is None:
            raise Refused("not_found", f"there is no team {name!r:.80}")
        owned = list(models.Model.objects.filter(team=row.name).values_list("name", flat=True)[:20])
        if owned:
            raise Refused("busy", f"team {row.name} owns {', '.join(owned)}: give them to another team first")
        before = {"gpu_quota": row.gpu_quota, "members": row.members.count()}
        row.delete()
        return record_change("remove_team", actor, reason, f"team:{name}", before=before, done=True)
