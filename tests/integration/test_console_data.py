"""Data of the model page and of the requests page over Django's client, on what the real roll-ups wrote."""

from __future__ import annotations

import csv
import io
import time
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from controlplane.console import data
from controlplane.console.model_data import SOURCES
from controlplane.core.protocol import GpuRow, Passed
from controlplane.fleet.models import Engine, Model
from controlplane.telemetry.testing import engine_row, histogram, request_row
from tests.integration.queries_kit import Recorder, engine, fleet

pytestmark = pytest.mark.django_db
NAME = "org/llama <b>"
"""Any text may be a model's name."""


@pytest.fixture
def signed_in(client: Client, db: None) -> Client:
    client.force_login(User.objects.create_user("kim"), backend="django.contrib.auth.backends.ModelBackend")
    return client


@pytest.fixture
def recorded(db: None) -> float:
    """Twenty minutes until now of one prefill and one decode engine, with a gap in the middle."""
    model = Model.objects.create(name=NAME, source="x", config={}, engine_kind="simulated", slo_ttft_ms=500)
    for number, (id, role) in enumerate({"p1": "prefill", "d1": "decode"}.items(), 1):
        Engine.objects.create(id=id, model=model, role=role, number=number, kind="simulated")
    recorder = Recorder(fleet(engine("p1", "prefill", NAME), engine("d1", "decode", NAME)))
    now = time.time() // 60 * 60
    for minute in range(20, 0, -1):
        at = now - minute * 60 + 5
        if 8 <= minute <= 10:
            continue
        recorder.take(at, "gpu", GpuRow("g1", "p1", 0.9, dram=0.2), GpuRow("g2", "d1", 0.1, dram=0.6))
        moved = {"transfers": 30.0 * (21 - minute), "transfer_bytes": 1e9 * (21 - minute)}
        row = engine_row("d1", NAME, counters=moved, histograms={"transfer": histogram([0.05] * (21 - minute))})
        recorder.take(at, "engine", row, engine_row("p1", NAME, waiting=3))
        way: dict[str, Any] = {"prefill_engine": "p1", "decode_engine": "d1", "reason": "disaggregated"}
        times = {"ttft_ms": 600.0 if minute == 3 else 100.0, "prefill_ms": 60.0, "handoff_ms": 30.0, "queue_ms": 10.0}
        known = way | times | {"passed": (Passed("prefill", "p2", 0.2),), "team": "search" if minute % 2 else ""}
        recorder.take(at + 1, "request", request_row(f"=r{minute}", NAME, at, **known))
    recorder.write(now + 30)
    return now


def url(what: str) -> str:
    return reverse(f"data_{what}", args=[NAME])


def found(client: Client, what: str, **query: Any) -> Any:
    answer = client.get(url(what), query)
    assert answer.status_code == 200, answer.content
    return answer.json()["found"]


def table(client: Client, path: str, **query: Any) -> tuple[list[str], list[list[str]]]:
    answer = client.get(path, query | {"format": "csv"})
    assert answer.status_code == 200, answer.content
    assert answer.headers["Content-Disposition"].startswith('attachment; filename="twinpool-')
    head, *rows = csv.reader(io.StringIO(answer.content.decode()))
    return head, rows


def test_no_data_without_a_session(client: Client, recorded: float) -> None:
    for path in (*map(url, SOURCES), reverse("data_requests")):
        for wanted in ({}, {"format": "csv"}):
            answer = client.get(path, wanted)
            assert (answer.status_code, answer.json()) == (401, {"error": "Sign in first."}), path


def test_everything_comes_for_the_page_as_csv_and_as_json(signed_in: Client, recorded: float) -> None:
    for what in SOURCES:
        assert found(signed_in, what) is not None, what
        head, rows = table(signed_in, url(what))
        document = signed_in.get(url(what), {"format": "json"}).json()
        assert len(document["columns"]) == len(head) and len(document["rows"]) == len(rows), what
        assert all(len(row) == len(head) for row in rows), what
        assert rows or what == "markers", what


def test_a_gap_is_null_in_a_chart_and_empty_in_a_table(signed_in: Client, recorded: float) -> None:
    line = found(signed_in, "series", range="1h")["lines"]["ttft_p99"]
    assert (line["step_s"], line["unit"]) == (60, "ms")
    known = [value for value in line["values"] if value is not None]
    assert len(known) == 17 and 0 not in known
    at = line["values"].index(next(value for value in line["values"] if value is not None))
    assert [value is None for value in line["values"][at : at + 20]] == [False] * 10 + [True] * 3 + [False] * 7
    head, rows = table(signed_in, url("series"), range="1h")
    assert sum(row[head.index("ttft_p99 (ms)")] != "" for row in rows) == 17


def test_figures_say_unit_window_count_and_age(signed_in: Client, recorded: float) -> None:
    figures = found(signed_in, "figures", range="1h")
    told = figures["requests"]
    assert (told["value"], told["unit"], told["window_s"], told["count"]) == (17, "requests", 3600, 17)
    assert (told["at"], type(told["stale"])) == (recorded, bool)
    (pair,) = found(signed_in, "pairs")["pairs"]
    assert (pair["prefill"], pair["decode"], pair["handoffs"]["value"]) == ("p1", "d1", 17)
    assert found(signed_in, "pairs")["labels"] == {"p1": ["P1", "prefill"], "d1": ["D2", "decode"]}
    assert found(signed_in, "slo")["over_slo"]["value"] == 1
    today = found(signed_in, "waste", midnight=int(recorded) - 3600)["today"]
    assert {pool["role"] for pool in today["pools"]} == {"prefill", "decode"}


def test_nothing_is_sent_again_until_something_is_stored(
    signed_in: Client, recorded: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "FRESH_S", 1e12)
    first = signed_in.get(url("series"))
    tag = first.headers["ETag"]
    assert first.headers["Cache-Control"] == "private, no-cache"
    again = signed_in.get(url("series"), headers={"If-None-Match": tag})
    assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", tag)
    other = signed_in.get(url("series"), {"range": "6h"}, headers={"If-None-Match": tag})
    assert other.status_code == 200 and other.headers["ETag"] != tag
    Recorder().write(recorded + 90)
    assert signed_in.get(url("series"), headers={"If-None-Match": tag}).status_code == 200


@pytest.mark.parametrize(
    "query",
    [
        {"range": "2y"}, {"from": "yesterday"}, {"to": "2026-11-30T12:00Z"}, {"from": "9999-01-01T00:00Z"},
        {"from": "2026-11-30T12:00Z", "to": "2026-11-30T11:00Z"}, {"from": "0001-01-01T00:00"}, {"format": "xls"},
    ],
)  # fmt: skip
def test_a_question_that_cannot_be_answered_is_refused_in_words(signed_in: Client, recorded: float, query: Any) -> None:
    for path in (url("series"), reverse("data_requests")):
        answer = signed_in.get(path, query)
        assert (answer.status_code, list(answer.json())) == (400, ["error"])


def test_a_time_range_in_the_past_is_shown_as_it_was(signed_in: Client, recorded: float) -> None:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(recorded - 300))
    until = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(recorded - 120))
    answer = signed_in.get(url("figures"), {"from": since, "to": until}).json()
    assert (answer["since"], answer["until"]) == (recorded - 300, recorded - 120)
    assert answer["found"]["requests"]["value"] == 3


def test_a_model_that_is_not_there_has_no_data(signed_in: Client) -> None:
    answer = signed_in.get(reverse("data_figures", args=["gone"]))
    assert (answer.status_code, list(answer.json())) == (404, ["error"])


def test_a_query_that_takes_too_long_is_ended_and_said(
    signed_in: Client, recorded: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*_: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(60)")

    monkeypatch.setattr(data, "TIMEOUT_S", 1)
    monkeypatch.setattr("controlplane.console.model_data.model_figures", slow)
    answer = signed_in.get(url("figures"))
    assert (answer.status_code, "took over 1 s" in answer.json()["error"]) == (503, True)


def test_each_question_costs_few_statements(signed_in: Client, recorded: float) -> None:
    """Of a session and its user two, of the transaction with its limit three, of the tag two, of the model one."""
    own = {"pool_series": 3, "series": 4, "pairs": 4, "handoff": 3, "markers": 1, "engines": 2, "waste": 4}
    found(signed_in, "markers", range="15m")  # a session's first visit is written down
    for what in SOURCES:
        with CaptureQueriesContext(connection) as captured:
            found(signed_in, what, range="15m")
        assert len(captured) <= 8 + own.get(what, 2), (what, len(captured))
    with CaptureQueriesContext(connection) as captured:
        signed_in.get(reverse("data_requests"), {"range": "1h"})
    assert len(captured) <= 7 + 5


def ids(client: Client, **query: Any) -> list[str]:
    answer = client.get(reverse("data_requests"), query)
    assert answer.status_code == 200, answer.content
    return [row["id"] for row in answer.json()["rows"]]


def test_requests_come_with_their_stages_and_the_names_of_their_engines(signed_in: Client, recorded: float) -> None:
    answer = signed_in.get(reverse("data_requests"), {"range": "1h", "order": "slowest"}).json()
    row = answer["rows"][0]
    assert (row["id"], row["model"], row["ttft_ms"], row["slo_ttft_ms"]) == ("=r3", NAME, 600.0, 500.0)
    names = [(stage["name"], stage["start_ms"], stage["duration_ms"]) for stage in row["stages"]]
    assert names == [
        ("queue", 0, 10),
        ("retries", 10, 500),
        ("prefill", 510, 60),
        ("handoff", 570, 30),
        ("decode", 600, 300),
    ]
    assert row["passed"] == [{"leg": "prefill", "engine": "p2", "score_s": 0.2}]
    assert answer["labels"] == {"p1": ["P1", "prefill"], "d1": ["D2", "decode"]}
    assert (answer["matched"], answer["matched_more"], answer["next"]) == (17, False, "")
    assert (answer["summary"]["requests"]["value"], answer["summary"]["over_slo"]["value"]) == (17, 1)


def test_requests_are_narrowed_by_the_address(signed_in: Client, recorded: float) -> None:
    assert ids(signed_in, range="1h", slow="1") == ["=r3"]
    assert len(ids(signed_in, range="1h", slow="0")) == 16
    assert ids(signed_in, range="1h", id="=r17") == ["=r17"]
    assert len(ids(signed_in, range="1h", team="search", model=NAME, path="disaggregated", reason="disaggregated")) == 9
    assert ids(signed_in, range="1h", min_ttft_ms="500", outcome="ok", prefill="p1", decode="d1", engine="d1") == ["=r3"]
    assert ids(signed_in, range="1h", outcome=["cut", "cancelled"]) == []
    assert ids(signed_in, range="1h", model="nul\x00") == []
    head, rows = table(signed_in, reverse("data_requests"), range="1h", slow="1")
    assert [row[head.index("id")] for row in rows] == ["'=r3"]


def test_pages_of_requests_follow_each_other(signed_in: Client, recorded: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.console.requests_data.PAGE", 6)
    seen: list[str] = []
    cursor = ""
    while True:
        answer = signed_in.get(reverse("data_requests"), {"range": "1h", "cursor": cursor}).json()
        assert (answer["summary"] is None) == bool(cursor)
        seen += [row["id"] for row in answer["rows"]]
        cursor = answer["next"]
        if not cursor:
            break
    assert len(seen) == len(set(seen)) == 17


@pytest.mark.parametrize(
    "query", [{"order": "best"}, {"outcome": "lost"}, {"reason": "x"}, {"path": "x"}, {"min_ttft_ms": "nan"},
              {"min_ttft_ms": "-1"}, {"slow": "yes"}, {"cursor": "x"}],
)  # fmt: skip
def test_a_filter_that_cannot_be_is_refused_in_words(signed_in: Client, query: Any) -> None:
    answer = signed_in.get(reverse("data_requests"), query)
    assert (answer.status_code, list(answer.json())) == (400, ["error"])
