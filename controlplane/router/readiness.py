"""What /readyz says: whether each model has an engine that answers in each pool that its mode needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from controlplane.core.protocol import ROLES_OF_MODE
from controlplane.router.engines import Directory, Engine, Model
from controlplane.router.limits import Limits
from controlplane.router.probes import prove
from controlplane.router.upstream import Fault

PROOF_S = 1.0
"""How long an answer waits for engines that are asked for the first time. Later ones find what came of it."""
ASKED_AT_ONCE = 4
"""Engines of a pool."""


class Proofs:
    """Asks engines that have not served this router yet, so that nobody is called ready because a table says so. Of a pool
    one that answers will do: what all of them do, their requests will show."""

    def __init__(
        self,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        failed: Callable[[Engine, Fault], None],
        limits: Limits,
    ) -> None:
        self._spawn = spawn
        self._failed = failed
        self._limits = limits
        self._running: dict[Engine, asyncio.Task[None]] = {}

    async def seek(self, directory: Directory) -> None:
        """Returns when what can be known soon is known."""
        wanted = [engine for model in set(directory.models.values()) for engine in _unproven(model)]
        for engine in wanted:
            if engine not in self._running:
                self._running[engine] = self._spawn(self._ask(engine))
        if wanted:
            await asyncio.wait([self._running[engine] for engine in wanted], timeout=PROOF_S)

    async def _ask(self, engine: Engine) -> None:
        try:
            fault = await prove(engine, self._limits)
            if fault is not None:
                self._failed(engine, fault)
        finally:
            del self._running[engine]


def _unproven(model: Model) -> list[Engine]:
    """Engines to be asked, of the pools that the mode needs and in which none has answered."""
    found: list[Engine] = []
    for role in ROLES_OF_MODE[model.route.mode]:
        pool = [engine for engine in model.engines if _serves(engine, role)]
        if not any(engine.proven for engine in pool):
            found += pool[:ASKED_AT_ONCE]
    return found


def _serves(engine: Engine, role: str) -> bool:
    return engine.usable and engine.route.state == "ready" and engine.route.role == role


def report(directory: Directory, only: str | None, stopping: bool) -> tuple[bool, dict[str, Any]]:
    """(ready, document). Ready if at least one model is; with `only`, if that one is."""
    models = {model.route.name: _model(model) for model in directory.models.values()}
    if only is not None:
        chosen = directory.models.get(only)
        ready = chosen is not None and models[chosen.route.name]["ready"]
    else:
        ready = any(model["ready"] for model in models.values())
    ready = bool(ready) and not stopping
    table = directory.table
    document: dict[str, Any] = {
        "status": "ready" if ready else "stopping" if stopping else "not ready",
        "table": {"epoch": table.epoch, "generation": table.generation} if table is not None else None,
        "models": models,
    }
    return ready, document


def _model(model: Model) -> dict[str, Any]:
    usable = {role: [e for e in model.engines if _serves(e, role)] for role in ("prefill", "decode", "mixed")}
    pools = {role: len(engines) for role, engines in usable.items()}
    missing = [role for role in ROLES_OF_MODE[model.route.mode] if not any(e.proven for e in usable[role])]
    return {"ready": not missing, "mode": model.route.mode, "usable_engines": pools, "missing": missing}
