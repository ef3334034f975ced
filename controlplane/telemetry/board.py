"""The newest state of everything that reports, and its last minutes: what live rows are made of. Memory only; pure.

Fed with samples in stream order and with the fleet as it was known then (for roles). A restart feeds it the stream's last
ten minutes again, so that windows and sparks are whole at once.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import cast

from controlplane.core.protocol import EngineRow, GpuRow, NodeRow, RequestRow, RouterRow
from controlplane.core.sketches import Sketch
from controlplane.telemetry.deltas import EngineCounters
from controlplane.telemetry.records import Row, Sample, busy, finished_at, share
from controlplane.telemetry.view import FleetView
from controlplane.telemetry.windows import SLICE_S, MinuteMeans, Window

STALE_S = 5.0
"""A sample older than this leaves the totals."""
FORGET_S = 900.0
LOST_BY_US = frozenset({"engine_error", "cut"})
"""Outcomes that are our failure; a client's own error or hang-up is not."""
SPARK_SAMPLES = 40
SPARK_EVERY_S = SLICE_S
ENGINE_LATENCIES = ("ttft", "itl", "transfer")
"""The engines' histograms that live rows show."""


BUSY, TENSOR, DRAM = range(3)
"""Places in GpuState.minute."""


@dataclass(slots=True)
class GpuState:
    at: float = 0.0
    tensor: float | None = None
    dram: float | None = None
    memory_used_bytes: int | None = None
    power_w: float | None = None
    minute: MinuteMeans = field(default_factory=lambda: MinuteMeans(3))
    """Of BUSY, TENSOR and DRAM."""


@dataclass(slots=True)
class EngineState:
    at: float
    row: EngineRow


@dataclass(slots=True)
class NodeState:
    at: float
    row: NodeRow | None = None
    row_at: float = 0.0


@dataclass(slots=True)
class OperationTraffic:
    """What became of a model's requests while an operation on it ran."""

    since: float
    requests: int = 0
    lost: int = 0


class Board:
    def __init__(self) -> None:
        self.gpus: dict[str, GpuState] = {}
        self.engines: dict[str, EngineState] = {}
        self.nodes: dict[str, NodeState] = {}
        self.models: dict[str, Window] = {}
        """Finished requests as clients saw them: counters requests, failed; sketches ttft, itl."""
        self.pools: dict[tuple[str, str], Window] = {}
        """By model and role: what the engines' counters gained; sketches of ENGINE_LATENCIES."""
        self.lost = Window()
        """Counter records: telemetry records that never came, and requests that a router had no room to tell of."""
        self.routers_since: float | None = None
        self.routers_at = 0.0
        self.engines_since: float | None = None
        self.operations: dict[int, OperationTraffic] = {}
        """By number, of operations on a model: counted while they are open, kept while they are shown."""
        self.sparks: deque[dict[str, float | None]] = deque(maxlen=SPARK_SAMPLES)
        self._spark_slot: int | None = None
        self._counters = EngineCounters()
        self._dropped: dict[str, tuple[float, int]] = {}
        """Per router: when it last said how many rows it had dropped, and how many. An agent's are holes in its numbers."""
        self._pruned_at = 0.0

    def apply(self, sample: Sample[Row], view: FleetView) -> None:
        rows = sample.rows
        if sample.kind == "gpu":
            self._see_node(sample)
            for gpu in cast(tuple[GpuRow, ...], rows):
                self._apply_gpu(gpu, sample.at)
        elif sample.kind == "engine":
            self._see_node(sample)
            for engine in cast(tuple[EngineRow, ...], rows):
                self._apply_engine(engine, sample.at, view)
        elif sample.kind == "node":
            state = self._see_node(sample)
            for node in cast(tuple[NodeRow, ...], rows):
                state.row, state.row_at = node, sample.at
        else:
            self.routers_at = max(self.routers_at, sample.received)
            if self.routers_since is None:
                self.routers_since = sample.at
            self._watch_operations(view)
            if sample.kind == "request":
                for request in cast(tuple[RequestRow, ...], rows):
                    ended_at = finished_at(sample, request)
                    self._apply_request(request, ended_at)
                    self._count_for_operations(request, ended_at, view)
            else:
                for router in cast(tuple[RouterRow, ...], rows):
                    self._apply_router(sample.sender, router, sample.at)
        self._prune(sample.received)

    def missing(self, at: float, count: int) -> None:
        self.lost.at(at).counters["records"] += count

    def spark_is_due(self, now: float) -> bool:
        """Whether `add_spark` should be told the numbers of now."""
        return self._spark_slot is None or int(now // SPARK_EVERY_S) > self._spark_slot

    def add_spark(self, now: float, values: dict[str, float | None]) -> None:
        """Sparks are five seconds apart; slots that nobody filled stay empty, they are a gap."""
        slot = int(now // SPARK_EVERY_S)
        if self._spark_slot is not None:
            skipped = min(slot - self._spark_slot - 1, SPARK_SAMPLES)
            self.sparks.extend(dict.fromkeys(values) for _ in range(skipped))
        self._spark_slot = slot
        self.sparks.append(values)

    def _see_node(self, sample: Sample[Row]) -> NodeState:
        state = self.nodes.setdefault(sample.sender, NodeState(sample.at))
        state.at = max(state.at, sample.at)
        return state

    def _apply_gpu(self, row: GpuRow, at: float) -> None:
        state = self.gpus.get(row.uuid)
        if state is None:
            state = self.gpus[row.uuid] = GpuState()
        tensor, dram = share(row.tensor), share(row.dram)
        state.minute.add(at, busy(row), tensor, dram)
        if at >= state.at:
            state.at, state.tensor, state.dram = at, tensor, dram
            state.memory_used_bytes, state.power_w = row.memory_used_bytes, row.power_w

    def _apply_engine(self, row: EngineRow, at: float, view: FleetView) -> None:
        gain = self._counters.gain(row, at)
        if gain is None:
            return
        self.engines[row.engine] = EngineState(at, row)
        if self.engines_since is None:
            self.engines_since = at
        if gain.counters or gain.latencies:
            tally = self.pools.setdefault((row.model, view.role_of(row.engine)), Window()).at(at)
            tally.count(gain.counters)
            for name in ENGINE_LATENCIES:
                if name in gain.latencies:
                    tally.gain(name, gain.latencies[name])

    def _apply_router(self, sender: str, row: RouterRow, at: float) -> None:
        _, before = self._dropped.get(sender, (at, row.dropped))
        self.missing(at, row.dropped - before if row.dropped >= before else row.dropped)
        self._dropped[sender] = (at, row.dropped)

    def _apply_request(self, row: RequestRow, at: float) -> None:
        tally = self.models.setdefault(row.model, Window()).at(at)
        tally.counters["requests"] += row.weight
        if row.outcome in LOST_BY_US:
            tally.counters["failed"] += row.weight
        if row.stream and row.ttft_ms is not None:  # a whole answer's first byte is its last
            tally.sketches["ttft"].add(row.ttft_ms, row.weight)
        if row.stream and row.itl_ms:
            tally.sketches["itl"].merge(Sketch.of(row.itl_ms, row.weight))

    def _watch_operations(self, view: FleetView) -> None:
        """Begin to count for what is open, forget what nobody shows any more."""
        since = self.routers_since or 0.0
        for operation in view.operations:
            if operation.model and operation.finished_at is None and operation.number not in self.operations:
                self.operations[operation.number] = OperationTraffic(max(operation.created_at, since))
        if len(self.operations) > len(view.operations):
            shown = {operation.number for operation in view.operations}
            self.operations = {number: seen for number, seen in self.operations.items() if number in shown}

    def _count_for_operations(self, row: RequestRow, ended_at: float, view: FleetView) -> None:
        for operation in view.operations:
            seen = self.operations.get(operation.number)
            if seen is None or operation.model != row.model or ended_at < seen.since:
                continue
            if operation.finished_at is None or ended_at <= operation.finished_at:
                seen.requests += row.weight
                seen.lost += row.weight if row.outcome in LOST_BY_US else 0

    def _prune(self, now: float) -> None:
        """Forget what reported nothing for long; once a minute."""
        if now - self._pruned_at < 60:
            return
        self._pruned_at = now
        self._counters.forget(now)
        self.gpus = {uuid: state for uuid, state in self.gpus.items() if now - state.at < FORGET_S}
        self.engines = {id: state for id, state in self.engines.items() if now - state.at < FORGET_S}
        self.nodes = {name: state for name, state in self.nodes.items() if now - state.at < FORGET_S}
        self._dropped = {name: told for name, told in self._dropped.items() if now - told[0] < FORGET_S}
        self.models = {name: window for name, window in self.models.items() if not window.idle(now)}
        self.pools = {key: window for key, window in self.pools.items() if not window.idle(now)}
