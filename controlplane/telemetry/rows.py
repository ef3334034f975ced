"""The rows of live topics: what a page shows. Whole rows replace whole rows by `id`; the field `type` says which class.

Topic "fleet" holds one FleetRow, one ModelRow per model, one EngineLiveRow per engine, one NodeLiveRow per node and one
OperationRow for each of the newest 20 operations and of those that are still open. Topic "nodes" holds a NodeLiveRow and a
NodeGpusRow per node. Topic "alerts" holds what the bar of every page counts, one AlertsRow and one ProposalsRow, and an
AlertRow per alert that fires, the newest 200. Topic "proposals" holds the ProposalsRow and a ProposalRow per proposal of the
planner that is open or among the newest 20. Topic "model:<name>" holds that model's rows only. Topic "operation:<id>"
holds, of an operation that is open or ended lately, its OperationRow, its TrafficRow, a StepRow per step and the
EngineLiveRow of each engine that a step names. A number that is not known is None, never 0. Windows are part of the names'
docs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LatencyMs:
    """Percentiles of one latency over a window; None without samples."""

    p50: float | None
    p99: float | None
    count: int


@dataclass(frozen=True)
class FleetRow:
    """id "fleet"."""

    id: str
    type: str
    requests_per_s: float | None
    """Last minute."""
    failed: int
    """Requests lost or failed by us in the last 5 minutes (not client errors)."""
    ttft: LatencyMs
    """5 minutes, worst model by share of its SLO; `ttft_model` names it."""
    ttft_model: str
    ttft_slo_ms: float | None
    itl: LatencyMs
    itl_model: str
    itl_slo_ms: float | None
    transfer: LatencyMs
    """KV transfer, all pairs, 5 minutes."""
    transfer_bytes_per_s: float | None
    """Last minute."""
    transfers_failed: int
    """5 minutes."""
    effective_gpus: float | None
    """Sum of busy shares over the last minute, stale GPUs left out."""
    effective_by_role: dict[str, float]
    gpus: int
    """GPUs with fresh samples."""
    gpus_stale: int
    spare_gpus: int
    output_tokens_per_s: float | None
    """Last minute, prefill engines left out."""
    gaps: int
    """Telemetry records lost in the last 5 minutes."""
    table_generation: int
    spark: dict[str, list[float | None]]
    """Last 40 samples 5 s apart of requests_per_s, ttft_p99, itl_p99, transfer_p99."""
    cost_per_hour: float | None = None
    """US$ of all GPUs there are, at the price book's present prices; None: a kind has none."""
    idle_per_hour: float | None = None
    """US$ of what of them is not busy (1 - busy share), last minute; GPUs that do not tell are left out."""
    cost_guess: bool = False
    """Some of both is at a list price that nobody gave."""


@dataclass(frozen=True)
class ModelRow:
    """id "model:<name>"."""

    id: str
    type: str
    name: str
    mode: str
    """Desired."""
    connector: str
    tensor_parallel: int
    gpus: int
    requests_per_s: float | None
    """Last minute."""
    ttft: LatencyMs
    itl: LatencyMs
    """ttft and itl: last 5 minutes, of streamed answers as routers saw them (where there are none: the engines' own)."""
    slo_ttft_ms: float
    slo_itl_ms: float
    transfer: LatencyMs
    """Last minute."""
    transfer_bytes_per_s: float | None
    transfer_histogram: list[int]
    """24 log-spaced buckets from 1 ms to 10 s, last 10 minutes."""
    pools: dict[str, dict[str, float | int | None]]
    """Per role: engines, ready, desired, gpus, tensor, dram (shares; mean of the fresh GPUs over the last minute), waiting,
    running (of engines with fresh samples)."""
    served_mode: str = ""
    """What the routing table says; follows `mode`."""
    version: int = 0
    """Of what is desired: a page that was drawn from another one is old."""
    frozen_until: float | None = None
    min_uncached_tokens: int | None = None
    """From which mode conditional splits."""
    canary: Mapping[str, str | float] | None = None
    """`mode` and `share` of the one that runs."""


@dataclass(frozen=True)
class EngineLiveRow:
    """id "engine:<id>"."""

    id: str
    type: str
    engine: str
    label: str
    model: str
    role: str
    state: str
    state_since: float
    reason: str
    node: str
    gpu_indices: list[int]
    gpu_uuids: list[str]
    incarnation: int
    tensor: list[float | None]
    """Per GPU, last second."""
    dram: list[float | None]
    running: int | None
    waiting: int | None
    kv_usage: float | None
    sampled_at: float | None
    """When the newest sample was taken; the page shows stale from 5 s on."""
    arm: str = "main"
    held: bool = False
    """An operator keeps it out of the routing table."""
    next_role: str = ""
    """The role it is being given without a restart; empty: none."""
    move_phase: str = ""


@dataclass(frozen=True)
class NodeLiveRow:
    """id "node:<name>"."""

    id: str
    type: str
    name: str
    state: str
    """ok, silent or lost."""
    gpus: int
    spare: list[int]
    """Indices of GPUs that no engine holds."""
    gpu_kind: str
    cpu: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    sampled_at: float | None
    cordoned: bool = False
    """It is given no new engines."""
    heard_at: float | None = None
    """When control last believed its agent's fact."""


@dataclass(frozen=True)
class NodeGpusRow:
    """id "gpus:<node>": every GPU of a node. All lists run in parallel, by index of the GPU."""

    id: str
    type: str
    node: str
    uuids: list[str]
    indices: list[int]
    kinds: list[str]
    engines: list[str]
    """The engine that holds it; empty: spare."""
    labels: list[str]
    models: list[str]
    roles: list[str]
    """These three of that engine."""
    tensor: list[float | None]
    """Last second, as all that follows. None when its samples stopped while others of the node go on."""
    dram: list[float | None]
    memory_used_bytes: list[int | None]
    memory_bytes: list[int]
    """What it has."""
    power_w: list[float | None]
    sampled_at: float | None
    """When the newest of them was sampled."""


@dataclass(frozen=True)
class OperationRow:
    """id "operation:<id>"."""

    id: str
    type: str
    number: int
    verb: str
    model: str
    state: str
    actor: str
    reason: str
    outcome: str
    created_at: float
    finished_at: float | None
    steps_done: int
    steps_total: int
    subject: str = ""
    """What was changed, as the audit names it: "model:llama-70b", "node:n1"."""
    undoes: int | None = None
    """The operation that it takes back."""


@dataclass(frozen=True)
class StepRow:
    """id "step:<operation>/<index>"."""

    id: str
    type: str
    operation: int
    index: int
    verb: str
    role: str
    engine: str
    """Empty until the loop has chosen one."""
    label: str
    """Of the engine, as tiles show it; its id when it is gone."""
    state: str
    reason: str
    started_at: float | None
    finished_at: float | None


@dataclass(frozen=True)
class TrafficRow:
    """id "traffic:<operation>": what became of the model's requests while the operation ran."""

    id: str
    type: str
    requests: int | None
    """That ended since `since`; None while no router reports."""
    lost: int | None
    """Of those: lost or failed by us (not client errors)."""
    since: float | None
    """When counting began: the operation's start, or later if telemetry of then was not there to be read."""


@dataclass(frozen=True)
class AlertsRow:
    """id "alerts": how many fire."""

    id: str
    type: str
    firing: int
    """That nobody silenced; of those `critical`."""
    critical: int
    silenced: int


@dataclass(frozen=True)
class AlertRow:
    """id "alert:<number>": one that fires."""

    id: str
    type: str
    number: int
    rule: str
    severity: str
    subject: str
    """model:<name>, pool:<model>/<role>, node:<name>, engine:<id>, fleet or routers."""
    model: str
    label: str
    value: float | None
    peak: float | None
    threshold: float
    last: str
    """What the newest look said: bad, between, good or unknown (no data)."""
    facts: dict[str, Any]
    began_at: float
    fired_at: float
    silenced_until: float | None
    silenced_by: str
    silenced_why: str


@dataclass(frozen=True)
class ProposalsRow:
    """id "proposals": how many are open; of those `asked` wait for somebody's decision."""

    id: str
    type: str
    open: int
    asked: int


@dataclass(frozen=True)
class ProposalRow:
    """id "proposal:<number>": one that the planner made. Times are Unix seconds, latencies ms, null where a layout cannot
    keep up."""

    id: str
    type: str
    number: int
    model: str
    giver: str
    """The other model: it gives GPUs, or gets them back. Empty: none."""
    state: str
    level: str
    cause: str
    mode_before: str
    mode: str
    before: dict[str, int]
    """Engines by role."""
    sizes: dict[str, int]
    """Asked for, as a person changed it if one did."""
    title: str
    moves: int
    reason: str
    """The weightiest, one plain sentence."""
    ttft_p99_ms: tuple[float | None, float | None]
    """Of the present layout, and predicted."""
    itl_p99_ms: tuple[float | None, float | None]
    created_at: float
    seen_at: float
    expires_at: float
    hindrance: str
    decided_at: float | None
    decided_by: str
    decision: str
    operation: int | None
    measured: bool
    """What came of it is known."""
