"""Costs, usage and prices over the REST API, and the same on the console's page."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client as Browser
from django.urls import reverse
from jsonschema import Draft202012Validator

from controlplane.fleet import models
from controlplane.fleet.models import AuditEntry, GpuPrice, InferenceKey
from controlplane.telemetry.tables import moment
from tests.console_web import Web
from tests.integration.api_kit import Client, one_model, problem, shared_web, token_of
from tests.integration.planner_rows import proposal
from tests.integration.test_costs import hour_of, hours_between, store

pytestmark = pytest.mark.django_db(transaction=True)
MONTH = {"month": "2026-10", "zone": "Europe/Berlin"}
SHA = "cd" * 32


@pytest.fixture(scope="module")
def web(valkey_url: str, django_db_setup: None) -> Web:
    return shared_web()


@pytest.fixture
def october(db: None) -> None:
    """Two days of one decode and one prefill GPU, and a key's traffic on the first of them."""
    since, until = datetime(2026, 10, 5, tzinfo=UTC), datetime(2026, 10, 7, tzinfo=UTC)
    InferenceKey.objects.create(name="web-1", team="=search", sha256=SHA)
    rows = [hour_of(at, role=role) for at in hours_between(since, until) for role in ("decode", "prefill")]
    store(rows, [["llama", "=search", SHA[:16], moment(since.timestamp()), 10, 4, 1000, 500, 100]], until.timestamp())


def valid(web_description: dict[str, Any], path: str, value: Any) -> None:
    schema = web_description["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    whole = {**schema, "components": web_description["components"]}
    assert not [f"{error.json_path}: {error.message}" for error in Draft202012Validator(whole).iter_errors(value)]


def test_an_admin_keeps_the_price_book_and_everybody_reads_costs_and_usage(web: Web, october: None) -> None:
    price = {"kind": "l4", "per_hour": "0.50", "terms": "owned", "valid_from": "2026-01-01T00:00:00Z", "reason": "bought"}
    with Client(web.url, token_of("viewer")) as viewer, Client(web.url, token_of("admin")) as admin:
        problem(viewer.post("prices", json=price), 403, "forbidden")
        problem(admin.post("prices", json=price | {"per_hour": "-1"}), 422, "invalid")
        problem(admin.post("prices", json=price | {"valid_from": "2026-01-01T00:30:00Z"}), 422, "invalid")
        assert admin.post("prices?dry_run=true", json=price).status_code == 200
        assert not GpuPrice.objects.exists()
        assert admin.post("prices", json=price).status_code == 202
        found = viewer.get("costs", params=MONTH).json()
        usage = viewer.get("usage", params=MONTH).json()
        book = viewer.get("prices").json()
        description = viewer.get("/api/schema/").json()
        for path, value in (("costs", found), ("usage", usage), ("prices", book)):
            valid(description, f"/api/v1/{path}", value)
        statement = found["statement"]
        assert statement["total_cents"] == 48_00
        assert [(line["day"], line["team"], line["cents"]) for line in statement["lines"]] == [
            ("2026-10-05", "=search", 22_00),
            ("2026-10-06", "", 24_00),
            ("2026-10-07", "", 2_00),
        ], "Berlin's days begin at 22:00 UTC"
        (item,) = usage["items"]
        assert (item["key"], item["requests"], item["estimated"], item["cents"]) == ("web-1", 10, 4, 22_00)
        text = viewer.get("costs", params=MONTH | {"format": "csv"})
        assert text.headers["content-type"] == "text/csv; charset=utf-8"
        rows = list(csv.DictReader(io.StringIO(text.text)))
        assert sum(Decimal(row["cost (US$)"]) for row in rows) == 48
        assert rows[0]["team"] == "'=search", "no formula for spreadsheets"
        assert "web-1" in viewer.get("usage", params=MONTH | {"format": "csv"}).text
        problem(viewer.get("costs", params={"month": "2026-13"}), 400, "malformed")
        problem(viewer.get("usage", params={"zone": "../etc/passwd"}), 400, "malformed")
        number = book["items"][0]["number"]
        problem(viewer.delete(f"prices/{number}"), 403, "forbidden")
        assert admin.delete(f"prices/{number}?reason=wrong").status_code == 202
        problem(admin.delete(f"prices/{number}"), 404, "not_found")
    verbs = list(AuditEntry.objects.filter(subject="price:l4").order_by("pk").values_list("verb", "reason"))
    assert verbs == [("set_price", "bought"), ("remove_price", "wrong")]


@pytest.fixture
def signed_in(client: Browser, db: None) -> Browser:
    client.force_login(User.objects.create_superuser("ann"), backend="django.contrib.auth.backends.ModelBackend")
    return client


def test_the_page_has_the_month_its_files_and_orders_for_prices(signed_in: Browser, october: None) -> None:
    assert b"costs.js" in signed_in.get(reverse("costs")).content
    body = {"kind": "l4", "per_hour": "0.50", "terms": "hourly", "valid_from": "2026-01-01T00:00Z", "reason": "new rent"}
    answer = signed_in.post(reverse("set_price"), json.dumps(body), content_type="application/json")
    assert answer.status_code == 202, answer.content
    refused = signed_in.post(
        reverse("set_price"), json.dumps(body | {"valid_from": "soon"}), content_type="application/json"
    )
    assert refused.status_code == 400
    found = signed_in.get(reverse("data_costs"), MONTH).json()
    assert found["statement"]["total_cents"] == 48_00
    assert found["gaps"][0]["until"] == datetime(2026, 10, 5, tzinfo=UTC).timestamp()
    for by in ("lines", "models", "pools", "usage"):
        file = signed_in.get(reverse("data_costs"), MONTH | {"format": "csv", "by": by})
        assert f"twinpool-{by}-2026-10.csv" in file.headers["Content-Disposition"]
        assert b"US$" in file.content
    assert signed_in.get(reverse("data_costs"), {"by": "colour"}).status_code == 400
    assert signed_in.get(reverse("data_costs"), {"month": "2199-01"}).status_code == 400
    (price,) = signed_in.get(reverse("data_prices")).json()["prices"]
    assert (price["per_hour"], price["terms"], price["valid_from"]) == ("0.5", "hourly", "2026-01-01T00:00:00Z")
    head, line = signed_in.get(reverse("data_prices"), {"format": "csv"}).content.decode().splitlines()
    assert head.startswith("kind,per_hour (US$),terms,valid_from (UTC)") and ",0.5,hourly,2026-01-01T00:00:00Z," in line
    assert signed_in.get(reverse("data_prices"), {"format": "xls"}).status_code == 400
    gone = signed_in.post(
        reverse("remove_price", args=[price["number"]]), '{"reason": "wrong"}', content_type="application/json"
    )
    assert gone.status_code == 202
    assert not GpuPrice.objects.exists()
    assert Browser().get(reverse("data_costs")).status_code == 401


def test_a_viewer_is_told_who_may_change_prices(client: Browser) -> None:
    client.force_login(User.objects.create_user("vic"), backend="django.contrib.auth.backends.ModelBackend")
    assert "admin" in client.get(reverse("costs")).context["first"]["refusals"]["set_price"]
    body = json.dumps({"kind": "l4", "per_hour": "1", "terms": "hourly", "reason": "x"})
    assert client.post(reverse("set_price"), body, content_type="application/json").status_code == 403


def test_the_command_sets_lists_and_removes_prices(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("price", "set", "l4", "0.72", "--terms", "owned", "--from", "2026-11-01T00:00Z", "--reason", "bought")
    call_command("price", "list")
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["state"] == "done"
    assert (second["kind"], second["per_hour"], second["terms"]) == ("l4", "0.72", "owned")
    call_command("price", "remove", str(second["number"]))
    assert not GpuPrice.objects.exists()
    for wrong in (["set", "l4", "cheap"], ["set", "l4", "1", "--from", "soon"], ["remove", "7"]):
        with pytest.raises(CommandError):
            call_command("price", *wrong)


def test_another_split_of_a_model_is_priced_for_the_same_traffic(web: Web) -> None:
    one_model()
    models.GpuPrice.objects.create(kind="l4", terms="owned", per_hour="0.5", valid_from="2026-01-01T00:00:00Z")
    with Client(web.url, token_of("viewer")) as client:
        found = client.get("models/m/cost", params={"prefill": 1, "decode": 4}).json()
        valid(client.get("/api/schema/").json(), "/api/v1/models/{name}/cost", found)
        assert (found["now"], found["then"]) == ({"l4": 4}, {"l4": 5})
        assert (found["cost"]["now_per_hour"], found["cost"]["saved_per_hour"]) == (2.0, -0.5)
        assert found["cost"]["sentence"].startswith("4 → 5 GPUs costs another 0.50 US$ an hour")
        assert found["gaps"] == ["no output tokens in the last hour: nothing is known per token"]
        assert client.get("models/m/cost", params={"decode": 1}).json()["then"] == {"l4": 3}, "others stay"
        problem(client.get("models/m/cost"), 400, "invalid_fields")
        problem(client.get("models/m/cost", params={"decode": 1, "proposal": True}), 400, "invalid_fields")
        none = problem(client.get("models/m/cost", params={"proposal": True}), 422, "invalid")
        assert "no open proposal" in none["detail"]
        proposal(models.Model.objects.get(), sizes={"prefill": 1, "decode": 4})
        assert client.get("models/m/cost", params={"proposal": True}).json()["then"] == {"l4": 5}
        problem(client.get("models/none/cost", params={"decode": 1}), 404, "not_found")
        models.Gpu.objects.update(kind="odd-gpu")
        problem(client.get("models/m/cost", params={"decode": 1}), 422, "invalid")
