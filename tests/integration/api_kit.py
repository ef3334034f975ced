"""A web process of its own with users of every role, and a client of its REST API."""

from __future__ import annotations

import atexit
import json
from functools import cache
from typing import Any

import httpx
from django.contrib.auth.models import Group, User

from controlplane.access.tokens import add_token
from controlplane.control import actions
from controlplane.control.actor import Actor
from controlplane.control.newmodel import NewModel, NewPool
from controlplane.core import names
from controlplane.fleet import models
from controlplane.physics.catalog import CONFIGS
from controlplane.stack.ports import free_port
from tests.console_web import Web

ROOT = Actor("root", "admin")
CONFIG = json.loads((CONFIGS / "qwen3-8b.json").read_text())
SHARED = {
    "TWINPOOL_API_CHANGES_PER_MINUTE": "100000",
    "TWINPOOL_API_READS_PER_MINUTE": "100000",
    names.ENV_DATABASE_CONNECTIONS: "4",
}
ROLES = ("viewer", "owner", "operator", "admin")


@cache
def shared_web() -> Web:
    """One server for all tests that leave it as it is, with limits that none of them reaches."""
    web = Web(free_port(), SHARED)
    web.start()
    atexit.register(web.stop)
    return web


class Client(httpx.Client):
    """Of one user, by token. Addresses that do not start with a slash are those of the API."""

    def __init__(self, url: str, token: str) -> None:
        super().__init__(base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=60)

    def request(self, method: str, url: Any, **options: Any) -> httpx.Response:
        inside = isinstance(url, str) and not url.startswith("/")
        return super().request(method, f"/api/v1/{url}" if inside else url, **options)


def token_of(role: str) -> str:
    """Of a new user with this role; an owner's team is `search`."""
    user = User.objects.create_user(role)
    user.groups.add(Group.objects.get_or_create(name=role)[0])
    if role == "owner":
        models.Team.objects.get_or_create(name="search")[0].members.add(user)
    return add_token(ROOT, role, "test", days=None)[1]


def one_model(name: str = "m", *, team: str = "search", **sizes: int) -> models.Model:
    """A disaggregated model of simulated engines that are ready, on a node with 8 GPUs; nothing runs on it."""
    sizes = sizes or {"prefill": 2, "decode": 2}
    node, made = models.Node.objects.get_or_create(name="n1", defaults={"seen_at": "2026-01-01T00:00:00Z"})
    if made:
        for index in range(8):
            models.Gpu.objects.create(uuid=f"g{index}", node=node, index=index, kind="l4", memory_bytes=1)
    pools = tuple(NewPool(role, size) for role, size in sizes.items())
    actions.register_model(ROOT, NewModel(name, "org/m", CONFIG, engine_kind="simulated", mode="disaggregated", pools=pools))
    row = models.Model.objects.get(name=name)
    free = list(models.Gpu.objects.filter(reservation=None))
    number = 0
    for role, size in sizes.items():
        for _ in range(size):
            number += 1
            engine = models.Engine.objects.create(
                id=f"{name[-1]}-{number}", model=row, role=role, number=number, kind="simulated", state="ready", compat="c"
            )
            rank = models.Rank.objects.create(engine=engine, node=node)
            models.Reservation.objects.create(gpu=free.pop(0), rank=rank)
    models.Operation.objects.filter(model=row).update(state="done")
    models.Step.objects.filter(operation__model=row).update(state="done")
    models.Model.objects.filter(pk=row.pk).update(team=team)
    row.refresh_from_db()
    return row


def problem(answer: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    """The problem document of a refusal, which must be of this status and kind and say why."""
    assert answer.status_code == status, (answer.status_code, answer.text[:500])
    assert answer.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = answer.json()
    assert (found["status"], found["kind"]) == (status, kind)
    assert found["reasons"] and all(found["reasons"])
    assert found["detail"] == "; ".join(found["reasons"])
    return found
