"""Requests are searched, paged and counted right; operations mark charts."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.core.protocol import Passed
from controlplane.fleet.models import Model, Operation
from controlplane.telemetry.queries.markers import operation_markers
from controlplane.telemetry.queries.records import BadCursor, Order, RequestFilter, RequestRecord
from controlplane.telemetry.queries.requests import export, find, search, summary
from controlplane.telemetry.queries.windows import Window
from controlplane.telemetry.testing import request_row
from tests.integration.queries_kit import NOON, Recorder

pytestmark = pytest.mark.django_db
EVER = RequestFilter(NOON - 100, NOON + 3600)


def record(*rows: Any) -> None:
    recorder = Recorder()
    for row in rows:
        recorder.take(row.arrived_at + 1, "request", row)
    recorder.write(NOON + 4000)


def ids(wanted: RequestFilter = EVER, **options: Any) -> list[str]:
    return [row.id for row in search(wanted, **options).rows]


def narrowed(**fields: Any) -> list[str]:
    return sorted(ids(RequestFilter(EVER.since, EVER.until, **fields)))


@pytest.mark.parametrize("order", ["newest", "slowest"])
def test_pages_by_cursor_have_every_request_once_and_in_order(order: Order) -> None:
    draw = random.Random(3)
    rows = [
        request_row(f"r{number}", "llama", NOON + number // 3, ttft_ms=draw.choice([None, 1.5, 0.1, 70.25, 1e5]))
        for number in range(25)
    ]
    record(*rows)
    seen: list[RequestRecord] = []
    cursor = ""
    while True:
        page = search(EVER, order, cursor, limit=7)
        seen += page.rows
        assert (page.matched, page.matched_more) == (25, False)
        cursor = page.next_cursor
        if not cursor:
            break
    assert sorted(row.id for row in seen) == sorted(row.id for row in rows)

    def key(row: RequestRecord) -> Any:
        newest = (row.at, row.id)
        return newest if order == "newest" else (-1 if row.ttft_ms is None else row.ttft_ms, *newest)

    assert seen == sorted(seen, key=key, reverse=True) == export(EVER, order)


def test_a_cursor_that_no_page_gave_out_is_refused_with_a_remedy() -> None:
    record(*(request_row(f"r{number}", "llama", NOON) for number in range(3)))
    given = search(EVER, "newest", limit=1).next_cursor
    for cursor in ("x", "ÿ", "bnVsbA==", given[:-4], given + "AAAA"):
        with pytest.raises(BadCursor, match="begin at its first page"):
            search(EVER, "newest", cursor)
    with pytest.raises(BadCursor, match="another order"):
        search(EVER, "slowest", given)


def test_filters_narrow_by_what_a_record_tells() -> None:
    Model.objects.create(name="llama", source="x", config={}, engine_kind="simulated", slo_ttft_ms=500)
    record(
        request_row("a", "llama", NOON, ttft_ms=600.0, prefill_engine="p1", decode_engine="d1", prompt_tokens=9000),
        request_row("b", "llama", NOON + 1, ttft_ms=600.0, stream=False, decode_engine="d1", path="monolithic"),
        request_row(
            "c", "llama", NOON + 2, outcome="cut", reason="decode_lost", retries=2, arm="canary", session="ab", team="s"
        ),
        request_row("d%_'", "other", NOON + 3, ttft_ms=9000.0, total_ms=9500.0),
    )
    assert narrowed() == ["a", "b", "c", "d%_'"]
    assert narrowed(models=["other"]) == ["d%_'"]
    assert narrowed(over_slo=True) == ["a"]
    assert narrowed(over_slo=False) == ["b", "c", "d%_'"]
    assert narrowed(engine="d1") == ["a", "b"]
    assert narrowed(prefill_engine="p1", decode_engine="d1") == ["a"]
    assert narrowed(outcomes=["cut", "engine_error"], arms=["canary"]) == ["c"]
    assert narrowed(reasons=["decode_lost"], retried=True, session="ab") == ["c"]
    assert narrowed(teams=["s", "none"]) == ["c"]
    assert narrowed(retried=False, paths=["monolithic"]) == ["b"]
    assert narrowed(min_ttft_ms=600, max_ttft_ms=1000) == ["a", "b"]
    assert narrowed(min_total_ms=9000, id_prefix="d%_'") == ["d%_'"]
    assert narrowed(id_prefix="%") == []
    assert narrowed(min_prompt_tokens=9000, router="r1") == ["a"]
    assert ids(RequestFilter(NOON + 1, NOON + 3)) == ["c", "b"]


def test_a_record_has_its_stages_its_model_s_targets_and_who_was_passed_over() -> None:
    Model.objects.create(name="llama", source="x", config={}, engine_kind="simulated", slo_ttft_ms=500, slo_itl_ms=20)
    gaps = tuple(float(number) for number in range(1, 101))
    record(request_row("a", "llama", NOON, itl_ms=gaps, weight=4, passed=(Passed("decode", "d2", 0.5),), queue_ms=2.0))
    found = find("a")
    assert found is not None
    assert (found.at, found.slo_ttft_ms, found.slo_itl_ms, found.weight, found.queue_ms) == (NOON, 500, 20, 4, 2)
    assert (found.itl_p50_ms, found.itl_p99_ms) == (50, 99)
    assert [(each.leg, each.engine, each.score_s) for each in found.passed] == [("decode", "d2", 0.5)]
    assert (find("a", NOON + 1), find("b")) == (None, None)


def test_a_summary_counts_requests_and_not_their_records() -> None:
    Model.objects.create(name="llama", source="x", config={}, engine_kind="simulated", slo_ttft_ms=500)
    record(
        request_row("a", "llama", NOON, weight=90),
        request_row("b", "llama", NOON, ttft_ms=501.0),
        request_row("c", "llama", NOON, outcome="engine_error"),
        request_row("d", "gone", NOON, ttft_ms=9999.0),
    )
    found = summary(EVER, NOON + 3600)
    assert (found.requests.value, found.over_slo.value, found.failed.value, found.rows) == (93, 1, 1, 4)
    assert (found.over_slo.count, found.requests.at, found.requests.stale) == (93, NOON + 4000, False)
    nothing = summary(RequestFilter(NOON - 50, NOON - 10), NOON)
    assert (nothing.requests.value, nothing.rows) == (0, 0)


def test_operations_mark_the_time_in_which_they_ran() -> None:
    llama = Model.objects.create(name="llama", source="x", config={}, engine_kind="simulated")
    other = Model.objects.create(name="other", source="x", config={}, engine_kind="simulated")
    now = timezone.now()

    def operation(model: Model | None, began_h: float, ended_h: float | None, verb: str) -> None:
        made = Operation.objects.create(verb=verb, model=model, actor="ops", state="done" if ended_h else "running")
        Operation.objects.filter(pk=made.pk).update(
            created_at=now - timedelta(hours=began_h), finished_at=now - timedelta(hours=ended_h) if ended_h else None
        )

    operation(llama, 5, 4, "set_mode")
    operation(llama, 3, 2, "scale_pool")
    operation(other, 3, 2, "rebalance")
    operation(None, 2.5, 2.4, "cordon_node")
    operation(llama, 2.2, None, "move_gpus")
    since = now.timestamp()
    window = Window(since - 3.5 * 3600, since - 1.5 * 3600, since)
    assert [marker.label for marker in operation_markers(window, "llama")] == ["scale pool", "cordon node", "move gpus"]
    assert [marker.verb for marker in operation_markers(window)] == ["scale_pool", "rebalance", "cordon_node", "move_gpus"]
    running = operation_markers(Window.last(600, since))
    assert [(marker.verb, marker.finished_at, marker.model) for marker in running] == [("move_gpus", None, "llama")]
