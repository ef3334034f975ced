"""What /readyz says: whether each model has a usable engine in each pool that its mode needs."""

from __future__ import annotations

from typing import Any

from controlplane.core.protocol import ROLES_OF_MODE
from controlplane.router.engines import Directory, Model


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
    pools = {
        role: sum(e.usable and e.route.state == "ready" and e.route.role == role for e in model.engines)
        for role in ("prefill", "decode", "mixed")
    }
    missing = [role for role in ROLES_OF_MODE[model.route.mode] if not pools[role]]
    return {"ready": not missing, "mode": model.route.mode, "usable_engines": pools, "missing": missing}
