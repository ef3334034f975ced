"""The steps a reconcile may ask for: a closed set, each with its reason. Pure data; `control.apply` carries them out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from controlplane.core.placement import Placement
from controlplane.core.world import DrainMark

Verb = Literal["start", "stop", "drain", "undrain"]


@dataclass(frozen=True)
class Create:
    """A pool lacks an engine: make its row on these GPUs."""

    model: str
    role: str
    placement: Placement
    reason: str


@dataclass(frozen=True)
class Retire:
    """An engine is not wanted any more: it will be drained and stopped."""

    engine: str
    reason: str


@dataclass(frozen=True)
class Restart:
    """Start again under the next generation. `generation` is the one it replaces."""

    engine: str
    generation: int
    reason: str


@dataclass(frozen=True)
class Halt:
    """A drained (or never serving) engine leaves the table for good. `state`: stopping, or stopped if no process is left."""

    engine: str
    state: Literal["stopping", "stopped"]
    reason: str


@dataclass(frozen=True)
class Release:
    """The engine has stopped: give its GPUs back."""

    engine: str
    reason: str


@dataclass(frozen=True)
class Send:
    """A command to the agent of `node`. `engine` may be one that no row knows (verb stop)."""

    node: str
    engine: str
    verb: Verb
    generation: int
    reason: str
    rank: int = 0


Action = Create | Retire | Restart | Halt | Release | Send


@dataclass(frozen=True)
class Plan:
    """What to do now, in order; why nothing is done where something is missing (`waiting`: subject -> reason); and the
    drain marks to hand in at the next tick."""

    actions: tuple[Action, ...] = ()
    waiting: Mapping[str, str] = field(default_factory=dict)
    drains: Mapping[str, DrainMark] = field(default_factory=dict)
