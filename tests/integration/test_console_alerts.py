"""What the alerts page reads and asks for over HTTP, and the same from the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client
from django.utils import timezone

from controlplane.alerts.models import Alert, Channel, Notification, RuleSetting, Silence
from controlplane.config import config
from controlplane.fleet import models
from tests.integration.alert_kit import firing
from tests.integration.test_console_changes import first, post, signed_in, url

pytestmark = pytest.mark.django_db


@pytest.fixture
def ops(valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("TWINPOOL_WEBHOOK_NETWORKS", "127.0.0.0/8")
    config.cache_clear()
    models.Model.objects.create(name="m", source="x", config={}, engine_kind="simulated", team="search")
    yield signed_in("ops-1", "admin")
    config.cache_clear()


def over(**values: Any) -> Alert:
    now = timezone.now()
    return firing(state="resolved", fired_at=now - timedelta(hours=1), resolved_at=now, reason="good again", **values)


def test_nobody_reads_alerts_without_signing_in(db: None) -> None:
    assert Client().get(url("alerts")).status_code == 302
    assert Client().get(url("data_alerts")).status_code == 401
    assert post(Client(), url("silence_alert", 1), {}).status_code == 401


def test_the_page_lists_what_is_over_by_rule_and_model_and_page_by_page(ops: Client) -> None:
    numbers = [over().pk for _ in range(55)]
    other = over(rule="node_lost", subject="node:n1", model="")
    page = first(ops.get(url("alerts")).content.decode())
    assert page["more"] and [row["number"] for row in page["rows"]][:2] == [other.pk, numbers[-1]]
    older = first(ops.get(url("alerts"), {"before": page["rows"][-1]["number"]}).content.decode())
    assert not older["more"] and len(older["rows"]) == 6
    assert [row["number"] for row in first(ops.get(url("alerts"), {"rule": "node_lost"}).content.decode())["rows"]] == [
        other.pk
    ]
    file = ops.get(url("data_alerts_history"), {"format": "csv", "model": "m"})
    assert len(file.content.decode().splitlines()) == 56 and "attachment" in file.headers["Content-Disposition"]


def test_one_alert_says_who_was_told(ops: Client) -> None:
    alert = over()
    channel = Channel.objects.create(name="pager", kind="webhook", target="https://a.example/s3cret")
    sending = {"event": "fired", "body": {}, "due_at": timezone.now(), "state": "failed", "error": "it answered HTTP 500"}
    Notification.objects.create(alert=alert, channel=channel, **sending)
    page = ops.get(url("alert", alert.pk)).content.decode()
    told = first(page)["chosen"]["told"]
    assert [(each["channel"], each["state"], each["error"]) for each in told] == [
        ("pager", "failed", "it answered HTTP 500")
    ]
    assert "s3cret" not in page
    assert ops.get(url("alert", 999)).status_code == 404
    assert ops.get(url("alert", firing(state="pending").pk)).status_code == 404


def test_an_alert_is_silenced_and_the_silence_ended(ops: Client) -> None:
    alert = firing()
    body = {"minutes": 60, "scope": "model", "reason": "known"}
    assert post(ops, url("silence_alert", alert.pk), body).status_code == 202
    (silence,) = ops.get(url("data_alerts")).json()["silences"]
    assert (silence["model"], silence["reason"], silence["actor"]) == ("m", "known", "ops-1")
    assert post(ops, url("end_silence", silence["number"]), {"reason": "over"}).status_code == 202
    assert ops.get(url("data_alerts")).json()["silences"] == []


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"minutes": 0}, 400),
        ({"minutes": True}, 400),
        ({"minutes": "60"}, 400),
        ({"minutes": 10**30}, 400),
        ({"reason": ""}, 400),
        ({"scope": "all"}, 422),
        ({"scope": 7}, 202),
    ],
)
def test_an_order_to_silence_that_is_none_changes_nothing(ops: Client, change: dict[str, Any], status: int) -> None:
    body = {"minutes": 60, "scope": "alert", "reason": "known"} | change
    assert post(ops, url("silence_alert", firing().pk), body).status_code == status
    assert Silence.objects.exists() == (status == 202)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"threshold": 300}, 202),
        ({"threshold": True}, 400),
        ({"threshold": 10**400}, 400),
        ({"for_s": "soon"}, 400),
        ({"enabled": "no"}, 400),
        ({"threshold": 10**9}, 422),
        ({"severity": "worst"}, 422),
        ({"model": "none"}, 422),
    ],
)
def test_a_rule_is_set_or_the_order_refused(ops: Client, change: dict[str, Any], status: int) -> None:
    answer = post(ops, url("set_alert_rule", "transfer_p99"), {"model": "m", "reason": "why not"} | change)
    assert answer.status_code == status, answer.content
    assert RuleSetting.objects.exists() == (status == 202)
    shown = {(row["rule"], row["model"]): row["threshold"] for row in ops.get(url("data_alerts")).json()["settings"]}
    assert shown.get(("transfer_p99", "m")) == (300 if status == 202 else None)
    assert shown["transfer_p99", ""] == 500


def test_a_channels_secret_is_in_one_answer_and_its_url_in_none(ops: Client) -> None:
    body = {"name": "pager", "kind": "webhook", "target": "http://127.0.0.1:9/s3cret", "least": "bad", "reason": "on call"}
    made = post(ops, url("add_channel"), body)
    assert made.status_code == 201 and made.json()["secret"].startswith("whsec_")
    again = post(ops, url("add_channel"), body)
    assert again.status_code == 422 and "exists already" in again.json()["reasons"][0]
    assert post(ops, url("update_channel", "pager"), {"enabled": False, "reason": "quiet"}).status_code == 202
    assert post(ops, url("update_channel", "pager"), {"enabled": "no", "reason": "quiet"}).status_code == 400
    sent = post(ops, url("try_channel", "pager"), {})
    assert sent.status_code == 202
    assert ops.get(sent.json()["url"]).json() == {"state": "waiting", "error": ""}
    assert post(ops, url("try_channel", "pager"), {}).status_code == 409
    pages = [ops.get(url("alerts")), ops.get(url("data_alerts")), ops.get(url("audit")), ops.get(url("operations")), again]
    assert not any("s3cret" in page.content.decode() or "whsec_" in page.content.decode() for page in pages)
    (channel,) = ops.get(url("data_alerts")).json()["channels"]
    assert (channel["to"], channel["least"], channel["enabled"], channel["waiting"]) == (
        "http://127.0.0.1:9/…",
        "bad",
        False,
        1,
    )
    assert post(ops, url("remove_channel", "pager"), {"reason": "gone"}).status_code == 202
    assert not Channel.objects.exists()


def test_what_a_viewer_may_not_is_refused_and_said(ops: Client) -> None:
    alert = firing()
    viewer, owner = signed_in("eve", "viewer"), signed_in("ola", "owner", team="search")
    page = first(viewer.get(url("alerts")).content.decode())
    assert page["refused"][""]["silence_alert"] == "Needs the role operator"
    assert set(page["channels_refused"]) == {"add_channel", "update_channel", "remove_channel", "try_channel"}
    body = {"minutes": 60, "reason": "known"}
    assert post(viewer, url("silence_alert", alert.pk), body).status_code == 403
    assert "silence_alert" not in first(owner.get(url("alerts")).content.decode())["refused"]["m"]
    assert post(owner, url("silence_alert", alert.pk), body).status_code == 202


def test_every_page_counts_what_fires_and_nobody_silenced(ops: Client) -> None:
    assert "data-count" not in ops.get(url("operations")).content.decode()
    alert = firing()
    firing("transfer_p99", "model:m", severity="warn")
    page = ops.get(url("operations")).content.decode()
    assert 'data-count="2"' in page and "data-critical" in page
    post(ops, url("silence_alert", alert.pk), {"minutes": 60, "reason": "known"})
    page = ops.get(url("operations")).content.decode()
    assert 'data-count="1"' in page and "data-critical" not in page


def test_the_command_line_lists_and_silences(ops: Client, capsys: pytest.CaptureFixture[str]) -> None:
    warning, critical = firing("transfer_p99", "model:m", severity="warn"), firing()
    over()

    def typed(*words: str) -> list[dict[str, Any]]:
        call_command(*words)
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    listed = typed("alerts")
    assert [row["alert"] for row in listed] == [critical.pk, warning.pk]
    assert listed[0]["text"].startswith("A pool has too few engines: m decode") and listed[0]["remedy"]
    assert len(typed("alerts", "--over")) == 1
    typed("silence_alert", str(critical.pk), "--hours", "2", "--reason", "known")
    assert typed("alerts")[0]["silenced_until"]
    typed("silence_alert", str(critical.pk), "--off")
    assert typed("alerts")[0]["silenced_until"] is None
    for wrong in (["--hours", "2"], ["--hours", "nan", "--reason", "x"], ["--hours", "2000", "--reason", "x"], ["--off"]):
        with pytest.raises(CommandError):
            call_command("silence_alert", str(critical.pk), *wrong)
