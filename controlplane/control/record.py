"""Writes what was observed onto the rows of nodes, GPUs, engines and incarnations. Decides nothing."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from typing import Any

from django.db import DataError, IntegrityError, transaction
from django.utils import timezone

from controlplane.control.facts import Facts
from controlplane.control.gather import moment
from controlplane.core.lifecycle import SERVING
from controlplane.core.observe import judge_nodes, observe_engine
from controlplane.core.protocol import AgentFact
from controlplane.core.world import EngineState, World
from controlplane.fleet import models

log = logging.getLogger(__name__)

SEEN_EVERY = timedelta(seconds=4)
"""`seen_at` is written at most this often: facts come more often than anybody looks."""


def record_nodes(facts: Facts, said: dict[str, str]) -> Facts:
    """What each heard agent says about its node and its GPUs. Returns the facts without those that PostgreSQL refused to
    store: their nodes count as silent, the others go on. `said` is kept by the caller, so that it is said once."""
    now = timezone.now()
    gpus = _Gpus()
    stored = dict(facts.agents)
    seen: list[int] = []
    for node in models.Node.objects.filter(name__in=facts.agents):
        fact = facts.agents[node.name]
        changed = _changed(node, fact)
        if changed or node.seen_at is None or gpus.differ(node, fact):
            try:
                with transaction.atomic():
                    models.Node.objects.filter(pk=node.pk).update(seen_at=now, **changed)
                    _record_gpus(node, fact, gpus.by_uuid)
            except (DataError, IntegrityError) as error:
                del stored[node.name]
                _say_once(said, f"the fact of node {node.name}", error)
                continue
        elif now - node.seen_at >= SEEN_EVERY:
            seen.append(node.pk)
        said.pop(f"the fact of node {node.name}", None)
    if seen:
        models.Node.objects.filter(pk__in=seen).update(seen_at=now)
    return replace(facts, agents=stored)


class _Gpus:
    """What is recorded of GPUs."""

    def __init__(self) -> None:
        self._of_node: dict[int, set[tuple[Any, ...]]] = {}
        rows = models.Gpu.objects.values_list("node_id", "uuid", "index", "kind", "memory_bytes", "simulated")
        for node, *gpu in rows:
            self._of_node.setdefault(node, set()).add(tuple(gpu))

    @cached_property
    def by_uuid(self) -> dict[str, models.Gpu]:
        return {row.uuid: row for row in models.Gpu.objects.all()}

    def differ(self, node: models.Node, fact: AgentFact) -> bool:
        """Whether the node's GPUs are not exactly those that its agent tells."""
        told = {(gpu.uuid, gpu.index, gpu.kind, gpu.memory_bytes, gpu.simulated) for gpu in fact.gpus}
        return told != self._of_node.get(node.pk, set())


def _changed(node: models.Node, fact: AgentFact) -> dict[str, Any]:
    """Columns of the node's row that its agent tells otherwise."""
    told = {
        "address": fact.address[:255],
        "network_gbps": fact.network_gbps,
        "agent_boot": fact.boot,
        "agent_booted_at": fact.booted_at,
        "agent_labels": dict(fact.labels),
    }
    return {name: value for name, value in told.items() if getattr(node, name) != value}


def _say_once(said: dict[str, str], what: str, error: Exception) -> None:
    why = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
    if said.get(what) != why:
        said[what] = why
        log.error("%s cannot be stored and is left out: %s", what, why)


def _record_gpus(node: models.Node, fact: AgentFact, rows: dict[str, models.Gpu]) -> None:
    told = {gpu.uuid: gpu for gpu in fact.gpus}
    for uuid, gpu in told.items():
        values = {"index": gpu.index, "kind": gpu.kind, "memory_bytes": gpu.memory_bytes, "simulated": gpu.simulated}
        row = rows.get(uuid)
        if row is None:
            models.Gpu.objects.bulk_create([models.Gpu(uuid=uuid, node=node, **values)], ignore_conflicts=True)
        elif row.node_id != node.pk:
            _take_over(row, node, values)
        elif any(getattr(row, field) != value for field, value in values.items()):
            models.Gpu.objects.filter(uuid=uuid, node=node).update(**values)
    if any(row.node_id == node.pk and uuid not in told for uuid, row in rows.items()):
        # A GPU that its agent no longer names is gone; one that is held stays until its engine lets go.
        models.Gpu.objects.filter(node=node, reservation__isnull=True).exclude(uuid__in=told).delete()


def _take_over(row: models.Gpu, node: models.Node, values: dict[str, Any]) -> None:
    """A GPU was moved to another machine: believed once the old node is lost and nothing holds the GPU."""
    models.Gpu.objects.filter(uuid=row.uuid, node__lost=True, reservation__isnull=True).update(node=node, **values)


def record_losses(world: World) -> World:
    """Marks nodes lost or found again under the silent-nodes rule, and returns the world with those marks."""
    verdicts = judge_nodes(world)
    for node in world.nodes:
        lost, reason = verdicts.get(node.name, (node.lost, ""))
        if lost != node.lost and models.Node.objects.filter(name=node.name, lost=node.lost).update(lost=lost):
            log.warning("node %s is %s%s", node.name, "lost" if lost else "back", f": {reason}" if reason else "")
    nodes = tuple(replace(node, lost=verdicts.get(node.name, (node.lost, ""))[0]) for node in world.nodes)
    return replace(world, nodes=nodes)


def record_engines(world: World, said: dict[str, str]) -> World:
    """Engine rows and their incarnations as the facts make them; returns the world with the new states. An engine that
    PostgreSQL refuses to store stays as it was recorded, which is said once (`said` as in `record_nodes`)."""
    engines = []
    for engine in world.engines:
        try:
            engines.append(_record_engine(engine, observe_engine(engine, world)))
        except (DataError, IntegrityError) as error:
            _say_once(said, f"what is told of engine {engine.id}", error)
            engines.append(engine)
    return replace(world, engines=tuple(engines))


def _record_engine(old: EngineState, new: EngineState) -> EngineState:
    """`new`, once it is on the row; `old` if somebody changed the row meanwhile (the next tick sees why)."""
    if new == old:
        return old
    before, after = _fields(old), _fields(new)
    changed = {name: value for name, value in after.items() if before[name] != value}
    if not changed:
        return old
    with transaction.atomic():
        row = models.Engine.objects.filter(id=old.id, state=old.state, spec_generation=old.spec_generation)
        if not row.update(**changed):
            return old
        _record_incarnation(old, new)
    if new.state != old.state:
        log.info("engine %s: %s -> %s%s", new.id, old.state, new.state, f" ({new.reason})" if new.reason else "")
    return new


def _fields(engine: EngineState) -> dict[str, Any]:
    return {
        "state": engine.state,
        "state_since": moment(engine.state_since),
        "reason": engine.reason,
        "spec_generation": engine.spec_generation,
        "incarnation": engine.incarnation,
        "url": engine.url[:255],
        "compat": engine.compat[:64],
        "started_at": moment(engine.started_at),
        "ready_at": moment(engine.ready_at),
        "failures": engine.failures,
        "retry_at": moment(engine.retry_at),
    }


def _record_incarnation(old: EngineState, new: EngineState) -> None:
    if not new.incarnation:
        return
    history = models.Incarnation.objects.filter(engine_id=new.id)
    if new.incarnation != old.incarnation:
        started = moment(new.started_at) or timezone.now()
        history.filter(ended_at=None).update(ended_at=timezone.now())
        entry = models.Incarnation(engine_id=new.id, number=new.incarnation, started_at=started)
        models.Incarnation.objects.bulk_create([entry], ignore_conflicts=True)
    current = history.filter(number=new.incarnation)
    if new.state in SERVING and new.ready_at is not None:
        current.filter(ready_at=None).update(ready_at=moment(new.ready_at))
    if new.state in ("failed", "stopped"):
        current.filter(ended_at=None).update(ended_at=timezone.now(), reason=new.reason)
