"""Traces of requests at a receiver that speaks OTLP over HTTP: from the ingest process, and when the receiver misbehaves."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from django.db import connection
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from controlplane.core import names
from controlplane.stack.ports import free_port
from controlplane.telemetry import otlp
from controlplane.telemetry.buffer import Buffer
from controlplane.telemetry.intake import Refusals
from controlplane.telemetry.keeper import Keeper
from controlplane.telemetry.otlp import TraceSender
from controlplane.telemetry.records import Sample
from controlplane.telemetry.testing import Source, request_row
from controlplane.telemetry.traces import TraceQueue
from controlplane.telemetry.upkeep import Upkeep
from tests.integration.ingest_kit import Ingest, until
from tests.metrics_pages import Page

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Receiver:
    """Keeps what it is sent; answers with the next of `answers`, then 200."""

    def __init__(self, port: int = 0) -> None:
        self.answers: list[int] = []
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                status = receiver.answers.pop(0) if receiver.answers else 200
                if status == 200 and self.path == "/v1/traces":
                    receiver.headers.append(dict(self.headers))
                    receiver.requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def spans(self) -> list[tuple[str, Any]]:
        """(router, span) of everything it got."""
        return [
            (next(each.value.string_value for each in found.resource.attributes if each.key == "service.instance.id"), span)
            for request in self.requests
            for found in request.resource_spans
            for scope in found.scope_spans
            for span in scope.spans
        ]

    @property
    def ids(self) -> list[str]:
        """Of the requests, in order."""
        return [attributes(span)["twinpool.request_id"] for _, span in self.spans if span.name == "request"]


def attributes(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@contextmanager
def sending(endpoint: str) -> Iterator[TraceQueue]:
    queue, stop = TraceQueue(), threading.Event()
    sender = TraceSender(queue, f"{endpoint}/v1/traces", stop)
    sender.start()
    yield queue
    stop.set()
    sender.join(60)
    assert not sender.is_alive()


def finished(number: int, **more: Any) -> Sample[Any]:
    row = request_row(f"r-{number}", "llama", time.time(), queue_ms=1.0, prefill_ms=50.0, handoff_ms=20.0, **more)
    return Sample(f"{number + 1}-0", 0.0, 0.0, "router:r1", "request", (row,))


def test_ingest_exports_requests_from_their_records(
    transactional_db: None, valkey: redis.Redis, tmp_path: Path, receiver: Receiver
) -> None:
    ingest, page = Ingest(tmp_path / "ingest.log"), f"127.0.0.1:{free_port()}"
    router = Source(valkey, "router:r1")
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"{receiver.url}/", "OTEL_EXPORTER_OTLP_HEADERS": "x-team=search"}
    try:
        row = request_row("r-1", "llama", time.time() - 1, queue_ms=1.0, traceparent=f"00-{TRACE}-{PARENT}-01")
        router.send("request", [row])
        ingest.start(**environment, **{names.ENV_METRICS: page})
        spans = {span.name: span for _, span in until(lambda: receiver.spans)}
        assert set(spans) == {"request", "queue", "first_byte", "decode"}
        assert spans["request"].trace_id.hex() == TRACE and spans["request"].parent_span_id.hex() == PARENT
        assert attributes(spans["request"])["twinpool.request_id"] == "r-1"
        assert spans["request"].end_time_unix_nano - spans["request"].start_time_unix_nano == pytest.approx(900e6, abs=1e3)
        assert receiver.headers[0]["x-team"] == "search"

        def exported() -> bool:
            told = Page(httpx.get(f"http://{page}/metrics").content)
            assert told.value("twinpool_ingest_traces_waiting") <= 1
            return told.value("twinpool_ingest_traces_total", result="exported") == 1

        until(exported)
    finally:
        ingest.kill()


def test_what_was_stored_before_a_restart_is_not_exported_again(transactional_db: None, valkey: redis.Redis) -> None:
    router = Source(valkey, "router:r1")
    stored = [router.send("request", [request_row(f"r-{number}", "llama", time.time())]) for number in (1, 2)]
    router.send("request", [request_row("r-3", "llama", time.time())])
    with connection.cursor() as cursor:
        values = [names.TELEMETRY_STREAM, stored[-1], datetime.now(UTC)]
        cursor.execute("INSERT INTO telemetry_position (stream, last_id, at) VALUES (%s, %s, %s)", values)
    traces, stop = TraceQueue(), threading.Event()
    upkeep = Upkeep(stop)
    keeper = Keeper(Buffer(), Refusals(), stop, upkeep, traces)
    for thread in (upkeep, keeper):
        thread.start()
    try:
        until(lambda: traces.waiting)
        assert [row.id for _, row in traces.take(10)] == ["r-3"]
    finally:
        stop.set()
        for thread in (upkeep, keeper):
            thread.join(60)


def test_a_collector_that_comes_late_gets_everything_that_fits(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    with sending(f"http://127.0.0.1:{port}") as queue:
        queue.offer(finished(1))
        until(lambda: "traces cannot be exported" in caplog.text)
        queue.offer(finished(2))
        late = Receiver(port)
        until(lambda: queue.counts["exported"] == 2)
        late.close()
    assert [router for router, span in late.spans if span.name == "handoff"] == ["r1", "r1"]
    assert caplog.text.count("traces cannot be exported") == 1
    assert queue.counts["dropped"] == 0


def test_what_a_collector_refuses_for_good_is_counted_and_not_sent_again(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "MAX_BACK_OFF_S", 0.05)
    receiver.answers = [401]
    with sending(receiver.url) as queue:
        queue.offer(finished(1))
        until(lambda: queue.counts["rejected"] == 1)
        queue.offer(finished(2))
        until(lambda: queue.counts["exported"] == 1)
    assert receiver.ids == ["r-2"]


def test_a_dead_collector_holds_nobody_up() -> None:
    with sending(f"http://127.0.0.1:{free_port()}") as queue:
        for number in range(6000):
            queue.offer(finished(number))
        assert queue.counts["dropped"] >= 900
        assert queue.waiting <= 5000
