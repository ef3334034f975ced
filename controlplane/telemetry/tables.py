"""Columns and keys of the telemetry tables (migrations 0002 to 0011), and a batch of rows on its way into them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from operator import itemgetter
from typing import Any

from controlplane.telemetry.records import COUNTERS, HISTOGRAMS

Values = tuple[Any, ...]


@dataclass(frozen=True)
class Table:
    """`key` names the columns that make a row unique: a row that comes again replaces itself."""

    name: str
    key: tuple[str, ...]
    columns: tuple[str, ...]

    @cached_property
    def _key_of(self) -> Callable[[Values], Values]:
        return itemgetter(*map(self.columns.index, self.key))

    @cached_property
    def _row_of(self) -> Callable[[Mapping[str, Any]], Values]:
        return itemgetter(*self.columns)

    def __hash__(self) -> int:
        return hash(self.name)

    def key_of(self, values: Values) -> Values:
        return self._key_of(values)

    def row_of(self, values: Mapping[str, Any]) -> Values:
        """Raises KeyError for a column that is left out."""
        return self._row_of(values)


SKETCHES = tuple(f"{name}_ms" for name in HISTOGRAMS)

NODE_SECOND = Table(
    "telemetry_node_second",
    ("node", "at"),
    (
        *("node", "at", "gpus", "engines", "roles", "tensor", "tensor_peak", "dram", "memory_used_bytes", "power_w", "cpu"),
        *("node_memory_used_bytes", "node_memory_total_bytes", "disk_free_bytes"),
    ),
)
GPU_MINUTE = Table(
    "telemetry_gpu_minute",
    ("uuid", "at"),
    (
        *("uuid", "at", "node", "engine", "role", "samples", "tensor", "tensor_peak", "dram", "busy", "memory_used_bytes"),
        "power_w",
    ),
)
ENGINE_10S = Table(
    "telemetry_engine_10s",
    ("engine", "at", "incarnation", "role"),
    (
        *("engine", "at", "incarnation", "role", "model", "state", "samples", "running", "running_max", "waiting"),
        *("waiting_max", "kv_usage", "kv_usage_max", *COUNTERS, *SKETCHES, "told_s"),
    ),
)
POOL_MINUTE = Table(
    "telemetry_pool_minute",
    ("model", "role", "at"),
    (
        *("model", "role", "at", "engines", "gpus", "gpu_seconds", "busy_seconds", "tensor", "dram", "running", "waiting"),
        *("waiting_max", "kv_usage", *COUNTERS, *SKETCHES, "known_seconds", "recorded_s"),
        "told_s",
    ),
)
"""Model and role empty: GPUs that no engine holds. `recorded_s`: seconds that have a sample; `told_s`: seconds that the
counters tell of, also those before a sample in which nothing came. NULL: a row of before they were counted."""
MODEL_MINUTE = Table(
    "telemetry_model_minute",
    ("model", "at"),
    (
        *("model", "at", "ok", "client_error", "engine_error", "cancelled", "cut", "retries", "prompt_tokens"),
        *("output_tokens", "cached_tokens", "kv_bytes", "ttft_ms", "itl_ms", "prefill_ms", "handoff_ms", "total_ms"),
        "told_s",
    ),
)
REQUEST = Table(
    "telemetry_request",
    ("id", "at"),
    (
        *("id", "at", "router", "model", "path", "reason", "status", "outcome", "stream", "prefill_engine", "decode_engine"),
        *("prefill_ms", "handoff_ms", "ttft_ms", "total_ms", "itl_ms", "prompt_tokens", "output_tokens", "cached_tokens"),
        *("kv_bytes", "retries", "queue_ms", "resumes", "weight", "session", "arm", "passed", "team", "api_key"),
        "others_told",
    ),
)
USAGE = Table(
    "telemetry_usage",
    ("router", "model", "team", "api_key", "at"),
    ("router", "model", "team", "api_key", "at", "requests", "prompt_tokens", "output_tokens", "cached_tokens"),
)
"""Of requests without a row of their own."""
PAIR_MINUTE = Table(
    "telemetry_pair_minute",
    ("model", "at", "prefill", "decode"),
    ("model", "prefill", "decode", "at", "handoffs", "failed", "kv_bytes", "handoff_ms"),
)


def _hour(minute: Table) -> Table:
    return Table(minute.name.replace("_minute", "_hour"), minute.key, (*minute.columns, "minutes"))


MODEL_HOUR, POOL_HOUR, PAIR_HOUR = _hour(MODEL_MINUTE), _hour(POOL_MINUTE), _hour(PAIR_MINUTE)
ENGINE_HOUR = Table("telemetry_engine_hour", ("engine", "role", "at"), (*ENGINE_10S.columns, "tens"))
"""`tens`: how many tens of seconds have a row; model, incarnation and state: the last ones."""
COST_HOUR = Table(
    "telemetry_cost_hour",
    ("model", "role", "kind", "at"),
    (
        *("model", "role", "kind", "at", "gpu_seconds", "busy_seconds", "idle_seconds", "stranded_seconds"),
        *("unknown_seconds", "minutes"),
    ),
)
USAGE_HOUR = Table(
    "telemetry_usage_hour",
    ("model", "team", "api_key", "at"),
    (*("model", "team", "api_key", "at", "requests", "estimated", "prompt_tokens", "output_tokens", "cached_tokens"),),
)
ALL = (
    *(NODE_SECOND, GPU_MINUTE, ENGINE_10S, POOL_MINUTE, MODEL_MINUTE, PAIR_MINUTE, REQUEST, USAGE),
    *(MODEL_HOUR, POOL_HOUR, PAIR_HOUR, ENGINE_HOUR, COST_HOUR, USAGE_HOUR),
)


@dataclass
class Batch:
    """Rows by table and key; a row added twice is there once."""

    rows: dict[Table, dict[Values, Values]] = field(default_factory=dict)

    def add(self, table: Table, values: Mapping[str, Any]) -> None:
        """`values` names every column of the table. Raises KeyError for one that is left out."""
        row = table.row_of(values)
        self.rows.setdefault(table, {})[table.key_of(row)] = row

    def __len__(self) -> int:
        return sum(len(rows) for rows in self.rows.values())


def moment(unix_s: float) -> datetime:
    return datetime.fromtimestamp(unix_s, UTC)
