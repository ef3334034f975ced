"""The steps a reconcile may ask for: a closed set, each with its reason. Pure data; `control.apply` carries them out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from controlplane.core.placement import Placement
from controlplane.core.protocol import Mode
from controlplane.core.world import MAIN, DrainMark

Verb = Literal["start", "stop", "drain", "undrain"]


@dataclass(frozen=True)
class Create:
    """A pool lacks an engine: make its row on these GPUs. `surge`: one beyond its size, in whose place another goes."""

    model: str
    role: str
    placement: Placement
    reason: str
    arm: str = MAIN
    surge: bool = False


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
    leader: str = ""
    """start of a rank beyond 0: where rank 0 is joined (EngineSpec.leader)."""


@dataclass(frozen=True)
class BeginMove:
    """A serving engine leaves its pool for another of its model, without a restart: from now on it counts there and takes
    no new work. What is known of its pairs is forgotten: they are proven anew."""

    engine: str
    role: str
    arm: str
    reason: str


@dataclass(frozen=True)
class Verify:
    """An engine that moves has let go of its old work (or patience ended): its pairs in the new role are proven."""

    engine: str
    reason: str


@dataclass(frozen=True)
class FinishMove:
    """The engine has its new role and arm."""

    engine: str
    role: str
    arm: str
    reason: str


@dataclass(frozen=True)
class AbortMove:
    """The engine keeps its old role and arm; the step that asked for the new one fails with this reason."""

    engine: str
    reason: str


@dataclass(frozen=True)
class Probe:
    """See whether KV moves from one engine to the other."""

    prefill: str
    decode: str
    prefill_incarnation: int
    decode_incarnation: int
    reason: str


@dataclass(frozen=True)
class Flip:
    """The model is served in another mode from now on, and these engines (id, role, arm) get their new places in the same
    moment, so that one routing table brings both. With the mode that is served already: engines in the phase `together`."""

    model: str
    mode: Mode
    engines: tuple[tuple[str, str, str], ...]
    reason: str


Action = Create | Retire | Restart | Halt | Release | Send | BeginMove | Verify | FinishMove | AbortMove | Probe | Flip


@dataclass(frozen=True)
class Plan:
    """What to do now, in order; why nothing is done where something is missing (`waiting`: subject -> reason; a subject is
    an engine's id, PoolState.name or a model); the drain marks to hand in at the next tick; and `problems` (model ->
    reason): what keeps its desired mode or exchange from being, so that the operation which asked for it has failed."""

    actions: tuple[Action, ...] = ()
    waiting: Mapping[str, str] = field(default_factory=dict)
    drains: Mapping[str, DrainMark] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
