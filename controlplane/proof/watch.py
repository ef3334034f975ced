"""Reads, while changes run, what they did to engines: which served when, in which role, and how long each was on its way.

Times are those that the control plane wrote (one clock), so how often this looks does not blur them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from controlplane.core.protocol import ROLES_OF_MODE
from controlplane.fleet import models

LEAVING = "leaving"


class Watch:
    """One model's engines. `look` often; the figures are kept."""

    def __init__(self, model: str) -> None:
        self.retasks = 0
        """Engines that came to serve in another role."""
        self.flips = 0
        """Those of them that did so from one table to the next."""
        self.out_of_service_s: list[float] = []
        """Per other retask: from the first table that offers the engine to nobody to the first that offers it again."""
        self.drains_s: list[float] = []
        """Per retask that went over a drain: until no router could choose the engine and its work was done."""
        self.beside_drain_s: list[float] = []
        """What was left of the time out of service."""
        self.problems: list[str] = []
        self._model = model
        self._stamp = (-1, -1)
        self._ready: dict[str, str] = {}
        self._out: dict[str, tuple[datetime, str]] = {}
        self._leaving: dict[str, datetime] = {}
        self._drained: dict[str, float] = {}

    def look(self) -> None:
        """Raises database errors."""
        self._moves()
        row = models.TableState.objects.filter(id=1).values("epoch", "generation").first()
        if row and (row["epoch"], row["generation"]) != self._stamp:
            self._table(models.TableState.objects.get(id=1))

    def _moves(self) -> None:
        rows = models.Engine.objects.filter(model__name=self._model, move_since__isnull=False)
        moving = {id: (phase, since) for id, phase, since in rows.values_list("id", "move_phase", "move_since")}
        for id, began in list(self._leaving.items()):
            phase, since = moving.get(id, ("", None))
            if phase != LEAVING:
                del self._leaving[id]
                if since is not None:
                    self._drained[id] = (since - began).total_seconds()
                    self.drains_s.append(self._drained[id])
        self._leaving |= {id: since for id, (phase, since) in moving.items() if phase == LEAVING and since is not None}

    def _table(self, row: models.TableState) -> None:
        self._stamp = (row.epoch, row.generation)
        route = next((each for each in (row.document or {}).get("models", ()) if each["name"] == self._model), None)
        if route is None or row.published_at is None:
            self.problems.append(f"table {row.epoch}:{row.generation} does not offer {self._model}")
            return
        ready = {engine["id"]: engine["role"] for engine in route["engines"] if engine["state"] == "ready"}
        self._compare(ready, row.published_at)
        missing = [role for role in ROLES_OF_MODE[route["mode"]] if role not in ready.values()]
        if missing:
            self.problems.append(f"table {row.epoch}:{row.generation} has no ready {' and '.join(missing)} engine")

    def _compare(self, ready: Mapping[str, str], at: datetime) -> None:
        for id, role in self._ready.items():
            if id not in ready:
                self._out[id] = (at, role)
            elif ready[id] != role:
                self.retasks += 1
                self.flips += 1
        for id in ready.keys() - self._ready.keys():
            since, role = self._out.pop(id, (at, ready[id]))
            drained_s = self._drained.pop(id, 0.0)
            if role != ready[id]:
                self.retasks += 1
                self.out_of_service_s.append((at - since).total_seconds())
                self.beside_drain_s.append(max(0.0, self.out_of_service_s[-1] - drained_s))
        self._ready = dict(ready)


def quantile(values: list[float], share: float) -> float | None:
    """Of a small sample: the least value that so large a share does not exceed; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def as_json(watch: Watch) -> dict[str, Any]:
    """The figures, seconds as milliseconds."""
    return {
        "retasks": watch.retasks,
        "flips": watch.flips,
        "drains": len(watch.drains_s),
        "drain_ms": _percentiles(watch.drains_s),
        "out_of_service_ms": _percentiles(watch.out_of_service_s),
        "out_of_service_beside_drain_ms": _percentiles(watch.beside_drain_s),
    }


def _percentiles(values: list[float]) -> dict[str, float | None]:
    found = {"p50": quantile(values, 0.5), "p99": quantile(values, 0.99)}
    return {name: None if value is None else round(value * 1000, 1) for name, value in found.items()}
