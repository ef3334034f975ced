"""The kill matrix: which operation, at which of its steps, which process is killed.

A boundary is counted in changes of what an operation shows (its steps, and the engines' ways between pools): boundary 0 is
the moment the action is committed, boundary k when the k-th change is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.control import actions
from controlplane.control.actor import Actor
from controlplane.core.lifecycle import OVER
from controlplane.core.protocol import Mode
from controlplane.fleet import models
from controlplane.proof.fleet import Fleet
from controlplane.proof.invariants import read_facts

VICTIMS = ("control", "agent", "router", "engine", "valkey", "postgres")
ASKER = Actor("proof", "admin")


@dataclass(frozen=True)
class Shape:
    """A model's desire before an operation."""

    mode: Mode
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class Kind:
    """An operation: what it starts from, and how it is asked for."""

    start: Shape
    ask: Callable[[str], models.Operation]


SPLIT = Shape("disaggregated", {"prefill": 2, "decode": 2})
MIXED = Shape("monolithic", {"mixed": 4})


def _engine(model: str, role: str) -> str:
    row = models.Engine.objects.filter(model__name=model, role=role, wanted=True).order_by("number").first()
    assert row is not None, f"{model} has no {role} engine"
    return row.id


KINDS: Mapping[str, Kind] = {
    "rebalance": Kind(SPLIT, lambda model: actions.rebalance(ASKER, model, {"prefill": 1, "decode": 3})),
    "to_monolithic": Kind(SPLIT, lambda model: actions.set_mode(ASKER, model, "monolithic")),
    "to_disaggregated": Kind(MIXED, lambda model: actions.set_mode(ASKER, model, "disaggregated", split=SPLIT.sizes)),
    "grow": Kind(SPLIT, lambda model: actions.scale_pool(ASKER, model, "decode", 3)),
    "shrink": Kind(SPLIT, lambda model: actions.scale_pool(ASKER, model, "prefill", 1)),
    "canary": Kind(SPLIT, lambda model: actions.set_canary(ASKER, model, "monolithic", engines={"mixed": 1})),
    "roll_out": Kind(SPLIT, lambda model: actions.roll_out(ASKER, model, actions.RollOut())),
    "drain": Kind(SPLIT, lambda model: actions.drain_engine(ASKER, _engine(model, "decode"))),
    "restart": Kind(SPLIT, lambda model: actions.restart_engine(ASKER, _engine(model, "prefill"))),
}


@dataclass(frozen=True)
class Cell:
    kind: str
    boundary: int
    victim: str

    def __str__(self) -> str:
        return f"{self.kind}, boundary {self.boundary}, kill {self.victim}"


def signature(operation: models.Operation) -> tuple[Any, ...]:
    """What an operation shows of itself now. Raises database errors."""
    steps = tuple(operation.steps.values_list("state", "engine"))
    engines = models.Engine.objects.filter(model=operation.model).order_by("id")
    ways = tuple(engines.values_list("id", "role", "arm", "next_role", "move_phase", "state", "wanted", "held"))
    mode = models.Model.objects.filter(operations=operation).values_list("served_mode", flat=True).first()
    return (steps, ways, mode)


def under_change(operation: models.Operation) -> str:
    """The id of an engine that the operation changes now: one on its way, else one of a step, else any that is there."""
    rows = models.Engine.objects.filter(model=operation.model).exclude(state="stopped")
    named = operation.steps.exclude(engine="").exclude(state__in=("done", "skipped")).values("engine")
    for choice in (rows.exclude(move_phase=""), rows.filter(id__in=named), rows):
        if id := choice.order_by("-number").values_list("id", flat=True).first():
            return str(id)
    return ""


def kill(fleet: Fleet, victim: str, engine: str) -> str:
    """`kill -9`. Returns what was killed; empty if there was nothing to kill. Raises redis and database errors."""
    if victim == "engine":
        return f"engine {engine}" if any(fleet.kill_pid(pid) for pid in _pids(fleet, engine)) else ""
    name = victim
    if victim == "agent":
        node = models.Rank.objects.filter(engine_id=engine).values_list("node__name", flat=True).first()
        name = f"agent-{node or 'n1'}"
    return name if fleet.kill(name) else ""


def _pids(fleet: Fleet, engine: str) -> list[int]:
    engines = [each for fact in read_facts(fleet).values() for each in fact.engines]
    return [each.pid for each in engines if each.id == engine and each.pid and each.state not in OVER]
