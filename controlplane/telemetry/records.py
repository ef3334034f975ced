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
from itertools import pairwise
from typing import Any, Generic, TypeVar

import msgpack

from controlplane.core.codec import WrongShape, decode
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
)

Row = GpuRow | EngineRow | NodeRow | RouterRow | RequestRow
R = TypeVar("R", bound=Row)

ROW_OF_KIND: Mapping[str, type[Row]] = {
    "gpu": GpuRow,
    "engine": EngineRow,
    "node": NodeRow,
    "router": RouterRow,
    "request": RequestRow,
}
SENDER_OF_KIND: Mapping[str, str] = {
    "gpu": "agent",
    "engine": "agent",
    "node": "agent",
    "router": "router",
    "request": "router",
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


def read(raw: bytes) -> tuple[Record, tuple[Row, ...]]:
    """The record in a stream entry and its typed rows. Raises WrongShape and nothing else."""
    if len(raw) > MAX_BYTES:
        raise WrongShape("", f"is longer than {MAX_BYTES} bytes")
    try:
        data = msgpack.unpackb(raw, max_array_len=MAX_ROWS, max_map_len=MAX_ITEMS)
    except (ValueError, TypeError, RecursionError) as error:
        raise WrongShape("", f"is not msgpack: {type(error).__name__}") from error
    record = decode(Record, data)
    if record.v != VERSION:
        raise WrongShape("v", f"version {record.v} is not supported (this ingest reads {VERSION})")
    if not _SOURCE.fullmatch(record.source) or not record.source.startswith(SENDER_OF_KIND[record.kind]):
        raise WrongShape("source", f"{record.source!r:.80} does not send records of kind {record.kind}")
    if not 0 <= record.seq < 1 << 62 or not 0 < record.at < 1e11 or len(record.boot) > MAX_TEXT:
        raise WrongShape("", "seq, at or boot is out of range")
    cls = ROW_OF_KIND[record.kind]
    rows = tuple(decode(cls, row, f"rows[{index}]") for index, row in enumerate(record.rows))
    for index, row in enumerate(rows):
        _check(row, f"rows[{index}]")
    return record, rows


def share(value: float | None) -> float | None:
    """A share cut to 1."""
    return value if value is None or value <= 1.0 else 1.0


def busy(row: GpuRow) -> float | None:
    """The busy share of a GPU: the larger of tensor-core and DRAM activity; None when neither is known."""
    known = [value for value in (row.tensor, row.dram) if value is not None]
    return share(max(known)) if known else None


def finished_at(sample: Sample[Any], row: RequestRow) -> float:
    """When a request ended, on Valkey's clock: routers send requests in batches, after an outage minutes later."""
    ended = row.arrived_at + (row.total_ms or 0.0) / 1000 + sample.shift_s
    return ended if 0 <= sample.at - ended <= MAX_HELD_S else sample.at


def _check(row: Any, path: str) -> None:
    for field in dataclasses.fields(row):
        _check_value(field.name, getattr(row, field.name), f"{path}.{field.name}")
    if isinstance(row, EngineRow):
        for name, histogram in row.histograms.items():
            _check_histogram(histogram, f"{path}.histograms.{name}")


def _check_value(name: str, value: Any, path: str) -> None:
    if isinstance(value, str):
        if len(value) > MAX_TEXT or "\x00" in value:
            raise WrongShape(path, f"must be at most {MAX_TEXT} characters without NUL")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        limit = MAX_SHARE if name in _SHARES else MAX_COUNT if name in _SMALL else 9999 if name in _SHORT else MAX_NUMBER
        if not 0 <= value <= limit:
            raise WrongShape(path, f"must be between 0 and {limit:g}")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _check_value("", key, path)
            _check_value("", item, f"{path}.{key}")
    elif isinstance(value, Passed):
        _check_value("", value.leg, path)
        _check_value("", value.engine, path)
        if not math.isfinite(value.score_s):
            raise WrongShape(path, "has a score that is no number")
    elif isinstance(value, tuple):
        if len(value) > MAX_ITEMS:
            raise WrongShape(path, f"has more than {MAX_ITEMS} items")
        for item in value:
            _check_value("", item, path)


def _check_histogram(histogram: Histogram, path: str) -> None:
    bounds, counts = histogram.bounds, histogram.counts
    for name in ("bounds", "counts", "sum", "count"):
        _check_value("", getattr(histogram, name), f"{path}.{name}")
    if len(bounds) != len(counts):
        raise WrongShape(path, "has not one count per bound")
    for numbers, strict in ((bounds, True), (counts, False)):
        if any(b < a or (strict and b == a) for a, b in pairwise(numbers)):
            raise WrongShape(path, "bounds and counts must rise")


def claimed_source(raw: bytes | None) -> str:
    """Who a refused record says it is from, for a log line; "an unknown source" when it does not say or says nonsense."""
    try:
        source = msgpack.unpackb(raw or b"", max_array_len=MAX_ROWS, max_map_len=MAX_ITEMS)["source"]
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        source = None
    return source if isinstance(source, str) and _SOURCE.fullmatch(source) else "an unknown source"
