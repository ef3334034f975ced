"""Writes a scene of core.scenes as desired rows, once: what exists already is left as the operators have it, and so is what
they have removed."""

from __future__ import annotations

from typing import cast

from django.contrib.auth.models import Group, User
from django.contrib.auth.password_validation import validate_password
from django.db import transaction
from django.db.models import Q

from controlplane.control import actions
from controlplane.control.actor import Actor
from controlplane.control.newmodel import NewModel, NewPool
from controlplane.core.observe import MAX_FAILURES
from controlplane.core.protocol import ROLES_OF_MODE, Mode
from controlplane.core.scenes import Scene, SceneModel
from controlplane.fleet import models
from controlplane.physics.catalog import read_config

ACTOR = Actor.system("setup")
ADMIN = "admin"


def seed(scene: Scene, admin_password: str) -> bool:
    """One transaction. Makes the first admin user if there is no user and a password is given; returns whether it did.
    Raises Refused, or ValidationError for a password that is too weak."""
    with transaction.atomic():
        for node in scene.nodes:
            if not (models.Node.objects.filter(name=node.name).exists() or _was_here(f"node:{node.name}")):
                actions.add_node(ACTOR, node.name, labels=node.labels, reason="part of the fleet to start with")
        for model in scene.models:
            if not (models.Model.objects.filter(name=model.name).exists() or _was_here(f"model:{model.name}")):
                actions.register_model(ACTOR, new_model(model), reason="part of the fleet to start with")
        return _first_admin(admin_password)


def to_be_served(scene: Scene) -> list[str]:
    """Names of the scene's models that will be served once their engines run: not those that are retired, or of which a pool
    that their mode needs is empty, or has only engines that are held or were given up."""
    rows = models.Model.objects.filter(name__in=[model.name for model in scene.models], retiring=False)
    return [row.name for row in rows if all(_fills(row, role) for role in ROLES_OF_MODE[cast(Mode, row.served_mode)])]


def _fills(model: models.Model, role: str) -> bool:
    pool = model.pools.filter(role=role, arm=models.MAIN).first()
    no_use = Q(held=True) | Q(state="failed", failures__gte=MAX_FAILURES)
    idle = model.engines.filter(no_use, role=role, arm=models.MAIN, wanted=True).count()
    return pool is not None and pool.desired_engines > idle


def _was_here(subject: str) -> bool:
    return models.AuditEntry.objects.filter(actor=ACTOR.name, subject=subject).exists()


def new_model(model: SceneModel) -> NewModel:
    return NewModel(
        name=model.name,
        source=model.source,
        config=read_config(model.config),
        engine_kind=model.engine_kind,
        engine_args=model.engine_args,
        mode=model.mode,
        connector=model.connector,
        pools=tuple(NewPool(pool.role, pool.engines, pool.tensor_parallel) for pool in model.pools),
        slo_ttft_ms=model.slo_ttft_ms,
        slo_itl_ms=model.slo_itl_ms,
    )


def _first_admin(password: str) -> bool:
    if not password or User.objects.exists():
        return False
    validate_password(password, User(username=ADMIN))
    group, _ = Group.objects.get_or_create(name=ADMIN)
    User.objects.create_superuser(ADMIN, password=password).groups.add(group)
    return True
