"""Nodes, one engine, the audit, the search and the fleet's waste: what their pages are drawn from, and the same as files."""

from __future__ import annotations

import csv
import json
import re
import time
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.control import actions
from controlplane.control.actor import Actor
from controlplane.core.protocol import GpuRow
from controlplane.fleet import models
from controlplane.telemetry.testing import engine_row, request_row
from tests.integration.queries_kit import Recorder
from tests.integration.test_console_changes import model, ops, post, signed_in

__all__ = ["model", "ops"]  # fixtures
pytestmark = pytest.mark.django_db
ANN = Actor("ann", "admin")


def first(client: Client, path: str) -> dict[str, Any]:
    """The data block of a page."""
    page = client.get(path)
    assert page.status_code == 200, page.status_code
    found = re.search(r'<script id="first" type="application/json">(.*?)</script>', page.content.decode(), re.DOTALL)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


def table(client: Client, path: str) -> list[dict[str, str]]:
    answer = client.get(path)
    assert answer.headers["Content-Type"].startswith("text/csv"), answer.content[:200]
    assert answer.headers["Content-Disposition"].startswith("attachment; filename=")
    return list(csv.DictReader(answer.content.decode().splitlines()))


def test_a_node_is_cordoned_with_a_reason_by_who_may(model: models.Model, ops: Client) -> None:
    models.Node.objects.update(labels={"zone": "a"}, agent_labels={"zone": "x", "rack": "7"}, address="10.0.0.5")
    shown = first(ops, "/nodes")
    assert shown["refused"] == {} and [node["name"] for node in shown["nodes"]] == ["n1"]
    assert shown["nodes"][0]["labels"] == {"zone": "a", "rack": "7"}
    assert post(ops, "/nodes/n1/cordon", {}).status_code == 400, "without a reason"
    assert post(ops, "/nodes/n1/cordon", {"reason": "new cooling"}).status_code == 202
    assert models.Node.objects.get().cordoned
    assert models.AuditEntry.objects.filter(verb="cordon_node", actor="ops-1", reason="new cooling").exists()
    again = post(ops, "/nodes/n1/cordon", {"reason": "x"})
    assert again.status_code == 422 and again.json()["reasons"] == ["node n1 is cordoned already"]
    assert post(ops, "/nodes/none/uncordon", {"reason": "x"}).status_code == 404
    viewer = signed_in("look", "viewer")
    assert first(viewer, "/nodes")["refused"].keys() == {"cordon_node", "uncordon_node"}
    assert post(viewer, "/nodes/n1/uncordon", {"reason": "x"}).status_code == 403
    (row,) = table(ops, "/data/nodes?format=csv")
    assert (row["name"], row["address"], row["cordoned"]) == ("n1", "10.0.0.5", "True")


def test_who_may_change_nothing_is_told_so_on_every_page(model: models.Model, ops: Client) -> None:
    viewer = signed_in("look", "viewer")
    for path in ("/", "/nodes", "/engines/e-1", "/costs", "/audit", "/operations", "/find?q=none"):
        assert b'id="read-only"' in viewer.get(path).content
        assert b'id="read-only"' not in ops.get(path).content


def test_an_engine_tells_its_place_its_launch_its_starts_and_what_was_done_with_it(model: models.Model, ops: Client) -> None:
    engine = models.Engine.objects.get(id="e-3")
    began = timezone.now()
    models.Incarnation.objects.create(engine=engine, number=1, started_at=began, ended_at=began, reason="exit 1: no memory")
    models.Incarnation.objects.create(engine=engine, number=2, started_at=began, ready_at=began)
    models.Pair.objects.create(
        prefill_id="e-1", prefill_incarnation=1, decode_id="e-3", decode_incarnation=1, state="verified", handoff_ms=42.0
    )
    models.Pair.objects.create(
        prefill_id="e-2", prefill_incarnation=1, decode_id="e-3", decode_incarnation=7, state="failed"
    )
    operation = actions.drain_engine(ANN, "e-3", reason="look at it")
    facts = first(ops, "/engines/e-3")["engine"]
    assert (facts["label"], facts["role"], facts["model"], facts["held"]) == ("D3", "decode", model.name, True)
    assert [(rank["node"], [gpu["index"] for gpu in rank["gpus"]]) for rank in facts["ranks"]] == [("n1", [3])]
    assert facts["launch"]["args"] == {"max_num_seqs": 64} and facts["launch"]["outdated"] is False
    assert [(start["number"], start["reason"]) for start in facts["starts"]] == [(2, ""), (1, "exit 1: no memory")]
    assert [(each["number"], each["verb"]) for each in facts["operations"]] == [(operation.pk, "drain_engine")]
    assert ops.get("/engines/e-3/rows").json()["engine"]["held"] is True
    peers = ops.get("/data/engines/e-3/peers").json()["found"]
    assert [(peer["peer"], peer["direction"], peer["state"], peer["probe_ms"]) for peer in peers["peers"]] == [
        ("e-1", "from", "verified", 42.0)
    ], "a pair of another start of the engine is none any more"
    assert peers["labels"] == {"e-1": ["P1", "prefill"]}
    assert [row["reason"] for row in table(ops, "/data/engines/e-3/starts?format=csv")] == ["", "exit 1: no memory"]
    for what in ("figures", "series", "gpus"):
        assert ops.get(f"/data/engines/e-3/{what}").status_code == 200
    assert ops.get("/engines/e-99").status_code == ops.get("/data/engines/e-99/peers").status_code == 404
    assert set(first(signed_in("look", "viewer"), "/engines/e-3")["refused"]) >= {"engine_log", "restart_engine"}


def test_the_audit_is_searched_filtered_paged_and_taken_away(model: models.Model, ops: Client) -> None:
    for n in range(60):
        models.AuditEntry.objects.create(actor="bot", verb="scale_pool", subject=f"model:m{n}", reason=f"load {n}")
    actions.cordon_node(ANN, "n1", reason="=cmd|' /C calc'!A0")
    shown = first(ops, "/audit")
    assert len(shown["rows"]) == 50 and shown["more"] and shown["rows"][0]["subject"] == "node:n1"
    assert json.loads(shown["rows"][0]["before"]) == {"cordoned": False}
    older = first(ops, f"/audit?before={shown['rows'][-1]['number']}")
    assert len(older["rows"]) == 12 and not older["more"], "who signed in is in it too"
    assert {row["number"] for row in shown["rows"]}.isdisjoint(row["number"] for row in older["rows"])

    def subjects(query: str) -> list[str]:
        return [row["subject"] for row in first(ops, f"/audit?{query}")["rows"]]

    assert subjects("q=LOAD+17") == ["model:m17"]
    assert subjects("kind=node") == subjects("actor=ann") == subjects("verb=cordon_node") == ["node:n1"]
    today = timezone.now().date().isoformat()
    assert len(subjects(f"from={today}&to={today}")) == 50 and subjects("to=2020-01-01") == []
    assert first(ops, "/audit?from=yesterday")["problem"] == "A day is written like 2026-11-30 (UTC)."
    assert ops.get("/data/audit?from=yesterday").status_code == 400
    assert ops.get("/audit?q=%00%ff&before=99999999999999999999").status_code == 200
    newest = shown["rows"][0]["number"]
    assert [row["number"] for row in ops.get(f"/data/audit?after={newest - 1}").json()] == [newest]
    rows = table(ops, "/data/audit?format=csv")
    assert len(rows) == 62 and rows[0]["reason"].startswith("'=cmd") and rows[0]["at (UTC)"].endswith("Z")
    assert Client().get("/data/audit?format=csv").status_code == 401


def test_the_search_goes_to_the_one_thing_and_lists_many(model: models.Model, ops: Client) -> None:
    operation = actions.cordon_node(ANN, "n1", reason="x")
    goes = {
        model.name: f"/models/{model.name}",
        "D3": "/engines/e-3",
        "d3 of qwen": "/engines/e-3",
        "e-2": "/engines/e-2",
        "n1": "/nodes#n1",
        str(operation.pk): f"/operations/{operation.pk}",
    }
    for asked, url in goes.items():
        answer = ops.get("/find", {"q": asked})
        assert (answer.status_code, answer.headers.get("Location")) == (302, url), asked
    listed = ops.get("/find", {"q": "e-"})
    assert listed.status_code == 200 and listed.content.count(b'href="/engines/e-') == 4
    for hostile in ("", "<script>alert(1)</script>", "\x00", "%", "9" * 150, "P99999999999"):
        answer = ops.get("/find", {"q": hostile})
        assert answer.status_code == 200 and b"<script>alert" not in answer.content


def test_a_request_is_found_by_its_whole_id(ops: Client) -> None:
    now, recorder = time.time(), Recorder()
    recorder.partitions.maintain(now)
    recorder.take(now - 120, "request", request_row("req-77", "llama", now - 121))
    recorder.write(now)
    answer = ops.get("/find", {"q": "req-77"})
    assert answer.status_code == 302 and "req-77" in answer.headers["Location"]


def test_waste_of_the_fleet_comes_by_model_pool_and_span(ops: Client) -> None:
    found = ops.get("/data/waste").json()
    assert found.keys() == {"today", "30 d"} and found["today"]["total"]["held"]["unit"] == "GPU-h"
    assert ops.get("/data/waste?midnight=tomorrow").status_code == 400
    rows = table(ops, "/data/waste?format=csv")
    assert [(row["span"], row["line"]) for row in rows if row["line"] == "total"] == [("today", "total"), ("30 d", "total")]
    assert "wasted (GPU-h)" in rows[0]


def test_the_fleets_tables_come_as_files(model: models.Model, ops: Client) -> None:
    now, recorder = time.time(), Recorder()
    recorder.partitions.maintain(now)
    for second in range(30):
        at = now - 90 + second
        recorder.take(at, "gpu", GpuRow("g1", "p1", tensor=0.5, dram=0.1, power_w=300.0), GpuRow("g2", "d1", dram=0.25))
        recorder.take(at, "engine", engine_row("p1", "llama"), engine_row("d1", "llama", waiting=3))
    recorder.write(now)
    actions.cordon_node(ANN, "n1", reason="new cooling")
    engines = {row["engine"]: row for row in table(ops, "/data/fleet/engines?format=csv")}
    assert engines.keys() == {"p1", "d1"} and float(engines["d1"]["waiting (requests)"]) == 3
    cells = table(ops, "/data/fleet/heat?span_s=900&step_s=5&format=csv")
    assert {(cell["gpu"], cell["role"], float(cell["busy (share)"])) for cell in cells} == {
        ("g1", "prefill", 0.5),
        ("g2", "decode", 0.25),
    }
    (operation,) = table(ops, "/data/fleet/operations?format=csv")
    assert (operation["verb"], operation["reason"]) == ("cordon_node", "new cooling")
    assert {row["index"]: row["power_w (W)"] for row in table(ops, "/data/gpus?format=csv")} == {"1": "300.0", "2": ""}
    assert ops.get("/data/fleet/heat?span_s=9&step_s=1").status_code == 400
    assert Client().get("/data/fleet/engines").status_code == 401
