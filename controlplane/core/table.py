"""The routing table that the fleet's rows amount to. Pure.

An engine is listed as ready only if its agent said so after a real generation, it is wanted, nobody holds it out and it is
not on its way into another pool; as draining, under the role it had, while it still may hold somebody's work. Lost,
stopping, starting and failed engines are not listed. Engines of a silent but not lost node stay as they were recorded: the
routers' own breakers judge them.

A model or engine that routers would refuse is left out with its reason: it must not keep the others' table from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Literal, cast

from controlplane.core.codec import WrongShape, decode, encode
from controlplane.core.lifecycle import SERVING
from controlplane.core.protocol import (
    ROLES_OF_MODE,
    VERSION,
    Canary,
    EngineRoute,
    KeyEntry,
    Mode,
    ModelRoute,
    Role,
    RoutingTable,
    engine_problem,
    model_problem,
)
from controlplane.core.world import EngineState

DEFAULT_MAX_NUM_SEQS = 256


def build_table(
    models: Iterable[ModelRoute],
    engines: Iterable[EngineState],
    max_num_seqs: dict[str, int],
    stamp: tuple[int, int],
    keys: tuple[KeyEntry, ...] = (),
    require_key: bool = False,
    peers: Mapping[str, tuple[str, ...]] | None = None,
    weights: Mapping[str, float] | None = None,
) -> tuple[RoutingTable, dict[str, str]]:
    """The table with epoch and generation `stamp`, and per model or engine that is left out why. `models` come without
    engines, oldest first; `max_num_seqs` is per model name; `peers` (core.pairs.peers_listed) and `weights`
    (core.ramp.weights) per engine where they are not the usual ones."""
    peers, weights = peers or {}, weights or {}
    left_out: dict[str, str] = {}
    listed: dict[str, list[EngineRoute]] = {}
    for engine in sorted(engines, key=lambda each: each.number):
        state = _listed_as(engine)
        if state:
            seqs = max_num_seqs.get(engine.model, DEFAULT_MAX_NUM_SEQS)
            weight = engine.weight * weights.get(engine.id, 1.0)
            route = _route(engine, state, seqs, weight, peers.get(engine.id, ()))
            problem = engine_problem(route)
            if problem:
                left_out[engine.id] = problem
            else:
                listed.setdefault(engine.model, []).append(route)
    routes: list[ModelRoute] = []
    taken: set[str] = set()
    for model in models:
        own = tuple(listed.get(model.name, ()))
        full = replace(model, engines=own, canary=_fitting_canary(model.canary, model.mode, own))
        problem = _problem(full, taken)
        if problem:
            left_out[model.name] = problem
        else:
            taken.update(full.names)
            routes.append(full)
    table = RoutingTable(
        version=VERSION, epoch=stamp[0], generation=stamp[1], require_key=require_key, keys=keys, models=tuple(routes)
    )
    return table, left_out


def _fitting_canary(canary: Canary | None, mode: Mode, engines: tuple[EngineRoute, ...]) -> Canary | None:
    """A canary as its arm can carry it now: a share of at most its part of all GPUs that serve; None while it lacks a ready
    engine that its mode needs, or cannot be tried on shared engines against `mode`."""
    if canary is None:
        return None
    if canary.shared:
        return canary if "monolithic" not in (canary.mode, mode) else None
    ready = [engine for engine in engines if engine.state == "ready"]
    arm = [engine for engine in ready if engine.arm == canary.arm]
    if not {engine.role for engine in arm}.issuperset(ROLES_OF_MODE[canary.mode]):
        return None
    part = sum(engine.tp * engine.dp for engine in arm) / sum(engine.tp * engine.dp for engine in ready)
    return replace(canary, share=min(canary.share, round(part, 4)))


def _problem(route: ModelRoute, taken: set[str]) -> str:
    """Why routers would refuse a table with this model; empty if they would not."""
    names = route.names
    shared = sorted(name for name in set(names) if name in taken or names.count(name) > 1)
    if shared:
        return f"another model (or this one twice) has the name {', '.join(shared)}"
    return _refusal(route)


@lru_cache(maxsize=1024)
def _refusal(route: ModelRoute) -> str:
    """Why a router that reads it would refuse it. Kept, as most models are in one table as they were in the last."""
    try:
        return model_problem(decode(ModelRoute, encode(route)))
    except WrongShape as error:
        return str(error)


def _listed_as(engine: EngineState) -> Literal["ready", "draining", ""]:
    if not engine.url or engine.state not in SERVING:
        return ""
    return "ready" if engine.serves else "draining"


def _route(
    engine: EngineState, state: Literal["ready", "draining"], max_num_seqs: int, weight: float, peers: tuple[str, ...]
) -> EngineRoute:
    return EngineRoute(
        id=engine.id,
        url=engine.url,
        role=cast(Role, engine.role),
        incarnation=engine.incarnation,
        state=state,
        arm=engine.arm,
        weight=weight,
        peers=peers,
        node=engine.ranks[0].node if engine.ranks else "",
        gpu=engine.gpu_kind,
        tp=engine.tensor_parallel,
        compat=engine.compat,
        max_num_seqs=max_num_seqs,
    )


def next_stamp(current: tuple[int, int], seen: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """The stamp of a changed table. Normally the next generation; a new epoch if somebody already has a higher stamp than
    ours, which happens only after the database was restored from a backup."""
    newest = max(seen, default=current)
    if newest > current:
        return (newest[0] + 1, current[1] + 1)
    return (current[0], current[1] + 1)
