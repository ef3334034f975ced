"""Silences, settings of rules and channels: bounded, audited, and without a secret in anything that is kept or said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.alerts.models import Alert, Channel, Notification, RuleSetting, Silence
from controlplane.alerts.selectors import read_settings, silence_of, silences_now
from controlplane.alerts.webhook import shown_secret
from controlplane.config import config
from controlplane.control import actions
from controlplane.control.actions import RuleChange
from controlplane.control.actor import Actor
from controlplane.control.alerting.deliver import deliver_due
from controlplane.core.alertrules import RULES
from controlplane.core.signing import webhook_key
from controlplane.fleet import models
from tests.integration.alert_kit import Hooks, firing, hooks
from tests.integration.control_kit import ANN
from tests.integration.control_rows import refusal

pytestmark = pytest.mark.django_db(transaction=True)

OWNER = Actor("ola", "owner", frozenset({"search"}))
HOUR = timedelta(hours=1)


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TWINPOOL_WEBHOOK_NETWORKS", "127.0.0.0/8")
    config.cache_clear()
    yield
    config.cache_clear()


@pytest.fixture
def hook(inside: None) -> Iterator[Hooks]:
    with hooks() as found:
        yield found


def silenced(alert: Alert) -> bool:
    return silence_of(alert, silences_now()) is not None


def test_a_silence_covers_what_its_scope_says() -> None:
    this = firing()
    same_rule = firing(subject="pool:m/prefill")
    same_model = firing("transfer_p99", "model:m")
    other = firing(subject="pool:other/decode", model="other")
    covered = {"alert": [True, False, False, False], "rule": [True, True, False, False], "model": [True, True, True, False]}
    for scope, expected in covered.items():
        operation = actions.silence_alert(ANN, this.pk, until=timezone.now() + HOUR, scope=scope, reason="known")
        assert [silenced(each) for each in (this, same_rule, same_model, other)] == expected, scope
        assert (operation.state, operation.reason, operation.actor) == ("done", "known", "ann")
        actions.unsilence_alert(ANN, this.pk)
        assert not silenced(this)


def test_a_silence_has_a_reason_an_end_and_a_known_scope() -> None:
    alert, node = firing(), firing("node_lost", "node:n1", "")

    def why_not(**more: Any) -> str:
        asked = {"until": timezone.now() + HOUR, "reason": "known", "number": alert.pk} | more
        return str(refusal(actions.silence_alert, ANN, asked.pop("number"), **asked))

    assert "needs a reason" in why_not(reason=" ")
    assert "within 30 days" in why_not(until=timezone.now() - HOUR) == why_not(until=timezone.now() + timedelta(days=31))
    assert "one of alert, rule, model" in why_not(scope="all")
    assert "about no model" in why_not(number=node.pk, scope="model")
    assert "there is no alert" in why_not(number=0) and not Silence.objects.exists()
    assert refusal(actions.unsilence_alert, ANN, alert.pk).kind == "not_found"


def test_what_is_pending_is_no_alert_yet() -> None:
    pending = firing(state="pending")
    assert refusal(actions.silence_alert, ANN, pending.pk, until=timezone.now() + HOUR, reason="x").kind == "not_found"


def test_an_owner_silences_the_alerts_of_the_own_models_alone() -> None:
    models.Model.objects.create(name="m", source="x", config={}, engine_kind="simulated", team="search")
    mine, node = firing(), firing("node_lost", "node:n1", "")
    actions.silence_alert(OWNER, mine.pk, until=timezone.now() + HOUR, reason="known")
    assert refusal(actions.silence_alert, OWNER, node.pk, until=timezone.now() + HOUR, reason="x").kind == "forbidden"
    silence = Silence.objects.get()
    assert refusal(actions.end_silence, Actor("other", "owner", frozenset({"ads"})), silence.pk).kind == "forbidden"
    actions.end_silence(OWNER, silence.pk)
    assert not silenced(mine) and refusal(actions.end_silence, ANN, silence.pk).kind == "not_found"
    actions.set_alert_rule(OWNER, "pool_empty", RuleChange(threshold=2), model="m")
    assert refusal(actions.set_alert_rule, OWNER, "pool_empty", RuleChange(threshold=2)).kind == "forbidden"


def test_settings_fall_back_from_the_model_to_all_models_to_the_default() -> None:
    models.Model.objects.create(name="m", source="x", config={}, engine_kind="simulated")
    actions.set_alert_rule(ANN, "transfer_p99", RuleChange(threshold=300, severity="bad"))
    operation = actions.set_alert_rule(ANN, "transfer_p99", RuleChange(threshold=200), model="m", reason="long prompts")
    of = read_settings().of
    known = [of("transfer_p99", model) for model in ("m", "other")]
    assert [(each.threshold, each.severity, each.for_s, each.clear_at) for each in known if each] == [
        (200, "bad", 120, 180),
        (300, "bad", 120, 270),
    ]
    assert (operation.before, operation.after) == ({}, {"threshold": 200})
    back = actions.set_alert_rule(ANN, "transfer_p99", RuleChange(), model="m")
    assert (back.before, back.after) == ({"threshold": 200}, {}) and RuleSetting.objects.count() == 1
    assert of("no such rule") is None


@pytest.mark.parametrize(
    ("rule", "change", "model"),
    [
        ("transfer_p99", RuleChange(threshold=0), ""),
        ("transfer_p99", RuleChange(threshold=float("nan")), ""),
        ("transfer_p99", RuleChange(for_s=-1), ""),
        ("transfer_p99", RuleChange(clear_s=0), ""),
        ("transfer_p99", RuleChange(severity="worst"), ""),
        ("transfer_p99", RuleChange(threshold=300), "no such model"),
        ("node_lost", RuleChange(threshold=60), "m"),
        ("no_such_rule", RuleChange(threshold=60), ""),
    ],
)
def test_a_setting_that_cannot_be_is_refused(rule: str, change: RuleChange, model: str) -> None:
    assert refusal(actions.set_alert_rule, ANN, rule, change, model=model).kind in ("invalid", "not_found")
    assert not RuleSetting.objects.exists()


def everything_kept() -> str:
    rows = [*models.Operation.objects.values("before", "after", "reason", "outcome")]
    audit = [*models.AuditEntry.objects.values("before", "after", "reason", "subject")]
    return json.dumps([rows, audit], default=str)


def test_a_webhooks_path_and_secret_are_told_once_and_kept_nowhere_else(hook: Hooks) -> None:
    operation, secret = actions.add_channel(ANN, "pager", "webhook", hook.url, reason="on call")
    channel = Channel.objects.get()
    assert secret == shown_secret(webhook_key(config().fleet_secret(), channel.pk))
    assert channel.shown == hook.url.removesuffix("hook/s3cret-path") + "…" == operation.after["to"]
    actions.update_channel(ANN, "pager", least="bad")
    actions.update_channel(ANN, "pager", enabled=False)
    channel.refresh_from_db()
    assert (channel.least, channel.enabled) == ("bad", False)
    actions.remove_channel(ANN, "pager")
    assert "s3cret" not in everything_kept() and secret.removeprefix("whsec_") not in everything_kept()
    assert not Channel.objects.exists()


def test_a_channel_that_cannot_be_is_refused_without_repeating_its_target(hook: Hooks, settings: Any) -> None:
    settings.EMAIL_HOST = ""

    def why_not(name: str, kind: str, target: str, **more: Any) -> str:
        return str(refusal(actions.add_channel, ANN, name, kind, target, **more))

    assert "not public" in why_not("a", "webhook", "https://169.254.169.254/s3cret")
    assert "not public" in why_not("a", "webhook", "https://[::1]/s3cret")
    assert "is a URL like" in why_not("a", "webhook", "ftp://a.example/s3cret")
    assert "lower-case letters" in why_not("A b", "webhook", hook.url)
    assert "one of webhook, email" in why_not("a", "pigeon", "s3cret")
    assert "one of warn, bad" in why_not("a", "webhook", hook.url, least="all")
    assert "TWINPOOL_SMTP_URL" in why_not("a", "email", "a@example.com")
    settings.EMAIL_HOST = "mail.example.com"
    assert "no e-mail address" in why_not("a", "email", "nobody")
    actions.add_channel(ANN, "a", "email", " a@example.com , b@example.com")
    assert Channel.objects.get().target == "a@example.com,b@example.com"
    assert "exists already" in why_not("a", "email", "a@example.com")
    assert "there is no channel" in str(refusal(actions.remove_channel, ANN, "b"))


def test_a_channel_is_tried_with_a_message_that_is_sent_once(hook: Hooks) -> None:
    actions.add_channel(ANN, "pager", "webhook", hook.url)
    row = actions.try_channel(ANN, "pager")
    assert refusal(actions.try_channel, ANN, "pager").kind == "busy"
    assert deliver_due("me") == 1
    assert json.loads(hook.received[0].body)["event"] == "test"
    assert Notification.objects.get(pk=row.pk).state == "sent"
    hook.answer = lambda _: (500, {})
    again = actions.try_channel(ANN, "pager")
    assert deliver_due("me") == 0
    failed = Notification.objects.get(pk=again.pk)
    assert (failed.state, failed.error) == ("failed", "it answered HTTP 500")


def test_every_rule_may_be_set_within_its_bounds() -> None:
    for key, rule in RULES.items():
        actions.set_alert_rule(ANN, key, RuleChange(rule.low, 0.0, 10.0, "warn", False))
        setting = read_settings().of(key)
        assert setting and (setting.threshold, setting.enabled) == (rule.low, False)
