"""Costs of a month out of PostgreSQL: from samples through hours to a statement that adds up."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from django.db import connection

from controlplane.control.actions import remove_price, set_price
from controlplane.control.actor import Actor
from controlplane.control.refused import Refused
from controlplane.core.protocol import GpuRow, UsageRow
from controlplane.fleet.models import AuditEntry, Gpu, GpuPrice, InferenceKey, Node
from controlplane.telemetry.cost_hours import LONGEST_REQUEST_S, roll_up_costs
from controlplane.telemetry.hours import SETTLED_S, write_rows
from controlplane.telemetry.queries.costs import Costs, monthly, table
from controlplane.telemetry.queries.exports import csv_lines
from controlplane.telemetry.queries.months import month_of
from controlplane.telemetry.queries.prices import prices
from controlplane.telemetry.queries.windows import BadWindow
from controlplane.telemetry.tables import COST_HOUR, USAGE_HOUR, moment
from controlplane.telemetry.testing import engine_row, request_row
from tests.integration.queries_kit import FLEET, HOUR_S, NOON, Recorder

pytestmark = pytest.mark.django_db
ADMIN = Actor("ann", "admin")
KEY = "ab" * 32


@pytest.fixture
def gpus(db: None) -> None:
    node = Node.objects.create(name="n1")
    for index, kind in enumerate(("l4", "l4", "h100-sxm")):
        Gpu.objects.create(uuid=f"g{index + 1}", node=node, index=index, kind=kind, memory_bytes=1)


def record_an_hour(recorder: Recorder, start: float = NOON) -> None:
    """P1 on g1: 30 minutes at work (half busy), 20 idle, 10 starting. D1 on g2: its activity is not told. g3 is spare."""
    for minute in range(60):
        at = start + 60 * minute + 5
        state = "starting" if minute >= 50 else "ready"
        running = 1 if minute < 30 else 0
        recorder.take(
            at, "engine", engine_row("p1", "llama", state=state, running=running), engine_row("d1", "llama", running=3)
        )
        recorder.take(
            at, "gpu", GpuRow("g1", "p1", 0.5 if minute < 30 else 0.0), GpuRow("g2", "d1", None), GpuRow("g3", "", 0.0)
        )


def hours(costs: Costs) -> dict[tuple[str, str], list[float]]:
    return {
        (pool.model, pool.role): [
            pool.gpu_hours,
            pool.busy_hours,
            pool.underused_hours,
            pool.idle_hours,
            pool.stranded_hours,
            pool.unknown_hours,
        ]
        for pool in costs.statement.pools
    }


def november(zone: str = "UTC") -> Costs:
    return monthly(month_of("2026-11", zone, NOON + 90 * 86_400))


def test_every_gpu_hour_is_counted_once_by_what_the_gpu_did(gpus: None) -> None:
    recorder = Recorder(FLEET)
    record_an_hour(recorder)
    recorder.write(NOON + HOUR_S + SETTLED_S)
    assert roll_up_costs(recorder.partitions) == 1
    assert roll_up_costs(recorder.partitions) == 0
    found = november()
    near = {key: pytest.approx(value, abs=1e-9) for key, value in hours(found).items()}
    assert near == {
        ("", ""): [1, 0, 0, 0, 1, 0],
        ("llama", "decode"): [1, 0, 0, 0, 0, 1],
        ("llama", "prefill"): [1, 0.25, 0.25, 1 / 3, 1 / 6, 0],
    }
    assert found.until == NOON + HOUR_S
    assert found.statement.guess, "nobody gave a price"
    assert [(gap.since, gap.until) for gap in found.gaps] == [(found.since, NOON)]
    assert found.recorded == pytest.approx(60 / ((NOON + HOUR_S - found.since) / 60))


def test_an_engine_that_tells_nothing_and_one_whose_rows_are_gone_are_stranded(gpus: None) -> None:
    recorder = Recorder(FLEET)
    recorder.take(NOON, "gpu", GpuRow("g1", "p1", 0.9), GpuRow("g2", "gone", 0.9))
    recorder.write(NOON + HOUR_S + SETTLED_S)
    roll_up_costs(recorder.partitions)
    assert {key: value[4] for key, value in hours(november()).items()} == {("", ""): pytest.approx(2 / 60)}


def test_usage_is_by_key_team_and_model_and_says_what_is_estimated(gpus: None) -> None:
    InferenceKey.objects.create(name="web-1", team="search", sha256=KEY)
    recorder = Recorder(FLEET)
    known = {"team": "search", "api_key": KEY[:16]}
    recorder.take(NOON + 10, "request", request_row("a", "llama", NOON + 9, cached_tokens=20, **known))
    recorder.take(NOON + 20, "request", request_row("b", "llama", NOON + 19, weight=10, **known))
    recorder.take(NOON + 30, "request", request_row("c", "llama", NOON + 29, team="ads", api_key="f" * 16))
    recorder.take(NOON + 40, "request", request_row("d", "llama", NOON + 39))
    recorder.take(NOON + 50, "request", request_row("e", "llama", NOON + 49, outcome="client_error", status=400))
    recorder.write(NOON + HOUR_S + SETTLED_S)
    roll_up_costs(recorder.partitions)
    found = november().usage
    shown = [(each.team, each.key, each.requests, each.estimated, each.prompt_tokens, each.output_tokens) for each in found]
    assert shown == [
        ("", "", 1, 0, 50, 3),
        ("ads", "f" * 16, 1, 0, 50, 3),
        ("search", "web-1", 11, 9, 550, 33),
    ]
    assert [each.cached_tokens for each in found] == [0, 0, 20]


def test_usage_is_exact_where_a_busy_router_told_the_sums_of_the_requests_that_have_no_row(gpus: None) -> None:
    InferenceKey.objects.create(name="web-1", team="search", sha256=KEY)
    recorder = Recorder(FLEET)
    known = {"team": "search", "api_key": KEY[:16]}
    row = request_row("a", "llama", NOON + 9, cached_tokens=20, weight=10, others_told=True, **known)
    sums = UsageRow(NOON + 9.5, "llama", "search", KEY[:16], 9, 4321, 77, 11)
    for _ in range(2):  # read again after a restart of ingest
        recorder.take(NOON + 10, "request", row)
        recorder.take(NOON + 10, "usage", sums, UsageRow(NOON + 9.5, "llama", "", "", 2, 30, 4, 0))
    recorder.take(NOON + HOUR_S + 1, "usage", UsageRow(NOON + HOUR_S + 0.5, "llama", "", "", 1, 1, 1, 0))
    recorder.write(NOON + HOUR_S + SETTLED_S)
    roll_up_costs(recorder.partitions, at_once=1)
    found = {each.key: each for each in november().usage}
    exact = found["web-1"]
    assert (exact.requests, exact.estimated, exact.prompt_tokens, exact.output_tokens, exact.cached_tokens) == (
        *(10, 0, 4371, 80, 31),
    )
    assert (found[""].requests, found[""].prompt_tokens) == (2, 30)


def test_a_request_counts_in_the_hour_in_which_it_ended_and_only_there(gpus: None) -> None:
    recorder = Recorder(FLEET)
    recorder.take(NOON + 3500, "request", request_row("short", "llama", NOON + 3490))
    recorder.take(NOON + 3700, "request", request_row("over", "llama", NOON + 3590, total_ms=110_000.0))
    long_s = LONGEST_REQUEST_S - 600
    recorder.take(NOON + long_s, "request", request_row("long", "llama", NOON + 5, total_ms=(long_s - 5) * 1000.0))
    recorder.write(NOON + 8 * HOUR_S)
    while roll_up_costs(recorder.partitions):
        pass
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT (extract(epoch FROM at)::float8 - %s) / 3600, requests FROM telemetry_usage_hour ORDER BY at", [NOON]
        )
        assert cursor.fetchall() == [(0, 1), (1, 1), (5, 1)]


def test_hours_in_which_nothing_was_recorded_are_passed_over_and_shown_as_gaps(gpus: None) -> None:
    recorder = Recorder(FLEET)
    record_an_hour(recorder)
    record_an_hour(recorder, NOON + 5 * HOUR_S)
    recorder.write(NOON + 7 * HOUR_S)
    assert roll_up_costs(recorder.partitions, 1) == 1
    assert roll_up_costs(recorder.partitions) == 1
    last = november().gaps[-1]
    assert (last.since, last.until) == (NOON + HOUR_S, NOON + 5 * HOUR_S)


# --- Statements over months


def store(rows: list[list[object]], usage: list[list[object]], until: float) -> None:
    partitions = Recorder(FLEET).partitions
    with connection.cursor() as cursor:
        write_rows(cursor, partitions, COST_HOUR, rows)
        write_rows(cursor, partitions, USAGE_HOUR, usage)
        cursor.execute("INSERT INTO telemetry_position VALUES ('cost_hours', '', %s)", [moment(until)])


def hour_of(
    at: float, model: str = "llama", role: str = "decode", kind: str = "l4", seconds: float = 3600.0
) -> list[object]:
    return [model, role, kind, moment(at), seconds, seconds / 2, seconds / 4, 0.0, 0.0, 60]


def hours_between(since: datetime, until: datetime) -> Iterator[float]:
    at = since.timestamp()
    while at < until.timestamp():
        yield at
        at += HOUR_S


@pytest.mark.parametrize(
    ("zone", "month", "hours_of_it"),
    [
        ("Europe/Berlin", "2026-10", 745),
        ("Europe/Berlin", "2026-03", 743),
        ("America/New_York", "2026-11", 721),
        ("Asia/Kolkata", "2026-11", 720),
        ("Australia/Lord_Howe", "2026-10", 744),
        ("UTC", "2026-02", 672),
    ],
)
def test_a_month_has_the_hours_of_its_zone_also_where_clocks_change(zone: str, month: str, hours_of_it: int) -> None:
    found = month_of(month, zone, 2e9)
    assert (found.until - found.since) / 3600 == pytest.approx(hours_of_it, abs=1 if "Lord" in zone else 0)
    following = f"{month[:5]}{int(month[5:]) + 1:02d}"
    assert month_of(following, zone, 2e9).since == found.until, "months follow one another"
    assert [start for _, start in found.days] == sorted({start for _, start in found.days})


def test_months_across_a_change_of_clocks_cost_each_hour_once() -> None:
    since, until = datetime(2026, 9, 30, tzinfo=UTC), datetime(2026, 11, 2, tzinfo=UTC)
    set_price(ADMIN, "l4", "1.00", valid_from=since)
    store([hour_of(at) for at in hours_between(since, until)], [], until.timestamp())
    by_zone = {}
    for zone in ("UTC", "Europe/Berlin", "Asia/Kolkata"):
        found = [monthly(month_of(name, zone, 2e9)).statement.total_cents for name in ("2026-09", "2026-10", "2026-11")]
        by_zone[zone] = found
        assert sum(found) == 100 * 33 * 24
    assert by_zone["UTC"][1] == 744_00
    assert by_zone["Europe/Berlin"][1] == 745_00
    assert by_zone["Asia/Kolkata"][1] == 744_00


def test_a_price_that_changes_in_the_month_holds_from_its_hour_on() -> None:
    since, change, until = (datetime(2026, 11, 10, hour, tzinfo=UTC) for hour in (0, 7, 20))
    set_price(ADMIN, "l4", "1.00", valid_from=datetime(2026, 1, 1, tzinfo=UTC), terms="owned")
    set_price(ADMIN, "l4", "3.5", valid_from=change)
    store([hour_of(at) for at in hours_between(since, until)], [], until.timestamp())
    found = november()
    assert found.statement.total_cents == 7_00 + 13 * 3_50
    assert not found.statement.guess
    assert {line.day for line in found.statement.lines} == {"2026-11-10"}
    remove_price(ADMIN, GpuPrice.objects.get(valid_from=change).pk)
    assert november().statement.total_cents == 20_00


def test_lines_of_a_random_month_add_up_to_the_cent_in_every_table() -> None:
    draw = random.Random(11)
    since, until = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)
    set_price(ADMIN, "l4", "0.737", valid_from=since)
    set_price(ADMIN, "l4", "0.7371", valid_from=datetime(2026, 11, 14, 5, tzinfo=UTC))
    rows: list[list[object]] = []
    usage: list[list[object]] = []
    for at in hours_between(since, until):
        for model, role in (("llama", "prefill"), ("llama", "decode"), ("qwen", "mixed"), ("", "")):
            if draw.random() < 0.9:
                rows.append(hour_of(at, model, role, draw.choice(["l4", "h100-sxm"]), draw.uniform(0, 90_000)))
        for team in ("", "search", "ads"):
            usage.append(["llama", team, team, moment(at), 5, 0, draw.randrange(9000), draw.randrange(900), 7])
    store(rows, usage, until.timestamp())
    found = november()
    total = found.statement.total_cents
    for name in ("lines", "models", "pools"):
        document = list(csv.DictReader(io.StringIO("".join(csv_lines(table(found, name))))))
        assert sum(Decimal(row["cost (US$)"]) for row in document) * 100 == total, name
    (llama,) = (model for model in found.statement.models if model.model == "llama")
    idle_days = sum(line.cents or 0 for line in found.statement.lines if line.model == "llama" and not line.served)
    assert sum(each.cents or 0 for each in found.usage if each.model == "llama") + idle_days == llama.cents
    with connection.cursor() as cursor:
        cursor.execute("SELECT sum(prompt_tokens), sum(output_tokens), sum(requests) FROM telemetry_usage_hour")
        assert cursor.fetchone() == (llama.prompt_tokens, llama.output_tokens, llama.requests)


def test_what_is_no_month_is_refused_and_a_month_of_which_nothing_is_known_is_not_zero() -> None:
    for name, zone in (
        ("2026-13", "UTC"),
        ("nov", "UTC"),
        ("2026-11", "Mars/Base"),
        ("2026-11", "../etc"),
        ("2099-01", "UTC"),
    ):
        with pytest.raises(BadWindow):
            month_of(name, zone, NOON)
    found = november()
    assert (found.until, found.recorded, found.statement.models) == (None, None, ())


# --- The price book


def test_prices_are_set_by_admins_alone_with_an_audit_entry_and_listed_with_what_nobody_gave(gpus: None) -> None:
    start = datetime(2026, 11, 1, tzinfo=UTC)
    with pytest.raises(Refused, match="needs the role admin"):
        set_price(Actor("bob", "operator"), "l4", "1")
    set_price(ADMIN, "l4", "0.80", terms="owned", valid_from=start, reason="bought")
    set_price(ADMIN, "l4", "0.75", terms="owned", valid_from=start, reason="typing error")
    with pytest.raises(Refused, match="already"):
        set_price(ADMIN, "l4", "0.750000", terms="owned", valid_from=start)
    assert GpuPrice.objects.count() == 1
    entry = AuditEntry.objects.order_by("-pk")[0]
    assert (entry.verb, entry.subject, entry.reason) == ("set_price", "price:l4", "typing error")
    assert (entry.before["per_hour"], entry.after["per_hour"]) == ("0.800000", "0.750000")
    shown = [(row.kind, row.per_hour, row.terms, row.guess, row.gpus) for row in prices()]
    assert shown[0] == ("l4", "0.75", "owned", False, 2)
    assert shown[1][0] == "h100-sxm" and shown[1][3] and shown[1][4] == 1


@pytest.mark.parametrize(
    ("kind", "price", "at", "why"),
    [
        ("l 4", "1", None, "no kind"),
        ("l4", "-1", None, "costs 0 to"),
        ("l4", "nan", None, "costs 0 to"),
        ("l4", "1e99", None, "costs 0 to"),
        ("l4", "free", None, "no number"),
        ("l4", "0.0000001", None, "six places"),
        ("l4", "1", datetime(2026, 11, 1, 0, 30, tzinfo=UTC), "whole hours"),
        ("l4", "1", datetime(1999, 1, 1, tzinfo=UTC), "from 2020"),
        ("l4", "1", datetime(2026, 11, 1), "time zone"),
    ],
)
def test_a_price_that_cannot_be_is_refused_with_what_would_do(kind: str, price: str, at: datetime | None, why: str) -> None:
    with pytest.raises(Refused, match=why):
        set_price(ADMIN, kind, price, valid_from=at)
    assert not GpuPrice.objects.exists()
