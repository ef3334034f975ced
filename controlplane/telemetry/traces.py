"""Finished requests as spans of a trace, and the queue in which they wait to be exported. Pure but for
a lock and a word in the log.

A span per request, as a child of the client's if it sent a trace context, and one per stage (queries.waterfall): queue,
retries, prefill, handoff, decode; first_byte and decode of a request that was served whole. Ids follow from the request, so
that one that is exported twice is the same span twice. Nothing here holds prompts or answers: records have none.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Literal, cast
from urllib.parse import urlsplit

from controlplane.core.protocol import RequestRow
from controlplane.telemetry.board import LOST_BY_US
from controlplane.telemetry.queries.waterfall import stages
from controlplane.telemetry.records import Sample
from controlplane.telemetry.stream import parts

log = logging.getLogger(__name__)

KEPT_REQUESTS = 5000
"""That wait for an export; the oldest go first, and are counted."""
SAMPLED = 0x01
NO_PARENT = ("", "")

Value = str | bool | int | float | tuple[str, ...]


@dataclass(frozen=True)
class Span:
    """Ids are hex as in W3C's trace context, times Unix nanoseconds on the router's clock. `remote`: its parent is the
    client's."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: Literal["server", "client", "internal"]
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value] = field(default_factory=dict)
    error: str = ""
    remote: bool = False


def is_usable(endpoint: str) -> bool:
    """Whether traces can be sent there. One that is set and cannot be used is said, and costs nothing but the traces: it may
    have been meant for other programs."""
    try:
        parts = urlsplit(endpoint)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if endpoint and not good:
        log.error(
            "traces are not exported: OTEL_EXPORTER_OTLP_ENDPOINT (or ..._TRACES_ENDPOINT) is no address of OTLP over HTTP: "
            "write it like http://127.0.0.1:4318"
        )
    return good


def parent_of(traceparent: str) -> tuple[str, str]:
    """Trace id and span id of the client, of its checked header; NO_PARENT where W3C says that it is to be ignored."""
    if not traceparent:
        return NO_PARENT
    version, trace_id, span_id, _ = traceparent.split("-")
    return NO_PARENT if version == "ff" or not int(trace_id, 16) or not int(span_id, 16) else (trace_id, span_id)


def is_wanted(traceparent: str) -> bool:
    """Whether the client wants its request traced; one without a trace context leaves it to us."""
    return parent_of(traceparent) == NO_PARENT or bool(int(traceparent[-2:], 16) & SAMPLED)


def spans_of(row: RequestRow, router: str) -> list[Span]:
    """The request's span, then its stages in order."""
    trace_id, parent_id = parent_of(row.traceparent)
    seed = f"{router}\n{row.id}\n{row.arrived_at!r}"
    trace_id = trace_id or _hex(f"{seed}\ntrace", 16)
    own_id = _hex(f"{seed}\nrequest", 8)
    began = round(row.arrived_at * 1e9)
    request = Span(
        trace_id=trace_id,
        span_id=own_id,
        parent_id=parent_id,
        name="request",
        kind="server",
        start_ns=began,
        end_ns=began + round((row.total_ms or 0.0) * 1e6),
        attributes=_of_request(row, router),
        error=row.outcome if row.outcome in LOST_BY_US else "",
        remote=bool(parent_id),
    )
    found = [request]
    for stage in stages(row):
        start = began + round(stage.start_ms * 1e6)
        attributes = _of_stage(row, stage.name)
        found.append(
            Span(
                trace_id=trace_id,
                span_id=_hex(f"{seed}\n{stage.name}", 8),
                parent_id=own_id,
                name=stage.name,
                kind="client" if "twinpool.engine" in attributes else "internal",
                start_ns=start,
                end_ns=start + round(stage.duration_ms * 1e6),
                attributes=attributes,
            )
        )
    return found


def _of_request(row: RequestRow, router: str) -> dict[str, Value]:
    known: dict[str, Value | None] = {
        "gen_ai.request.model": row.model,
        "gen_ai.usage.input_tokens": row.prompt_tokens,
        "gen_ai.usage.output_tokens": row.output_tokens,
        "http.response.status_code": row.status,
        "twinpool.request_id": row.id,
        "twinpool.router": router,
        "twinpool.path": row.path,
        "twinpool.reason": row.reason,
        "twinpool.outcome": row.outcome,
        "twinpool.stream": row.stream,
        "twinpool.arm": row.arm,
        "twinpool.team": row.team or None,
        "twinpool.session": row.session or None,
        "twinpool.prefill_engine": row.prefill_engine or None,
        "twinpool.decode_engine": row.decode_engine or None,
        "twinpool.cached_tokens": row.cached_tokens,
        "twinpool.ttft_ms": row.ttft_ms,
        "twinpool.retries": row.retries,
        "twinpool.resumes": row.resumes,
        "twinpool.weight": row.weight,
    }
    return {name: value for name, value in known.items() if value is not None}


def _of_stage(row: RequestRow, stage: str) -> dict[str, Value]:
    """`twinpool.passed`: the best engines that were not taken for this leg, with their scores in predicted seconds."""
    known: dict[str, Value | None] = {}
    match stage:
        case "prefill":
            known = {"twinpool.engine": row.prefill_engine, "twinpool.passed": _passed(row, "prefill")}
            known |= {"gen_ai.usage.input_tokens": row.prompt_tokens, "twinpool.cached_tokens": row.cached_tokens}
        case "handoff":
            known = {"twinpool.from": row.prefill_engine, "twinpool.to": row.decode_engine}
            known |= {"twinpool.kv_bytes": row.kv_bytes, "twinpool.passed": _passed(row, "decode")}
        case "first_byte":
            known = {"twinpool.engine": row.decode_engine, "twinpool.passed": _passed(row, "whole")}
        case "decode":
            known = {"twinpool.engine": row.decode_engine, "gen_ai.usage.output_tokens": row.output_tokens}
            known |= {"twinpool.resumes": row.resumes or None}
        case "retries":
            known = {"twinpool.retries": row.retries}
    return {name: value for name, value in known.items() if value not in (None, "", ())}


def _passed(row: RequestRow, leg: str) -> tuple[str, ...]:
    return tuple(f"{passed.engine} {passed.score_s:.3g}" for passed in row.passed if passed.leg == leg)


def _hex(text: str, size: int) -> str:
    """Never zero, which trace ids may not be: the odds are those of a collision."""
    return blake2b(text.encode(), digest_size=size).hexdigest()


class TraceQueue:
    """Between the thread that stores and the one that exports: takes what fits and counts the rest."""

    def __init__(self, limit: int = KEPT_REQUESTS) -> None:
        self.counts: Counter[str] = Counter(exported=0, dropped=0, rejected=0, unsampled=0)
        """Requests. dropped: no room; rejected: the collector refused them for good; unsampled: their clients did not want
        them traced."""
        self.arrived = threading.Event()
        self._requests: deque[tuple[str, RequestRow]] = deque()
        self._lock = threading.Lock()
        self._limit = limit
        self._after = (0, 0)

    def note(self, result: str, requests: int) -> None:
        with self._lock:
            self.counts[result] += requests

    @property
    def waiting(self) -> int:
        return len(self._requests)

    def begin_after(self, position: str) -> None:
        """What came up to this position of the stream was offered before a restart."""
        self._after = parts(position)

    def offer(self, sample: Sample[Any]) -> None:
        """Never waits, for the collector least of all. Keeps what spans are made of: gaps of tokens are most of a row."""
        if sample.kind != "request" or parts(sample.position) <= self._after:
            return
        rows = cast(tuple[RequestRow, ...], sample.rows)
        with self._lock:
            for row in rows:
                if not is_wanted(row.traceparent):
                    self.counts["unsampled"] += 1
                    continue
                self._requests.append((sample.sender, replace(row, itl_ms=(), itl_counts=())))
                if len(self._requests) > self._limit:
                    self._requests.popleft()
                    self.counts["dropped"] += 1
        self.arrived.set()

    def take(self, most: int) -> list[tuple[str, RequestRow]]:
        """Requests with the router each came through, the oldest first."""
        with self._lock:
            taken = [self._requests.popleft() for _ in range(min(most, len(self._requests)))]
            if not self._requests:
                self.arrived.clear()
        return taken
