"""Finished requests as spans, and the queue in front of the exporter."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.core.protocol import Passed, RequestRow
from controlplane.telemetry.records import Sample
from controlplane.telemetry.testing import request_row
from controlplane.telemetry.traces import Span, TraceQueue, is_usable, is_wanted, spans_of

T0 = 1_796_018_400.25
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SPLIT = replace(
    request_row("r-1", "llama", T0, queue_ms=5.0, prefill_ms=70.0, handoff_ms=25.0, ttft_ms=100.0, total_ms=900.0),
    prefill_engine="e-p",
    decode_engine="e-d",
    kv_bytes=1_000_000,
    cached_tokens=16,
    passed=(Passed("prefill", "e-p2", 0.25), Passed("decode", "e-d2", 1.5)),
    traceparent=f"00-{TRACE}-{PARENT}-01",
)


def by_name(row: RequestRow) -> dict[str, Span]:
    return {span.name: span for span in spans_of(row, "r1")}


def ms(span: Span) -> tuple[float, float]:
    """Its start and end, in milliseconds from the request's arrival."""
    return (round(span.start_ns / 1e6 - T0 * 1e3, 2), round(span.end_ns / 1e6 - T0 * 1e3, 2))


def test_a_split_request_is_a_child_of_the_clients_span_with_its_legs_inside() -> None:
    spans = by_name(SPLIT)
    assert list(spans) == ["request", "queue", "prefill", "handoff", "decode"]
    request = spans["request"]
    assert (request.trace_id, request.parent_id, request.remote, request.kind) == (TRACE, PARENT, True, "server")
    assert {span.trace_id for span in spans.values()} == {TRACE}
    assert {span.parent_id for name, span in spans.items() if name != "request"} == {request.span_id}
    assert [ms(span) for span in spans.values()] == [(0, 900), (0, 5), (5, 75), (75, 100), (100, 900)]
    assert request.attributes["twinpool.reason"] == "mode"
    assert request.attributes["gen_ai.usage.input_tokens"] == 50
    assert spans["prefill"].attributes["twinpool.engine"] == "e-p"
    assert spans["prefill"].attributes["twinpool.passed"] == ("e-p2 0.25",)
    assert spans["handoff"].attributes["twinpool.kv_bytes"] == 1_000_000
    assert (spans["handoff"].attributes["twinpool.from"], spans["handoff"].attributes["twinpool.to"]) == ("e-p", "e-d")
    assert (spans["decode"].kind, spans["queue"].kind) == ("client", "internal")


def test_a_whole_request_has_no_handoff() -> None:
    row = request_row("r-2", "llama", T0, path="whole", queue_ms=5.0, ttft_ms=80.0, decode_engine="e-m")
    spans = by_name(row)
    assert list(spans) == ["request", "queue", "first_byte", "decode"]
    assert spans["request"].parent_id == "" and not spans["request"].remote
    assert spans["first_byte"].attributes["twinpool.engine"] == "e-m"


@pytest.mark.parametrize("outcome", ["ok", "client_error", "cancelled", "engine_error", "cut"])
def test_what_we_lost_is_an_error_and_what_the_client_did_wrong_is_none(outcome: str) -> None:
    row = request_row("r-3", "llama", T0, outcome=outcome, total_ms=None, ttft_ms=None)
    (request,) = spans_of(row, "r1")
    assert request.error == (outcome if outcome in ("engine_error", "cut") else "")
    assert request.end_ns == request.start_ns


def test_the_same_request_is_the_same_spans_and_another_are_others() -> None:
    plain = replace(SPLIT, traceparent="")
    ids = [(span.trace_id, span.span_id) for span in spans_of(plain, "r1")]
    assert ids == [(span.trace_id, span.span_id) for span in spans_of(plain, "r1")]
    assert len({span_id for _, span_id in ids}) == len(ids)
    others = [(replace(plain, id="r-9"), "r1"), (plain, "r2"), (replace(plain, arrived_at=T0 + 1), "r1")]
    assert all(spans_of(*other)[0].trace_id != ids[0][0] for other in others)


@pytest.mark.parametrize("parent", [f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE}-{'0' * 16}-01", f"ff-{TRACE}-{PARENT}-01"])
def test_a_trace_context_that_cannot_be_is_ignored(parent: str) -> None:
    request = by_name(replace(SPLIT, traceparent=parent))["request"]
    assert request.parent_id == "" and request.trace_id not in (TRACE, "0" * 32)
    assert is_wanted(parent)


def sample(position: str, *rows: RequestRow, kind: str = "request") -> Sample[RequestRow]:
    return Sample(position, T0, T0, "router:r1", kind, rows)  # type: ignore[arg-type]


def test_the_queue_keeps_the_newest_and_counts_the_rest() -> None:
    queue = TraceQueue(limit=2)
    queue.offer(sample("1-0", *(replace(SPLIT, id=f"r-{number}") for number in range(5))))
    taken = queue.take(10)
    assert [(router, row.id) for router, row in taken] == [("r1", "r-3"), ("r1", "r-4")]
    assert not any(row.itl_ms for _, row in taken)
    assert queue.counts["dropped"] == 3
    assert queue.take(10) == [] and not queue.arrived.is_set()


def test_what_was_offered_before_a_restart_or_is_not_wanted_is_passed_over() -> None:
    queue = TraceQueue()
    queue.begin_after("7-1")
    queue.offer(sample("7-1", SPLIT))
    queue.offer(sample("7-2", replace(SPLIT, traceparent=f"00-{TRACE}-{PARENT}-00")))
    assert (queue.waiting, queue.counts["unsampled"]) == (0, 1)
    queue.offer(sample("10-0", SPLIT))
    assert queue.waiting == 1


@pytest.mark.parametrize(
    "endpoint", ["localhost:4317", "grpc://collector:4317", "http://", "http://[::1", "http://c:99999/"]
)
def test_an_endpoint_that_cannot_be_is_said(endpoint: str, caplog: pytest.LogCaptureFixture) -> None:
    assert not is_usable(endpoint)
    assert "write it like http://127.0.0.1:4318" in caplog.text


def test_no_endpoint_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    assert not is_usable("") and not caplog.text
    assert is_usable("https://collector.example/v1/traces")
