"""Carries out what a plan says about engines that get another role or arm while they run, and about modes.

Each is one transaction that finds the rows as the plan saw them, or does nothing.
"""

from __future__ import annotations

import logging

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from controlplane.control.bind import bind_step
from controlplane.control.desire import pool_key
from controlplane.core.moves import MOVABLE_UNSEEN
from controlplane.core.plan import AbortMove, BeginMove, FinishMove, Flip, Probe, Verify
from controlplane.fleet import models

log = logging.getLogger(__name__)

MOVING = ("leaving", "verifying")
EXCHANGING = "together"
AT_REST = ("", "aborted")


def begin(action: BeginMove) -> bool:
    """The engine counts in its new pool from now on and takes no new work; its pairs are to be proven anew."""
    with transaction.atomic():
        row = _locked(action.engine)
        if row is None or row.state != "ready" or row.move_phase not in AT_REST:
            return False
        row.next_role, row.next_arm, row.move_phase = action.role, action.arm, "leaving"
        row.move_since = timezone.now()
        row.save(update_fields=["next_role", "next_arm", "move_phase", "move_since"])
        models.Pair.objects.filter(Q(prefill=row) | Q(decode=row)).delete()
        bind_step(row.model_id, "retask", action.role, action.arm, row.id)
    log.info(
        "engine %s leaves pool %s for %s: %s",
        row.id,
        pool_key(row.role, row.arm),
        pool_key(action.role, action.arm),
        action.reason,
    )
    return True


def verify(action: Verify) -> bool:
    row = models.Engine.objects.filter(id=action.engine, wanted=True, move_phase="leaving")
    changed = row.update(move_phase="verifying", move_since=timezone.now())
    if changed:
        log.info("engine %s is verified in its new role: %s", action.engine, action.reason)
    return bool(changed)


def finish(action: FinishMove) -> bool:
    """It has its new role and arm, or the old ones if it turns back. An engine that no router knows yet is given them
    at once."""
    with transaction.atomic():
        row = _locked(action.engine)
        if row is None or not (row.next_role or row.state in MOVABLE_UNSEEN):
            return False
        bind_step(row.model_id, "retask", action.role, action.arm, row.id)
        _place(row, action.role, action.arm)
    log.info("engine %s is in pool %s: %s", row.id, pool_key(row.role, row.arm), action.reason)
    return True


def abort(action: AbortMove) -> bool:
    row = models.Engine.objects.filter(id=action.engine, wanted=True, move_phase__in=MOVING)
    changed = row.update(
        next_role="", next_arm="", move_phase="aborted", move_since=timezone.now(), reason=action.reason[:500]
    )
    if changed:
        log.warning("engine %s keeps its role: %s", action.engine, action.reason)
    return bool(changed)


def flip(action: Flip) -> bool:
    """The mode and every engine's new place at once, or only the places of engines that exchange them."""
    with transaction.atomic():
        model = models.Model.objects.select_for_update().filter(name=action.model, mode=action.mode).first()
        ids = [id for id, _, _ in action.engines]
        if model is None or (model.served_mode == action.mode and not ids):
            return False
        rows = models.Engine.objects.select_for_update().filter(id__in=ids, wanted=True).order_by("id")
        found = {row.id: row for row in rows}
        exchange = model.served_mode == action.mode
        if not all(id in found and _may_go(found[id], role, arm, exchange) for id, role, arm in action.engines):
            return False
        models.Model.objects.filter(pk=model.pk).update(served_mode=action.mode)
        for id, role, arm in action.engines:
            bind_step(model.pk, "retask", role, arm, id)
            _place(found[id], role, arm)
    log.info("model %s is served as %s with %d engines in new roles: %s", model.name, action.mode, len(ids), action.reason)
    return True


def ask(action: Probe) -> int | None:
    """The row id of the pair, asked for; None if an engine is gone."""
    fields = {"prefill_incarnation": action.prefill_incarnation, "decode_incarnation": action.decode_incarnation}
    with transaction.atomic():
        if models.Engine.objects.filter(id__in=(action.prefill, action.decode)).count() < 2:
            return None
        pair, made = models.Pair.objects.get_or_create(prefill_id=action.prefill, decode_id=action.decode, defaults=fields)
        if made:
            return pair.pk
        same = all(getattr(pair, name) == number for name, number in fields.items())
        pair.attempts = pair.attempts if same and pair.state != "verified" else 0
        pair.prefill_incarnation, pair.decode_incarnation = action.prefill_incarnation, action.decode_incarnation
        pair.state = "asked"
        pair.save()
        return pair.pk


def _may_go(row: models.Engine, role: str, arm: str, exchange: bool) -> bool:
    """Whether its row still is as the plan saw it."""
    if exchange:
        return (row.move_phase, row.next_role, row.next_arm) == (EXCHANGING, role, arm)
    return row.move_phase in AT_REST


def _locked(engine: str) -> models.Engine | None:
    return models.Engine.objects.select_for_update().filter(id=engine, wanted=True).first()


def _place(row: models.Engine, role: str, arm: str) -> None:
    row.move_since = timezone.now() if row.state == "ready" and (row.role, row.arm) != (role, arm) else None
    row.role, row.arm, row.next_role, row.next_arm, row.move_phase = role, arm, "", "", ""
    row.save(update_fields=["role", "arm", "next_role", "next_arm", "move_phase", "move_since"])
