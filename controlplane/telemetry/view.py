"""The fleet as live topics and roll-ups need it: plain values. Read by telemetry.fleet_view. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controlplane.core.cost import Price
from controlplane.telemetry.rows import AlertRow, OperationRow, ProposalRow, StepRow


@dataclass(frozen=True, slots=True)
class GpuView:
    uuid: str
    node: str
    index: int
    kind: str
    engine: str
    """The engine that holds it; empty: spare."""
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class EngineView:
    id: str
    label: str
    model: str
    role: str
    state: str
    state_since: float
    reason: str
    incarnation: int
    nodes: tuple[str, ...]
    gpus: tuple[GpuView, ...]
    arm: str = "main"
    held: bool = False
    next_role: str = ""
    move_phase: str = ""


@dataclass(frozen=True, slots=True)
class PoolView:
    role: str
    desired: int
    tensor_parallel: int


@dataclass(frozen=True, slots=True)
class ModelView:
    name: str
    mode: str
    connector: str
    slo_ttft_ms: float
    slo_itl_ms: float
    pools: tuple[PoolView, ...]
    served_mode: str = ""
    version: int = 0
    frozen_until: float | None = None
    min_uncached_tokens: int | None = None
    canary: Mapping[str, str | float] | None = None
    """`mode` and `share` of the one that runs."""


@dataclass(frozen=True)
class FleetView:
    nodes: Mapping[str, bool] = field(default_factory=dict)
    """Name -> lost."""
    cordoned: frozenset[str] = frozenset()
    heard_at: Mapping[str, float] = field(default_factory=dict)
    """Name -> when control last believed the fact of its agent (Unix seconds); one that never told is not there."""
    gpus: tuple[GpuView, ...] = ()
    prices: Mapping[str, Price] = field(default_factory=dict)
    """Of an hour of one GPU now, by kind."""
    models: tuple[ModelView, ...] = ()
    engines: Mapping[str, EngineView] = field(default_factory=dict)
    operations: tuple[OperationRow, ...] = ()
    """The newest, and every one that is still open."""
    steps: Mapping[int, tuple[StepRow, ...]] = field(default_factory=dict)
    """By number, of the operations that are open or ended lately."""
    table_generation: int = 0
    alerts: tuple[AlertRow, ...] = ()
    """Those that fire, the newest first."""
    proposals: tuple[ProposalRow, ...] = ()
    """Those of the planner that are open or new, the newest first."""

    def role_of(self, engine: str) -> str:
        """The role of an engine; empty when it is not known."""
        known = self.engines.get(engine)
        return known.role if known else ""
