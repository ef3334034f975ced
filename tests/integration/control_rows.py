"""Models with engines in rows alone, for tests of what actions write: nothing runs and nobody ticks."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from django.db import connection, transaction

from controlplane.control import actions
from controlplane.control.launches import launch_of
from controlplane.control.newmodel import NewModel, NewPool
from controlplane.control.refused import Refused
from controlplane.core.preview import Preview
from controlplane.fleet import models
from controlplane.physics.catalog import CONFIGS
from tests.integration.control_kit import ANN, until

CONFIG = json.loads((CONFIGS / "qwen3-8b.json").read_text())
NEW = NewModel("m", "org/m", CONFIG, engine_kind="simulated")
TABLES = (
    models.Model,
    models.Pool,
    models.Node,
    models.Engine,
    models.Canary,
    models.Operation,
    models.Step,
    models.AuditEntry,
)


def node(name: str = "n1") -> models.Node:
    """A node that has reported."""
    row, _ = models.Node.objects.get_or_create(name=name, defaults={"seen_at": "2026-01-01T00:00:00Z"})
    return row


def gpus(count: int, on: str = "n1") -> list[models.Gpu]:
    """As many more free GPUs."""
    there = node(on).gpus.count()
    rows = [
        models.Gpu(uuid=f"{on}-g{index}", node=node(on), index=index, kind="l4", memory_bytes=1)
        for index in range(there, there + count)
    ]
    return models.Gpu.objects.bulk_create(rows)


def fleet(mode: str, name: str = "m", free: int = 0, **pools: int) -> models.Model:
    """A model of ready engines, each on a GPU of its own, and `free` more GPUs. Engine ids: m-1, m-2 …"""
    held = gpus(sum(pools.values()))
    gpus(free)
    sizes = tuple(NewPool(role, size) for role, size in pools.items())
    actions.register_model(ANN, replace(NEW, name=name, mode=mode, pools=sizes))
    model = models.Model.objects.get(name=name)
    roles = [role for role, size in pools.items() for _ in range(size)]
    for number, (role, gpu) in enumerate(zip(roles, held, strict=True), 1):
        engine = models.Engine.objects.create(
            id=f"{name}-{number}",
            model=model,
            role=role,
            number=number,
            kind="simulated",
            state="ready",
            incarnation=1,
            url="http://127.0.0.1:9001",
            compat="c",
            launch=launch_of(model, 1).snapshot(),
        )
        rank = models.Rank.objects.create(engine=engine, node=node())
        models.Reservation.objects.create(gpu=gpu, rank=rank)
    done()
    model.refresh_from_db()
    return model


def done() -> None:
    """Every operation so far has ended well."""
    models.Operation.objects.filter(finished_at=None).update(state="done", finished_at="2026-01-01T00:00:10Z")
    models.Step.objects.update(state="done")


def sizes(name: str = "m") -> dict[str, int]:
    """Desired engines by pool; a canary's as "canary/role"."""
    pools = models.Pool.objects.filter(model__name=name, desired_engines__gt=0)
    return {(pool.role if pool.arm == "main" else f"{pool.arm}/{pool.role}"): pool.desired_engines for pool in pools}


def steps(operation: models.Operation) -> list[str]:
    """Steps in words, e.g. "retask decode", "stop m-1"."""
    rows = operation.steps.all()
    pools = ((step, step.role if step.arm == "main" else f"{step.arm}/{step.role}") for step in rows)
    return [" ".join(filter(None, (step.verb, step.engine or pool))) for step, pool in pools]


def said(plan: Preview) -> list[str]:
    """A plan in words, e.g. "retask P2 decode"."""
    return [" ".join(filter(None, (step.verb, step.label, step.role))) for step in plan.steps]


def everything() -> list[list[Any]]:
    """All rows there are, to see that nothing changed."""
    return [list(table.objects.order_by("pk").values()) for table in TABLES]


def refusal(action: Any, *args: Any, **options: Any) -> Refused:
    """The refusal, which left every row as it was."""
    before = everything()
    with pytest.raises(Refused) as refused:
        action(*args, **options)
    assert everything() == before, "a refusal left something behind"
    return refused.value


def at_once(first: Callable[[], Any], second: Callable[[], Any], then: Callable[[], Any] = lambda: None) -> Refused | None:
    """`second` begins while `first` is not committed yet; how it is refused, if it is. `then`: what else `first` does, once
    `second` waits. Needs a test with real commits."""
    refused: list[Refused] = []

    def other() -> None:
        try:
            second()
        except Refused as error:
            refused.append(error)
        finally:
            connection.close()

    thread = threading.Thread(target=other)
    with transaction.atomic():
        first()
        thread.start()
        until("waiting for us", lambda: _waits_for_a_lock() or not thread.is_alive())
        then()
    thread.join(60)
    return refused[0] if refused else None


def _waits_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted)")
        return bool(cursor.fetchone()[0])
