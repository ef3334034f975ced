"""One open bucket per kind of row: adds samples, then turns into a row of its table. Pure; shares are means of samples."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from controlplane.core.protocol import EngineRow, GpuRow, NodeRow, RequestRow
from controlplane.core.sketches import Sketch
from controlplane.telemetry.board import LOST_BY_US
from controlplane.telemetry.deltas import Gain
from controlplane.telemetry.records import COUNTERS, HISTOGRAMS, share
from controlplane.telemetry.tables import (
    ENGINE_10S,
    GPU_MINUTE,
    MODEL_MINUTE,
    NODE_SECOND,
    PAIR_MINUTE,
    POOL_MINUTE,
    Batch,
    moment,
)
from controlplane.telemetry.windows import Tally


class Mean:
    """The mean of known values."""

    __slots__ = ("count", "largest", "total")

    def __init__(self) -> None:
        self.total, self.count, self.largest = 0.0, 0, 0.0

    def add(self, value: float | None) -> None:
        if value is not None:
            self.total += value
            self.count += 1
            if value > self.largest:
                self.largest = value

    @property
    def value(self) -> float | None:
        return self.total / self.count if self.count else None

    @property
    def max(self) -> float | None:
        return self.largest if self.count else None


@dataclass(slots=True)
class NodeSecond:
    start: int
    width_s: int
    node: str
    gpus: tuple[GpuRow, ...] = ()
    roles: Sequence[str] = ()
    node_row: NodeRow | None = None

    def set_gpus(self, rows: tuple[GpuRow, ...], roles: Sequence[str]) -> None:
        self.gpus, self.roles = rows, roles

    def add_to(self, batch: Batch) -> None:
        gpus, node = self.gpus, self.node_row
        batch.add(
            NODE_SECOND,
            {
                "node": self.node,
                "at": moment(self.start),
                "gpus": [gpu.uuid for gpu in gpus],
                "engines": [gpu.engine for gpu in gpus],
                "roles": [role[:1] for role in self.roles],
                "tensor": [share(gpu.tensor) for gpu in gpus],
                "tensor_peak": [share(gpu.tensor_peak) for gpu in gpus],
                "dram": [share(gpu.dram) for gpu in gpus],
                "memory_used_bytes": [gpu.memory_used_bytes for gpu in gpus],
                "power_w": [gpu.power_w for gpu in gpus],
                "cpu": node.cpu if node else None,
                "node_memory_used_bytes": node.memory_used_bytes if node else None,
                "node_memory_total_bytes": node.memory_total_bytes if node else None,
                "disk_free_bytes": node.disk_free_bytes if node else None,
            },
        )


@dataclass(slots=True)
class GpuMinute:
    start: int
    width_s: int
    uuid: str
    node: str = ""
    engine: str = ""
    role: str = ""
    samples: int = 0
    tensor: Mean = field(default_factory=Mean)
    tensor_peak: Mean = field(default_factory=Mean)
    dram: Mean = field(default_factory=Mean)
    busy: Mean = field(default_factory=Mean)
    memory: Mean = field(default_factory=Mean)
    power: Mean = field(default_factory=Mean)

    def add(self, node: str, row: GpuRow, role: str, busy: float | None) -> None:
        self.node, self.engine, self.role = node, row.engine, role
        self.samples += 1
        self.tensor.add(share(row.tensor))
        self.tensor_peak.add(share(row.tensor_peak))
        self.dram.add(share(row.dram))
        self.busy.add(busy)
        self.memory.add(row.memory_used_bytes)
        self.power.add(row.power_w)

    def add_to(self, batch: Batch) -> None:
        memory = self.memory.max
        batch.add(
            GPU_MINUTE,
            {
                "uuid": self.uuid,
                "at": moment(self.start),
                "node": self.node,
                "engine": self.engine,
                "role": self.role,
                "samples": self.samples,
                "tensor": self.tensor.value,
                "tensor_peak": self.tensor_peak.max,
                "dram": self.dram.value,
                "busy": self.busy.value,
                "memory_used_bytes": None if memory is None else int(memory),
                "power_w": self.power.value,
            },
        )


@dataclass(slots=True)
class EngineTenSeconds:
    start: int
    width_s: int
    engine: str
    incarnation: int
    role: str
    model: str
    state: str = ""
    samples: int = 0
    running: Mean = field(default_factory=Mean)
    waiting: Mean = field(default_factory=Mean)
    kv_usage: Mean = field(default_factory=Mean)
    gained: Tally = field(default_factory=Tally)
    told_s: int = 0

    def add(self, row: EngineRow, gain: Gain) -> None:
        self.state = row.state
        self.samples += 1
        self.running.add(row.running)
        self.waiting.add(row.waiting)
        self.kv_usage.add(share(row.kv_usage))
        add_gain(self.gained, gain)

    def add_to(self, batch: Batch) -> None:
        batch.add(
            ENGINE_10S,
            {
                "engine": self.engine,
                "at": moment(self.start),
                "incarnation": self.incarnation,
                "role": self.role,
                "model": self.model,
                "state": self.state,
                "samples": self.samples,
                "running": self.running.value,
                "running_max": int(self.running.largest),
                "waiting": self.waiting.value,
                "waiting_max": int(self.waiting.largest),
                "kv_usage": self.kv_usage.value,
                "kv_usage_max": self.kv_usage.max,
                **gained_columns(self.gained),
                "told_s": self.told_s,
            },
        )


@dataclass(slots=True)
class PoolMinute:
    start: int
    width_s: int
    model: str
    role: str
    gpus: set[str] = field(default_factory=set)
    gpu_seconds: int = 0
    known_seconds: int = 0
    busy_seconds: float = 0.0
    tensor: Mean = field(default_factory=Mean)
    dram: Mean = field(default_factory=Mean)
    running: defaultdict[str, Mean] = field(default_factory=lambda: defaultdict(Mean))
    waiting: defaultdict[str, Mean] = field(default_factory=lambda: defaultdict(Mean))
    kv_usage: Mean = field(default_factory=Mean)
    gained: Tally = field(default_factory=Tally)
    recorded_s: int = 0
    told_s: int = 0

    def add_gpu(self, row: GpuRow, busy: float | None) -> None:
        self.gpus.add(row.uuid)
        self.gpu_seconds += 1
        if busy is not None:
            self.known_seconds += 1
            self.busy_seconds += busy
        self.tensor.add(share(row.tensor))
        self.dram.add(share(row.dram))

    def add_engine(self, row: EngineRow, gain: Gain) -> None:
        self.running[row.engine].add(row.running)
        self.waiting[row.engine].add(row.waiting)
        self.kv_usage.add(share(row.kv_usage))
        add_gain(self.gained, gain)

    def add_to(self, batch: Batch) -> None:
        batch.add(
            POOL_MINUTE,
            {
                "model": self.model,
                "role": self.role,
                "at": moment(self.start),
                "engines": len(self.running),
                "gpus": len(self.gpus),
                "gpu_seconds": float(self.gpu_seconds),
                "busy_seconds": self.busy_seconds,
                "tensor": self.tensor.value,
                "dram": self.dram.value,
                "running": sum(each.value or 0.0 for each in self.running.values()),
                "waiting": sum(each.value or 0.0 for each in self.waiting.values()),
                "waiting_max": int(max((each.largest for each in self.waiting.values()), default=0)),
                "kv_usage": self.kv_usage.value,
                "known_seconds": float(self.known_seconds),
                "recorded_s": self.recorded_s,
                "told_s": self.told_s,
                **gained_columns(self.gained),
            },
        )


@dataclass(slots=True)
class ModelMinute:
    """A minute without requests in which a router reported is a row of zeros; one without a row was not recorded."""

    start: int
    width_s: int
    model: str
    sums: Counter[str] = field(default_factory=Counter)
    sketches: defaultdict[str, Sketch] = field(default_factory=lambda: defaultdict(Sketch))
    told_s: int = 0
    """As routers' own records have it."""
    ends: set[int] = field(default_factory=set)
    """Seconds in which a request ended: at least so many were told of."""

    def add(self, row: RequestRow, finished: float) -> None:
        """`row.weight`: a busy router tells every so many requests only."""
        weight = row.weight
        self.ends.add(int(finished))
        self.sums[row.outcome] += weight
        for name in ("retries", "prompt_tokens", "output_tokens", "cached_tokens", "kv_bytes"):
            self.sums[name] += weight * (getattr(row, name) or 0)
        # Only a streamed answer shows when its first token came; a whole one's first byte is its last.
        for name in ("prefill_ms", "total_ms", *(("ttft_ms", "handoff_ms") if row.stream else ())):
            if (value := getattr(row, name)) is not None:
                self.sketches[name].add(value, weight)
        if row.stream and row.itl_ms:
            self.sketches["itl_ms"].merge(Sketch.of(row.itl_ms, weight))

    def add_to(self, batch: Batch) -> None:
        values: dict[str, Any] = {"model": self.model, "at": moment(self.start)}
        values["told_s"] = max(self.told_s, len(self.ends))
        for name in MODEL_MINUTE.columns:
            if name in values:
                continue
            values[name] = stored(self.sketches.get(name)) if name.endswith("_ms") else self.sums[name]
        batch.add(MODEL_MINUTE, values)


@dataclass(slots=True)
class PairMinute:
    """Handoffs of one prefill to one decode engine."""

    start: int
    width_s: int
    model: str
    prefill: str
    decode: str
    handoffs: int = 0
    failed: int = 0
    kv_bytes: int = 0
    handoff_ms: Sketch = field(default_factory=Sketch)

    def add(self, row: RequestRow) -> None:
        if row.handoff_ms is None:
            self.failed += row.weight if row.outcome in LOST_BY_US else 0
            return
        self.handoffs += row.weight
        self.kv_bytes += row.weight * (row.kv_bytes or 0)
        if row.stream:
            self.handoff_ms.add(row.handoff_ms, row.weight)

    def add_to(self, batch: Batch) -> None:
        values: dict[str, Any] = {name: getattr(self, name) for name in PAIR_MINUTE.columns if name != "at"}
        batch.add(PAIR_MINUTE, values | {"at": moment(self.start), "handoff_ms": stored(self.handoff_ms)})


def add_gain(tally: Tally, gain: Gain) -> None:
    tally.count(gain.counters)
    for name, more in gain.latencies.items():
        tally.gain(name, more)


def gained_columns(tally: Tally) -> dict[str, Any]:
    """The columns of counters and histograms that engine and pool rows share."""
    tally.settle()
    counters: dict[str, Any] = {name: tally.counters.get(name, 0.0) for name in COUNTERS}
    return counters | {f"{name}_ms": stored(tally.sketches.get(name)) for name in HISTOGRAMS}


def stored(sketch: Sketch | None) -> bytes | None:
    return sketch.to_bytes() if sketch is not None and sketch.count else None
