"""What the console's pages ask for over HTTP: plans, changes, refusals, lists, forecasts; on the real database."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
import redis
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse

from controlplane.config import Config
from controlplane.control.outlook import outlook
from controlplane.fleet import models
from controlplane.physics.catalog import read_config
from controlplane.telemetry.partitions import Partitions, keep
from controlplane.telemetry.recent import lost_between, recent_traffic
from controlplane.telemetry.records import Sample
from controlplane.telemetry.rollups import Rollups
from controlplane.telemetry.tables import moment
from controlplane.telemetry.testing import engine_row, histogram, request_row
from controlplane.telemetry.view import EngineView, FleetView
from controlplane.telemetry.writer import Writer

NAME = "org/qwen"
NOW = 1_796_018_425.0
pytestmark = pytest.mark.django_db


@pytest.fixture
def model(db: None, valkey: redis.Redis) -> models.Model:
    """Two prefill and two decode engines, ready, on four of six GPUs."""
    node = models.Node.objects.create(name="n1", seen_at="2026-01-01T00:00:00Z")
    row = models.Model.objects.create(
        name=NAME, source="org/qwen", config=read_config("qwen3-8b"), engine_kind="simulated", mode="disaggregated",
        served_mode="disaggregated", team="search", engine_args={"max_num_seqs": 64},
    )  # fmt: skip
    for role in ("prefill", "decode"):
        models.Pool.objects.create(model=row, role=role, desired_engines=2)
    for number in range(1, 7):
        gpu = models.Gpu.objects.create(uuid=f"g{number}", node=node, index=number, kind="h100-sxm", memory_bytes=80 << 30)
        if number > 4:
            continue
        engine = models.Engine.objects.create(
            id=f"e-{number}", model=row, role="prefill" if number < 3 else "decode", number=number, kind="simulated",
            state="ready", incarnation=1, url=f"http://127.0.0.1:{number}", compat="c",
        )  # fmt: skip
        models.Reservation.objects.create(gpu=gpu, rank=models.Rank.objects.create(engine=engine, node=node))
    return row


def signed_in(name: str, role: str, *, team: str = "", **options: Any) -> Client:
    user = User.objects.create_user(name)
    user.groups.add(Group.objects.get_or_create(name=role)[0])
    if team:
        models.Team.objects.get_or_create(name=team)[0].members.add(user)
    client = Client(**options)
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client


@pytest.fixture
def ops(model: models.Model) -> Client:
    return signed_in("ops-1", "operator")


def url(name: str, *args: Any, **kwargs: Any) -> str:
    return reverse(name, args=args, kwargs=kwargs)


def post(client: Client, path: str, body: Any, **options: Any) -> Any:
    return client.post(path, body if isinstance(body, bytes) else json.dumps(body), "application/json", **options)


def order(model: models.Model, prefill: int, **more: Any) -> dict[str, Any]:
    sizes = {"prefill": prefill, "decode": 4 - prefill}
    return {"sizes": sizes, "version": model.version, "reason": "more prompts", "last": 0} | more


def first(page: str) -> dict[str, Any]:
    found = re.search(r'<script id="first" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert found
    document: dict[str, Any] = json.loads(found[1])
    return document


START = ("start_rebalance", NAME)


def test_a_plan_names_the_steps_and_changes_nothing(ops: Client, model: models.Model) -> None:
    answer = post(ops, url(*START), order(model, 3, reason="", dry_run=True))
    plan = answer.json()["plan"]
    assert [(step["verb"], step["label"], step["role"]) for step in plan["steps"]] == [("retask", "D4", "prefill")]
    assert plan["instant"]
    model.refresh_from_db()
    assert (model.version, models.Operation.objects.count(), models.AuditEntry.objects.exclude(verb="login").count()) == (
        1,
        0,
        0,
    )


def test_an_order_is_carried_out_in_the_name_of_who_gave_it(ops: Client, model: models.Model) -> None:
    answer = post(ops, url(*START), order(model, 3, reason=" more prompts "))
    operation = models.Operation.objects.get()
    assert (answer.status_code, answer.json()) == (202, {"operation": operation.pk, "url": f"/operations/{operation.pk}"})
    assert (operation.verb, operation.actor, operation.reason) == ("rebalance", "ops-1", "more prompts")


@pytest.mark.parametrize("reason", ["", "   ", None, 7])
def test_nothing_is_changed_without_a_reason(ops: Client, model: models.Model, reason: Any) -> None:
    answer = post(ops, url(*START), order(model, 3, reason=reason))
    assert (answer.status_code, answer.json()["reasons"]) == (400, ["Say why: the reason is kept with the operation."])
    assert not models.Operation.objects.exists()


HOSTILE: list[Any] = [
    b"{",
    b"[]",
    b"x" * 20_000,
    {},
    {"sizes": []},
    {"sizes": {"prefill": -1}, "version": 1},
    {"sizes": {"prefill": True}, "version": 1},
    {"sizes": {"prefill": 1e9}, "version": 1},
    {"sizes": {"prefill": 1}, "version": "1"},
]


@pytest.mark.parametrize("body", HOSTILE, ids=range(len(HOSTILE)))
def test_what_is_no_order_is_refused_in_words(ops: Client, model: models.Model, body: Any) -> None:
    answer = post(ops, url(*START), body)
    assert (answer.status_code, answer.json()["kind"]) == (400, "malformed")
    assert answer.json()["reasons"][0]
    assert not models.Operation.objects.exists()


def test_an_order_that_cannot_be_is_refused_as_the_api_refuses_it(ops: Client, model: models.Model) -> None:
    for role, status, kind, why in (("nope", 422, "invalid", "there is no pool"), ("no\u0000pe", 400, "malformed", "NUL")):
        answer = post(ops, url(*START), {"sizes": {role: 1}, "version": 1, "reason": "r"})
        assert (answer.status_code, answer.json()["kind"]) == (status, kind)
        assert why in answer.json()["reasons"][-1]
    assert not models.Operation.objects.exists()


@pytest.mark.parametrize(
    "body",
    [{"mode": "best"}, {"mode": 7}, {"mode": "monolithic", "split": [1]}, {"mode": "monolithic", "split": {"mixed": "x"}}],
)
@pytest.mark.parametrize("verb", ["set_mode", "set_canary"])
def test_a_mode_or_share_that_cannot_be_is_refused_in_words(ops: Client, model: models.Model, verb: str, body: Any) -> None:
    answer = post(ops, url(verb, NAME), {"version": 1, "reason": "r", "share": "much", "min_uncached_ratio": "x"} | body)
    assert answer.status_code in (400, 422)
    assert answer.json()["reasons"][0]
    assert not models.Operation.objects.exists()


def test_an_old_page_is_told_what_was_done_since(ops: Client, model: models.Model) -> None:
    post(ops, url(*START), order(model, 3))
    models.Operation.objects.update(state="done")
    answer = post(ops, url(*START), order(model, 1, dry_run=True))
    told = answer.json()
    assert (answer.status_code, told["kind"]) == (412, "stale")
    assert {pool["role"]: pool["desired"] for pool in told["model"]["pools"]} == {"prefill": 3, "decode": 1}
    (since,) = told["since"]
    assert (since["actor"], since["reason"], since["after"]["pools"]) == (
        "ops-1",
        "more prompts",
        {"prefill": 3, "decode": 1},
    )


def test_a_busy_model_names_what_runs(ops: Client, model: models.Model) -> None:
    post(ops, url(*START), order(model, 3))
    model.refresh_from_db()
    answer = post(ops, url(*START), order(model, 1))
    running = models.Operation.objects.get()
    assert (answer.status_code, answer.json()["url"]) == (409, f"/operations/{running.pk}")


@pytest.mark.parametrize(
    ("role", "team", "status"),
    [("viewer", "search", 403), ("owner", "search", 202), ("owner", "ads", 403), ("admin", "", 202)],
)
def test_who_may_change_a_model_is_asked_of_control(model: models.Model, role: str, team: str, status: int) -> None:
    client = signed_in("kim", role, team=team)
    assert post(client, url(*START), order(model, 3)).status_code == status
    said = first(client.get(url("rebalance", NAME)).content.decode())["refused"]
    expected = {} if status == 202 else {"rebalance": "Needs the role operator, or owner in team search"}
    assert {"rebalance": said["rebalance"]} if "rebalance" in said else expected == {}


def test_strangers_and_forged_forms_change_nothing(model: models.Model) -> None:
    assert post(Client(), url(*START), order(model, 3)).status_code == 401
    assert post(signed_in("ops-2", "operator", enforce_csrf_checks=True), url(*START), order(model, 3)).status_code == 403
    assert Client().get(url("rebalance", NAME)).status_code == 302
    for name in ("model_facts", "model_forecast"):
        assert Client().get(url(name, NAME)).status_code == 401
    assert not models.Operation.objects.exists()


def test_an_operation_is_paused_resumed_and_taken_back(ops: Client, model: models.Model) -> None:
    post(ops, url(*START), order(model, 3))
    number = models.Operation.objects.get().pk
    for verb, state in (("pause", "paused"), ("resume", "running"), ("rollback", "rolling_back")):
        models.Operation.objects.filter(pk=number, state="pending").update(state="running")
        answer = post(ops, url(verb, number), {"reason": "why not"})
        assert (answer.status_code, models.Operation.objects.get(pk=number).state) == (202, state)
    assert ops.get(url("pause", number)).status_code == 405
    rows = {row["id"]: row for row in ops.get(url("operation_rows", number)).json()["frame"]["rows"]}
    assert (rows[f"operation:{number}"]["state"], rows[f"step:{number}/0"]["state"]) == ("rolling_back", "skipped")


def test_an_engine_is_held_and_readmitted(ops: Client, model: models.Model) -> None:
    assert post(ops, url("hold_engine", "e-3"), {"reason": "look"}).status_code == 202
    assert models.Engine.objects.get(pk="e-3").held
    models.Operation.objects.update(state="done")
    assert post(ops, url("hold_engine", "e-4"), {"reason": "both"}).status_code == 422
    assert post(ops, url("readmit_engine", "e-3"), {"reason": "fine"}).status_code == 202
    assert post(ops, url("restart_engine", "nobody"), {"reason": "x"}).status_code == 404


def test_the_list_is_filtered_by_its_address(ops: Client, model: models.Model) -> None:
    made = [models.Operation.objects.create(verb=verb, model=model, actor=actor, state="done")
            for verb, actor in (("rebalance", "ops-1"), ("set_mode", "ops-2"), ("rebalance", "ops-2"))]  # fmt: skip

    def listed(query: str) -> list[int]:
        return [row["number"] for row in first(ops.get(f"/operations?{query}").content.decode())["rows"]]

    numbers = [row.pk for row in made]
    assert listed("") == numbers[::-1]
    assert listed("verb=rebalance&actor=ops-2") == [numbers[2]]
    assert listed(f"model=org%2Fqwen&before={numbers[1]}") == [numbers[0]]
    assert listed("state=failed") == []
    assert listed("before=x&state=%00done") == numbers[::-1]


@pytest.mark.parametrize("path", ["/operations", "/rebalance", "rebalance", "operation"])
def test_pages_have_no_inline_code_and_show_hostile_names(ops: Client, model: models.Model, path: str) -> None:
    hostile = "</script><img src=x onerror=alert(1)>"
    row = models.Operation.objects.create(verb="rebalance", model=model, actor=hostile, reason=hostile, state="done")
    where = {"rebalance": url("rebalance", NAME), "operation": url("operation", row.pk)}.get(path, path)
    answer = ops.get(where, follow=True)
    page = re.sub(r'<script id="first".*?</script>', "", answer.content.decode(), flags=re.DOTALL)
    assert (answer.status_code, hostile in answer.content.decode(), "<img" in page) == (200, False, False)
    assert not re.search(r"\s(style|on\w+)=", page)
    assert re.findall(r"<script(?![^>]*(?:\bsrc=|application/json))", page) == []


def test_unknown_models_and_operations_are_not_found(ops: Client) -> None:
    for path in ("/models/nobody/rebalance", "/operations/999999", "/operations/999999/rows", "/models/nobody/facts"):
        assert ops.get(path).status_code == 404


@pytest.mark.parametrize("name", ["models/%00/rebalance", "models/m%00/facts", "models/%00/forecast"])
def test_nothing_is_at_an_address_that_no_row_can_have(ops: Client, name: str) -> None:
    assert ops.get(f"/{name}").status_code == 404


def lived(until: float = NOW) -> None:
    """Ten minutes of a request a second and an engine's counters."""
    engine = EngineView("e-3", "D3", NAME, "decode", "ready", 0.0, "", 1, ("n1",), ())
    rollups, view, gaps = Rollups(), FleetView(engines={"e-3": engine}), [0.02]
    for second in range(600):
        at = until - 660 + second
        outcome = "cut" if second == 590 else "ok"
        made = request_row(
            f"r{second}", NAME, at - 1, prompt_tokens=1000, output_tokens=100, outcome=outcome, total_ms=1000.0
        )
        rollups.consume(Sample(f"{int(at)}-0", at, at, "router:r1", "request", (made,)), view)
        gaps += [0.02, 0.03]
        told = engine_row("e-3", NAME, histograms={"itl": histogram(gaps)})
        rollups.consume(Sample(f"{int(at)}-1", at, at, "agent:n1", "engine", (told,)), view)
    rollups.advance(until + 70)
    Writer(Partitions(keep(Config()))).write(rollups.closed(), "1-0", until)


def test_traffic_of_late_tells_rate_lengths_and_losses(model: models.Model) -> None:
    lived()
    traffic = recent_traffic(NAME, NOW)
    assert traffic
    assert (traffic.prompt_tokens, traffic.output_tokens, traffic.length_cv) == (1000, 100, 0)
    assert traffic.rate == pytest.approx(1.0, rel=0.15)
    assert lost_between(NAME, NOW - 660, NOW) == 1
    assert lost_between(NAME, NOW - 660, NOW - 100) == 0
    assert recent_traffic("nobody", NOW) is None


def test_an_operation_shows_how_latencies_went_while_it_ran(ops: Client, model: models.Model) -> None:
    now = time.time()
    lived(now)
    made = models.Operation.objects.create(verb="rebalance", model=model, actor="ops-1", state="done")
    ran = {"created_at": moment(now - 560), "finished_at": moment(now - 60)}
    models.Operation.objects.filter(pk=made.pk).update(**ran)
    found = ops.get(url("operation_history", made.pk)).json()
    assert found["cell_s"] == 10
    assert [found["starts"][0], found["starts"][-1]] == [
        pytest.approx(now - 620, abs=10), pytest.approx(now, abs=11)
    ]  # fmt: skip
    known = [value for value in found["ttft_p99"] if value is not None]
    assert known == pytest.approx([100] * len(known), rel=0.01)
    assert 53 <= len(known) <= 60
    assert 10 < found["itl_p99"][20] <= 100
    assert found["ttft_p99"][-1] is None


def test_forecasts_are_made_beside_the_request_and_then_known(ops: Client, model: models.Model, monkeypatch: Any) -> None:
    nothing = ops.get(url("model_forecast", NAME), {"split": "2:2"}).json()
    assert "no traffic" in nothing["refused"]
    lived(time.time())
    models.GpuPrice.objects.create(kind="h100-sxm", terms="owned", per_hour="1.25", valid_from="2026-01-01T00:00:00Z")
    outlook.cache_clear()
    asked = {"split": ["2:2", "1:3", "0:4"]}
    found = ops.get(url("model_forecast", NAME), asked).json()
    assert found["splits"]["2:2"] is None
    deadline = time.monotonic() + 120
    while None in found["splits"].values():
        assert time.monotonic() < deadline
        time.sleep(0.2)
        found = ops.get(url("model_forecast", NAME), asked).json()
    figures = found["splits"]["2:2"]["figures"]
    assert figures["layout"] == "disagg:2xTP1@h100-sxm+2xTP1@h100-sxm"
    assert figures["interval"]["ttft_ms"]["p99"][0] <= figures["ttft_ms"]["p99"]
    assert figures["cost_per_hour"] == pytest.approx(4 * 1.25), "at the price book's prices"
    assert found["splits"]["0:4"]["refused"]
    assert found["basis"]["prompt_tokens"] == pytest.approx(1000, rel=0.05)
    for bad in ("7", "a:b", "0:0", "1:2:3", "-1:2", "99999999:1"):
        assert ops.get(url("model_forecast", NAME), {"split": bad}).status_code == 400
    assert ops.get(url("model_forecast", NAME), {"mode": "best"}).status_code == 400


def test_the_page_speaks_vietnamese(ops: Client) -> None:
    page = ops.get(url("rebalance", NAME), headers={"accept-language": "vi"}).content.decode()
    assert "Cách chia mong muốn" in page
    viewer = signed_in("kim", "viewer")
    said = first(viewer.get(url("rebalance", NAME), headers={"accept-language": "vi"}).content.decode())["refused"]
    assert said["rebalance"] == "Cần vai trò người vận hành, hoặc chủ sở hữu trong nhóm search"
