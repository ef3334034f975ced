"""Alerts over the REST API: a list with filters, one, and its silence."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.alerts.models import Channel, Silence
from controlplane.api.models import StoredAnswer
from controlplane.fleet.models import AuditEntry
from tests.console_web import Web
from tests.integration.alert_kit import firing
from tests.integration.api_kit import Client, one_model, problem, shared_web, token_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(scope="module")
def web(valkey_url: str, django_db_setup: None) -> Web:
    return shared_web()


def test_alerts_are_listed_with_what_to_do_and_filtered(web: Web) -> None:
    now = timezone.now()
    first = firing()
    firing(subject="pool:m/prefill", state="pending")
    over = firing("node_lost", "node:n1", "", state="resolved", resolved_at=now, reason="good again", severity="warn")
    with Client(web.url, token_of("viewer")) as client:

        def numbers(**asked: Any) -> list[int]:
            return [each["id"] for each in client.get("alerts", params=asked).json()["items"]]

        assert numbers() == [over.pk, first.pk], "what is pending is none yet"
        assert numbers(state="firing") == numbers(model="m") == numbers(rule="pool_empty") == [first.pk]
        assert numbers(severity="warn") == [over.pk]
        assert numbers(since=(now + timedelta(minutes=1)).isoformat()) == []
        found = client.get(f"alerts/{first.pk}").json()
        assert (found["title"], found["unit"], found["model"]) == ("A pool has too few engines", "engines", "m")
        assert found["remedy"] and found["silenced_until"] is None
        problem(client.get("alerts/999999"), 404, "not_found")
        problem(client.get("alerts", params={"rule": "none"}), 400, "invalid_fields")
        schema = client.get("/api/schema/").json()
        assert {"/api/v1/alerts", "/api/v1/alerts/{alert}", "/api/v1/alerts/{alert}/silence"} <= schema["paths"].keys()


def test_an_alert_is_silenced_once_and_heard_again(web: Web) -> None:
    one_model()
    alert = firing()
    until = (timezone.now() + timedelta(hours=2)).isoformat(timespec="seconds")
    body = {"until": until, "scope": "model", "reason": "new switch"}
    with Client(web.url, token_of("operator")) as client:
        address = f"alerts/{alert.pk}/silence"
        plan = client.put(address, json=body, params={"dry_run": "true"})
        assert plan.status_code == 200 and plan.json()["instant"] and not Silence.objects.exists()
        for _ in range(2):
            answer = client.put(address, json=body, headers={"idempotency-key": "once"})
            assert answer.status_code == 202 and answer.json()["reason"] == "new switch"
        assert Silence.objects.count() == 1
        assert client.get(f"alerts/{alert.pk}").json()["silenced_until"].startswith(until[:19])
        assert client.delete(address, params={"reason": "it is in"}).status_code == 202
        assert client.get(f"alerts/{alert.pk}").json()["silenced_until"] is None
        problem(client.delete(address), 404, "not_found")
        problem(client.put(address, json={"until": until, "reason": ""}), 400, "invalid_fields")
        problem(client.put(address, json={"until": "2020-01-01T00:00:00Z", "reason": "x"}), 422, "invalid")


def test_a_viewer_silences_nothing(web: Web) -> None:
    alert = firing()
    body = {"until": (timezone.now() + timedelta(hours=2)).isoformat(), "reason": "x"}
    with Client(web.url, token_of("viewer")) as client:
        problem(client.put(f"alerts/{alert.pk}/silence", json=body), 403, "forbidden")


def test_rules_are_set_for_all_models_and_for_one_and_taken_back(web: Web) -> None:
    one_model()
    with Client(web.url, token_of("operator")) as client:
        address = "alert-rules/stranded_kv"
        before = client.get(address).json()
        assert [each["model"] for each in before["settings"]] == [None] and before["settings"][0]["own"] == []
        for body in ({"threshold": before["high"]}, {"model": "m", "severity": "bad", "enabled": False}):
            answer = client.put(address, json={**body, "reason": "slower network"})
            assert answer.status_code == 202, answer.text
        everywhere, of_one = client.get(address).json()["settings"]
        assert (everywhere["threshold"], everywhere["own"]) == (before["high"], ["threshold"])
        assert (of_one["model"], of_one["threshold"], of_one["enabled"]) == ("m", before["high"], False)
        assert of_one["own"] == ["severity", "enabled"]
        assert client.put(address, json={"model": "m"}).status_code == 202
        assert len(client.get(address).json()["settings"]) == 1
        problem(client.put(address, json={"threshold": -1e9}), 422, "invalid")
        problem(client.put(address, json={"threshold": "9"}), 400, "invalid_fields")
        problem(client.get("alert-rules/none"), 404, "not_found")
        assert address.partition("/")[2] in {each["rule"] for each in client.get("alert-rules").json()["items"]}


def test_channels_are_made_changed_and_removed_and_tell_no_target_whole(web: Web) -> None:
    hook = {"name": "pager", "kind": "webhook", "target": "https://93.184.215.14/in?key=hidden", "reason": "night shift"}
    with Client(web.url, token_of("admin")) as client:
        plan = client.post("channels", json=hook, params={"dry_run": "true"})
        assert plan.status_code == 200 and not Channel.objects.exists()
        first, again = (client.post("channels", json=hook, headers={"idempotency-key": "one"}) for _ in range(2))
        assert first.status_code == again.status_code == 202, first.text
        assert len(first.json()["secret"]) > 30 and first.json()["secret"] == again.json()["secret"]
        assert AuditEntry.objects.filter(subject="channel:pager", verb="secret_shown").count() == 2
        shown = client.get("channels/pager")
        assert shown.json()["to"] == "https://93.184.215.14/…" and "hidden" not in shown.text + first.text
        assert client.patch("channels/pager", json={"enabled": False, "least": "bad"}).status_code == 202
        (row,) = client.get("channels").json()["items"]
        assert (row["enabled"], row["least"], row["kind"]) == (False, "bad", "webhook")
        problem(client.post("channels", json={**hook, "name": "b", "target": "http://127.0.0.1:1/"}), 422, "invalid")
        assert client.delete("channels/pager", params={"reason": "gone"}).status_code == 202
        problem(client.get("channels/pager"), 404, "not_found")
        problem(client.delete("channels/pager"), 404, "not_found")
    assert first.json()["secret"] not in str(list(StoredAnswer.objects.values_list("body")))
