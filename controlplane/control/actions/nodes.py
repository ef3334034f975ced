"""Which nodes there are, and which of them get new engines."""

from __future__ import annotations

from collections.abc import Mapping

from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone

from controlplane.control.actions.change import forbid, record_change
from controlplane.control.actor import Actor
from controlplane.control.refused import Refused, refuse_all
from controlplane.core.names import check_node_name
from controlplane.core.storable import storable_text
from controlplane.fleet import models


def add_node(actor: Actor, name: str, *, labels: Mapping[str, str] | None = None, reason: str = "") -> models.Operation:
    """Let an agent of this name join. Its GPUs appear once the agent reports."""
    forbid(actor, "add_node")
    try:
        check_node_name(name)
    except ValueError as error:
        raise Refused("invalid", str(error)) from error
    with transaction.atomic():
        try:
            with transaction.atomic():
                models.Node.objects.create(name=name, labels=dict(labels or {}))
        except IntegrityError as error:
            raise Refused("invalid", f"node {name} exists already") from error
        return record_change("add_node", actor, reason, f"node:{name}", after={"labels": dict(labels or {})}, done=True)


def cordon_node(actor: Actor, name: str, *, reason: str = "") -> models.Operation:
    """Give a node no new engines; those it has serve on."""
    return _cordon(actor, "cordon_node", name, True, reason)


def uncordon_node(actor: Actor, name: str, *, reason: str = "") -> models.Operation:
    """Give a node new engines again."""
    return _cordon(actor, "uncordon_node", name, False, reason)


def _cordon(actor: Actor, verb: str, name: str, cordoned: bool, reason: str) -> models.Operation:
    forbid(actor, verb)
    with transaction.atomic():
        row = _lock_node(name)
        if row.cordoned == cordoned:
            raise Refused("invalid", f"node {name} is {'cordoned already' if cordoned else 'not cordoned'}")
        models.Node.objects.filter(pk=row.pk).update(cordoned=cordoned)
        before, after = {"cordoned": row.cordoned}, {"cordoned": cordoned}
        return record_change(verb, actor, reason, f"node:{name}", before=before, after=after, done=True)


def remove_node(actor: Actor, name: str, *, reason: str = "") -> models.Operation:
    """Forget a node: its agent is believed no more. A node that is heard must be cordoned and empty; one that is lost may
    still have engines, which count as gone then and are replaced elsewhere."""
    forbid(actor, "remove_node")
    with transaction.atomic():
        row = _lock_node(name)
        engines = models.Engine.objects.filter(ranks__node=row).distinct()
        if not row.lost and row.seen_at is not None:
            if not row.cordoned:
                raise Refused("unsafe", f"node {name} may get engines any time: first cordon_node {name}")
            alive = engines.filter(Q(wanted=True) | ~Q(state="stopped") | Q(ranks__reservations__isnull=False))
            refuse_all("busy", (f"engine {each.id} ({each.state}) is on it: move its work away first" for each in alive))
        lost = list(engines.filter(Q(wanted=True) | ~Q(state="stopped")).values_list("id", flat=True))
        models.Engine.objects.filter(id__in=lost).update(
            wanted=False, state="stopped", state_since=timezone.now(), reason=f"its node {name} was removed"
        )
        models.Rank.objects.filter(engine__in=engines).delete()
        before = {"labels": row.labels, "cordoned": row.cordoned, "lost": row.lost, "engines": lost}
        row.delete()
        return record_change("remove_node", actor, reason, f"node:{name}", before=before, done=True)


def _lock_node(name: str) -> models.Node:
    row = models.Node.objects.select_for_update().filter(name=storable_text(name)).first()
    if row is None:
        known = ", ".join(models.Node.objects.order_by("name").values_list("name", flat=True)[:20])
        raise Refused("not_found", f"there is no node {name!r:.80}; nodes: {known or 'none'}")
    return row
