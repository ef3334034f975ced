"""Telemetry as ingest makes it, for tests of queries: samples in, rows written by the real roll-ups and the real writer."""

from __future__ import annotations

from typing import Any

from controlplane.config import Config
from controlplane.telemetry.hours import roll_up, roll_up_engines
from controlplane.telemetry.partitions import Partitions, keep
from controlplane.telemetry.records import Sample
from controlplane.telemetry.rollups import Rollups
from controlplane.telemetry.tables import Batch
from controlplane.telemetry.view import EngineView, FleetView, ModelView
from controlplane.telemetry.writer import Writer

NOON = 1_796_040_000.0
"""30 November 2026, 12:00 UTC: a whole hour."""
HOUR_S = 3600.0


def engine(id: str, role: str, model: str = "llama") -> EngineView:
    return EngineView(id, id.upper(), model, role, "ready", 0.0, "", 1, ("n1",), ())


def fleet(*engines: EngineView) -> FleetView:
    models = {each.model for each in engines} or {"llama"}
    return FleetView(
        engines={each.id: each for each in engines},
        models=tuple(ModelView(name, "disaggregated", "nixl", 1000.0, 50.0, ()) for name in sorted(models)),
    )


P1, D1 = engine("p1", "prefill"), engine("d1", "decode")
FLEET = fleet(P1, D1)


class Recorder:
    """Consumes samples in order of time and writes what they make."""

    def __init__(self, view: FleetView = FLEET) -> None:
        self.view = view
        self.partitions = Partitions(keep(Config()))
        self._rollups = Rollups()
        self._writer = Writer(self.partitions)

    def take(self, at: float, kind: Any, *rows: Any) -> None:
        source = "router:r1" if kind in ("request", "router") else "agent:n1"
        self._rollups.consume(Sample(f"{int(at * 1000)}-0", at, at, source, kind, rows), self.view)

    def write(self, until: float) -> None:
        """Everything that is over by then; the stream counts as read that far."""
        self._rollups.advance(until)
        self.store(self._rollups.closed(), until)

    def store(self, batch: Batch, until: float) -> None:
        self._writer.write(batch, f"{int(until * 1000)}-0", until)

    def roll_up(self) -> int:
        """Hours that are due; how many of models, pools and pairs."""
        roll_up_engines(self.partitions, 1000)
        return roll_up(self.partitions, 1000)
