"""Sends spans of finished requests to an OpenTelemetry collector (OTLP over HTTP), from a thread of its own.

A collector that is away, slow or refuses costs traces and nothing else. Imported only where an endpoint is set: the library
takes 17 MB. What else OTEL_EXPORTER_OTLP_... sets (headers, certificates, compression) the library reads itself.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from controlplane.core.protocol import RequestRow
from controlplane.telemetry.traces import Span, TraceQueue, spans_of

log = logging.getLogger(__name__)
logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # we say once what it would say at every attempt

BATCH = 100
"""Requests in one message."""
MOST_PER_S = 200
"""Requests: a span costs processor time, and this process has other things to do. More wait, and are dropped in the end."""
TIMEOUT_S = 5.0
MAX_BACK_OFF_S = 30.0
FOR_NOW = frozenset({408, 429})
"""Answers below 500 after which the same may be sent again."""
_KINDS = {"server": SpanKind.SERVER, "client": SpanKind.CLIENT, "internal": SpanKind.INTERNAL}
_SCOPE = InstrumentationScope("twinpool")


class TraceSender(threading.Thread):
    """Sends what the queue has until `stop` is set and the queue is empty. A daemon: nobody waits for a dead collector."""

    def __init__(self, queue: TraceQueue, endpoint: str, stop: threading.Event) -> None:
        """`endpoint`: the whole address, http://collector:4318/v1/traces."""
        super().__init__(name="traces", daemon=True)
        self._queue, self._stop_event = queue, stop
        self._status = 0
        session = requests.Session()
        session.hooks["response"].append(self._note_status)
        self._exporter = OTLPSpanExporter(endpoint, timeout=TIMEOUT_S, session=session)

    def run(self) -> None:
        while not (self._stop_event.is_set() and not self._queue.waiting):
            if not self._queue.arrived.wait(1.0):
                continue
            began = time.monotonic()
            batch = self._queue.take(BATCH)
            if batch:
                self._send(batch)
                time.sleep(max(0.0, len(batch) / MOST_PER_S - (time.monotonic() - began)))

    def _send(self, batch: Sequence[tuple[str, RequestRow]]) -> None:
        """Tries on until the collector has them, refuses them for good, or this process ends."""
        spans = [readable(span, router) for router, row in batch for span in spans_of(row, router)]
        back_off_s = 0.0
        while True:
            self._status = 0
            if self._exporter.export(spans) is SpanExportResult.SUCCESS:
                self._queue.note("exported", len(batch))
                if back_off_s:
                    log.info("traces are exported again")
                return
            if 400 <= self._status < 500 and self._status not in FOR_NOW:
                self._queue.note("rejected", len(batch))
                log.warning("the collector refuses traces (HTTP %d): check the endpoint and its headers", self._status)
                self._stop_event.wait(MAX_BACK_OFF_S)
                return
            if not back_off_s:
                why = f"HTTP {self._status}" if self._status else "no answer"
                log.warning("traces cannot be exported, trying on (%s)", why)
            back_off_s = min(back_off_s * 2 or 1.0, MAX_BACK_OFF_S)
            if self._stop_event.wait(back_off_s):
                left = self._queue.take(self._queue.waiting)
                self._queue.note("dropped", len(batch) + len(left))
                return

    def _note_status(self, response: requests.Response, *_: Any, **__: Any) -> None:
        self._status = response.status_code


def readable(span: Span, router: str) -> ReadableSpan:
    """The span as the exporter takes it."""
    parent = _context(span.trace_id, span.parent_id, remote=span.remote) if span.parent_id else None
    return ReadableSpan(
        name=span.name,
        context=_context(span.trace_id, span.span_id, remote=False),
        parent=parent,
        resource=_resource(router),
        attributes=span.attributes,
        kind=_KINDS[span.kind],
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=_SCOPE,
    )


def _context(trace_id: str, span_id: str, *, remote: bool) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), remote, TraceFlags(TraceFlags.SAMPLED))


@lru_cache(maxsize=256)
def _resource(router: str) -> Resource:
    """What OTEL_RESOURCE_ATTRIBUTES says, and which router it was."""
    return Resource.create({"service.name": "twinpool-router", "service.instance.id": router})
