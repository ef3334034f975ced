"""Writes a scene of core.scenes as desired rows, once: what exists already is left as the operators have it."""

from __future__ import annotations

from django.contrib.auth.models import Group, User
from django.contrib.auth.password_validation import validate_password
from django.db import transaction

from controlplane.control import actions
from controlplane.control.actor import Actor
from controlplane.control.newmodel import NewModel, NewPool
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
            if not models.Node.objects.filter(name=node.name).exists():
                actions.add_node(ACTOR, node.name, labels=node.labels, reason="part of the fleet to start with")
        for model in scene.models:
            if not models.Model.objects.filter(name=model.name).exists():
                actions.register_model(ACTOR, new_model(model), reason="part of the fleet to start with")
        return _first_admin(admin_password)


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
