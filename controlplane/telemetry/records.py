"""One message of the telemetry stream, decoded strictly. Whatever does not fit the contract is refused as a whole.

Sources are our own processes, but the stream is only as trustworthy as the broker's password, and a value that PostgreSQL
cannot store would stop every batch it is in: so ranges, lengths and NUL characters are checked here, once. Pure.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Generic, TypeVar

import msgpack
import msgspec

from controlplane.core.codec import WrongShape
from controlplane.core.protocol import (
    VERSION,
    EngineRow,
    GpuRow,
    Histogram,
    NodeRow,
    Passed,
    Record,
    RecordKind,
    RequestRow,
    RouterRow,
    UsageRow,
)

Row = GpuRow | EngineRow | NodeRow | RouterRow | RequestRow | UsageRow
R = TypeVar("R", bound=Row)

ROW_OF_KIND: Mapping[str, type[Row]] = {
    "gpu": GpuRow,
    "engine": EngineRow,
    "node": NodeRow,
    "router": RouterRow,
    "request": RequestRow,
    "usage": UsageRow,
}
SENDER_OF_KIND: Mapping[str, str] = {
    "gpu": "agent",
    "engine": "agent",
    "node": "agent",
    "router": "router",
    "request": "router",
    "usage": "router",
}
COUNTERS = (
    "prompt_tokens",
    "generation_tokens",
    "requests",
    "prefix_queries",
    "prefix_hits",
    "local_tokens",
    "external_tokens",
    "transfer_bytes",
    "transfers",
    "transfers_failed",
    "leases_expired",
    "preemptions",
)
HISTOGRAMS = ("ttft", "itl", "queue", "prefill", "decode", "transfer")

MAX_BYTES = 1 << 20
MAX_ROWS = 4096
MAX_ITEMS = 512
"""In one list or map of a row."""
MAX_TEXT = 256
MAX_NUMBER = 1e18
MAX_COUNT = 1_000_000
"""For what is stored in a small column: running, waiting, in flight."""
MAX_SHARE = 1.05
"""Shares are averages of counters read at slightly different moments; what exceeds 1 by less is cut to 1 when used."""
MAX_HELD_S = 600.0
"""A request that ended longer before its record than this has a wrong time; its record's is taken."""

_SOURCE = re.compile(r"(agent|router):[\w.\-:\[\]]{1,200}")
_SHARES = frozenset({"tensor", "tensor_peak", "dram", "kv_usage", "cpu"})
_SMALL = frozenset({"running", "waiting", "in_flight", "handoffs_open"})
_SHORT = frozenset({"status", "retries", "resumes"})


@dataclass(frozen=True, slots=True)
class Sample(Generic[R]):
    """A record after intake. `received` and `at` are Unix seconds on Valkey's clock: when it came, when it was taken;
    `shift_s` is what was added to the source's own time to get there."""

    position: str
    received: float
    at: float
    source: str
    kind: RecordKind
    rows: tuple[R, ...]
    shift_s: float = 0.0

    @property
    def sender(self) -> str:
        """The node or router that sent it."""
        return self.source.split(":", 1)[1]


class _Head(msgspec.Struct):
    """protocol.Record with the rows still packed: which class they are of depends on `kind`."""

    v: int
    source: str
    boot: str
    seq: int
    at: float
    kind: RecordKind
    rows: msgspec.Raw


_HEAD = msgspec.msgpack.Decoder(_Head)
_ROWS: Mapping[str, msgspec.msgpack.Decoder[tuple[Row, ...]]] = {
    kind: msgspec.msgpack.Decoder(tuple[cls, ...])  # type: ignore[valid-type]  # a type made while running
    for kind, cls in ROW_OF_KIND.items()
}
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)


def read(raw: bytes) -> tuple[Record, tuple[Row, ...]]:
    """The record in a stream entry, without its raw rows, and its typed rows. Raises WrongShape and nothing else."""
    if len(raw) > MAX_BYTES:
        raise WrongShape("", f"is longer than {MAX_BYTES} bytes")
    try:
        head = _HEAD.decode(raw)
    except _UNREADABLE as error:
        raise WrongShape("", f"is no record: {error}") from error
    kind, source = head.kind, head.source
    if head.v != VERSION:
        raise WrongShape("v", f"version {head.v} is not supported (this ingest reads {VERSION})")
    if not _SOURCE.fullmatch(source) or not source.startswith(SENDER_OF_KIND[kind]):
        raise WrongShape("source", f"{source!r:.80} does not send records of kind {kind}")
    if not 0 <= head.seq < 1 << 62 or not 0 < head.at < 1e11 or len(head.boot) > MAX_TEXT:
        raise WrongShape("", "seq, at or boot is out of range")
    try:
        rows = _ROWS[kind].decode(head.rows)
    except _UNREADABLE as error:
        raise WrongShape("rows", str(error)) from error
    if len(rows) > MAX_ROWS:
        raise WrongShape("rows", f"are more than {MAX_ROWS}")
    check = _CHECKS[kind]
    for index, row in enumerate(rows):
        check(row, f"rows[{index}]")
    return Record(head.v, source, head.boot, head.seq, head.at, kind, ()), rows


def share(value: float | None) -> float | None:
    """A share cut to 1."""
    return value if value is None or value <= 1.0 else 1.0


def busy(row: GpuRow) -> float | None:
    """The busy share of a GPU: the larger of tensor-core and DRAM activity; None when neither is known."""
    tensor, dram = row.tensor, row.dram
    if tensor is None or (dram is not None and dram > tensor):
        return share(dram)
    return share(tensor)


def finished_at(sample: Sample[Any], row: RequestRow) -> float:
    """When a request ended, on Valkey's clock: routers send requests in batches, after an outage minutes later."""
    ended = row.arrived_at + (row.total_ms or 0.0) / 1000 + sample.shift_s
    return ended if 0 <= sample.at - ended <= MAX_HELD_S else sample.at


def _check_gpu(row: GpuRow, path: str) -> None:
    _check_text(row.uuid, path, "uuid")
    _check_text(row.engine, path, "engine")
    for value in (row.tensor, row.tensor_peak, row.dram):
        if value is not None and not 0.0 <= value <= MAX_SHARE:
            raise WrongShape(path, f"tensor, tensor_peak and dram must be between 0 and {MAX_SHARE:g}")
    for number in (row.memory_used_bytes, row.power_w):
        if number is not None and not 0 <= number <= MAX_NUMBER:
            raise WrongShape(path, f"memory and power must be between 0 and {MAX_NUMBER:g}")


def _check_engine(row: EngineRow, path: str) -> None:
    for name, value in (("engine", row.engine), ("model", row.model), ("state", row.state)):
        _check_text(value, path, name)
    _check_value("incarnation", row.incarnation, f"{path}.incarnation")
    _check_value("running", row.running, f"{path}.running")
    _check_value("waiting", row.waiting, f"{path}.waiting")
    _check_value("kv_usage", row.kv_usage, f"{path}.kv_usage")
    _check_text("".join(row.counters), path, "counters", MAX_TEXT * MAX_ITEMS)
    _check_numbers(tuple(row.counters.values()), f"{path}.counters")
    if len(row.histograms) > MAX_ITEMS:
        raise WrongShape(path, f"has more than {MAX_ITEMS} histograms")
    for name, histogram in row.histograms.items():
        _check_text(name, path, "histograms")
        _check_histogram(histogram, f"{path}.histograms.{name}")


def _check_any(row: Any, path: str) -> None:
    for field in dataclasses.fields(row):
        _check_value(field.name, getattr(row, field.name), f"{path}.{field.name}")


_CHECKS: Mapping[str, Any] = dict.fromkeys(ROW_OF_KIND, _check_any) | {"gpu": _check_gpu, "engine": _check_engine}


def _check_text(value: str, path: str, name: str = "", longest: int = MAX_TEXT) -> None:
    if len(value) > longest or "\x00" in value:
        raise WrongShape(f"{path}.{name}".rstrip("."), f"must be at most {longest} characters without NUL")


def _check_value(name: str, value: Any, path: str) -> None:
    if isinstance(value, str):
        _check_text(value, path)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        limit = MAX_SHARE if name in _SHARES else MAX_COUNT if name in _SMALL else 9999 if name in _SHORT else MAX_NUMBER
        if not 0 <= value <= limit:
            raise WrongShape(path, f"must be between 0 and {limit:g}")
    elif isinstance(value, Passed):
        _check_text(value.leg, path, "leg")
        _check_text(value.engine, path, "engine")
        if not math.isfinite(value.score_s):
            raise WrongShape(path, "has a score that is no number")
    elif isinstance(value, tuple):
        if value and not isinstance(value[0], Passed):
            _check_numbers(value, path)
        elif len(value) > MAX_ITEMS:
            raise WrongShape(path, f"has more than {MAX_ITEMS} items")
        else:
            for item in value:
                _check_value("", item, path)


def _check_numbers(values: tuple[float, ...], path: str) -> None:
    """All at once: an engine tells some 200 numbers a second."""
    if not values:
        return
    if len(values) > MAX_ITEMS:
        raise WrongShape(path, f"has more than {MAX_ITEMS} items")
    # The sum is no number if one of them is none.
    if not (min(values) >= 0 and max(values) <= MAX_NUMBER and math.isfinite(sum(values))):
        raise WrongShape(path, f"must be between 0 and {MAX_NUMBER:g}")


def _check_histogram(histogram: Histogram, path: str) -> None:
    bounds, counts = histogram.bounds, histogram.counts
    if len(bounds) != len(counts):
        raise WrongShape(path, "has not one count per bound")
    _check_bounds(bounds, path)
    _check_numbers((*counts, histogram.sum, histogram.count), path)
    if list(counts) != sorted(counts):
        raise WrongShape(path, "bounds and counts must rise")


@lru_cache(maxsize=512)
def _check_bounds(bounds: tuple[float, ...], path: str) -> None:
    """The same few come again and again. (What raises is not remembered.)"""
    _check_numbers(bounds, path)
    if any(b <= a for a, b in pairwise(bounds)):
        raise WrongShape(path, "bounds and counts must rise")


def claimed_source(raw: bytes | None) -> str:
    """Who a refused record says it is from, for a log line; "an unknown source" when it does not say or says nonsense."""
    try:
        source = msgpack.unpackb(raw or b"", max_array_len=MAX_ROWS, max_map_len=MAX_ITEMS)["source"]
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        source = None
    return source if isinstance(source, str) and _SOURCE.fullmatch(source) else "an unknown source"
