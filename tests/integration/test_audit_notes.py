"""Logins, refusals and secrets that were shown are in the audit, not without bound, and no secret is."""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client
from django.utils import timezone

from controlplane.access.tokens import add_token
from controlplane.control import actions
from controlplane.control.auditing import notes
from controlplane.control.keys import add_key
from controlplane.control.models import AuditBudget
from controlplane.control.newkey import NewKey
from controlplane.core.secretwords import HIDDEN, hide
from controlplane.fleet import models
from controlplane.fleet.models import AuditEntry
from controlplane.stack.folder import StateFolder
from controlplane.stack.join import _make
from tests.integration.control_kit import ANN
from tests.integration.control_rows import fleet

pytestmark = pytest.mark.django_db
PASSWORD = "correct horse battery staple"


def person(name: str, role: str) -> User:
    user = User.objects.create_user(name, password=PASSWORD)
    user.groups.add(Group.objects.get_or_create(name=role)[0])
    return user


def noted(verb: str) -> list[tuple[str, str, dict[str, Any]]]:
    rows = AuditEntry.objects.filter(verb=verb).order_by("pk")
    return [(row.actor, row.subject, row.after) for row in rows]


def login(name: str, password: str) -> int:
    return Client().post("/login", {"username": name, "password": password}).status_code


def bearer(token: str) -> dict[str, Any]:
    return {"HTTP_AUTHORIZATION": f"Bearer {token}"}


def test_who_signed_in_and_who_could_not_is_noted() -> None:
    person("vic", "viewer")
    assert login("vic", PASSWORD) == 302
    login("vic", "wrong")
    login("my secret password typed into the wrong field", "vic")
    at = {"from": "127.0.0.1"}
    assert noted("login") == [("vic", "user:vic", at)]
    assert noted("login_failed") == [("vic", "user:vic", at), ("somebody", "user:unknown", at)]


def test_a_refusal_says_who_asked_for_what_and_why_not() -> None:
    model = fleet("disaggregated", prefill=2, decode=2)
    user = person("vic", "viewer")
    browser = Client()
    browser.force_login(user)
    body = {"sizes": {"prefill": 1, "decode": 3}, "reason": "x", "version": model.version}
    assert browser.post("/models/m/rebalance/start", body, content_type="application/json").status_code == 403
    token = add_token(ANN, "vic", "ci", days=None)[1]
    answer = Client().put("/api/v1/models/m/mode", {"mode": "monolithic"}, "application/json", **bearer(token))
    assert answer.status_code == 403
    from_page, from_api = [after for _, subject, after in noted("refused") if subject == "refusal:forbidden"]
    assert (from_page["kind"], from_page["asked"], from_page["of"]) == (
        "forbidden",
        "POST models/<path:name>/rebalance/start",
        {"name": "m"},
    )
    assert from_api["asked"] == "PUT api/v1/models/<model:name>/mode" and "needs the role operator" in from_api["reasons"][0]
    with pytest.raises(CommandError):
        call_command("scale_pool", "nowhere", "decode", "1")
    (command,) = [after for _, subject, after in noted("refused") if subject == "refusal:not_found"]
    assert "reasons" not in command and "nowhere" not in json.dumps(command)


def test_a_bad_token_is_noted_without_the_token() -> None:
    assert Client().get("/api/v1/models", **bearer("tp-" + "a" * 61)).status_code == 401
    assert Client().get("/api/v1/models").status_code == 401, "who brings none was not refused a login"
    assert noted("login_failed") == [("somebody", "token:unknown", {"from": "127.0.0.1"})]


def test_a_flood_is_counted_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(40):
        notes.note("login_failed", "somebody", "user:unknown", source="10.0.0.1")
    assert AuditEntry.objects.count() == notes.LIMITS["login_failed"].hourly == 10
    assert notes.note("login_failed", "somebody", "user:unknown", source="10.0.0.2"), "others are noted all the same"
    for n in range(300):
        notes.note("login_failed", "somebody", "user:unknown", source=f"10.1.{n}.1")
    assert AuditBudget.objects.count() <= notes.SOURCES + 1
    assert notes.tell_left_out() == 1 and notes.tell_left_out() == 0
    (told,) = noted(notes.LEFT_OUT)
    kept = AuditEntry.objects.filter(verb="login_failed").count()
    assert told == ("twinpool", "audit:login_failed", {"entries": 341 - kept})
    later = timezone.now() + timedelta(hours=1)
    monkeypatch.setattr(notes.timezone, "now", lambda: later)
    assert notes.note("login_failed", "somebody", "user:unknown", source="10.0.0.1"), "the next hour has a budget of its own"


def test_a_kind_has_an_end_for_the_day_whoever_causes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(notes.LIMITS, "refused", notes.Limit(hourly=100, daily=5))  # type: ignore[attr-defined]
    made = [notes.note("refused", f"u{n}", "refusal:stale") for n in range(8)]
    assert made == [True] * 5 + [False] * 3


def test_secrets_that_are_shown_are_noted() -> None:
    add_key(ANN, NewKey("web", "search"))
    person("bot", "viewer")
    add_token(ANN, "bot", "ci", days=3)
    actions.add_channel(ANN, "pager", "webhook", "https://93.184.216.34/hook/PLANTED-TARGET")
    assert noted("secret_shown") == [("ann", "channel:pager", {})]
    assert [row[1] for verb in ("add_key", "add_token") for row in noted(verb)] == ["key:web", "token:bot/ci"]


def test_no_secret_is_in_audit_logs_or_errors(caplog: pytest.LogCaptureFixture, state_dir: Path) -> None:
    caplog.set_level(logging.DEBUG)
    fleet("disaggregated", prefill=2, decode=2)
    person("olga", "operator")
    _, key = add_key(ANN, NewKey("web", "search"))
    _, token = add_token(ANN, "olga", "ci", days=None)
    _, channel = actions.add_channel(ANN, "pager", "webhook", "https://93.184.216.34/hook/PLANTED-TARGET")
    planted = (key, token, channel, PASSWORD, "PLANTED-TARGET", "hunter2hunter2")
    said = []
    for secret in planted:
        login(secret, secret)
        typed = secret if secret != PASSWORD else "[a password in free text looks like nothing]"
        actions.cordon_node(ANN, "n1", reason=f"see Bearer {typed} and redis://u:hunter2hunter2@10.0.0.1/")
        actions.uncordon_node(ANN, "n1")
        said.append(Client().get("/api/v1/models", **bearer(secret)).content)
        api = {"content_type": "application/json", **bearer(token)}
        said.append(Client().post("/api/v1/models/m/rebalance", {"pools": {"prefill": 9}, "reason": secret}, **api).content)
        said.append(
            Client()
            .delete(f"/api/v1/engines/{secret[:40]}/drain", **bearer(token))
            .content.replace(secret[:40].encode(), b"")
        )
    assert AuditEntry.objects.filter(verb="refused").exists() and AuditEntry.objects.filter(verb="login_failed").exists()
    everything = json.dumps([*AuditEntry.objects.values(), *models.Operation.objects.values()], default=str)
    for secret in planted:
        assert secret not in everything
        assert secret not in caplog.text
        assert all(secret.encode() not in each for each in said)


def test_what_looks_like_a_secret_is_hidden() -> None:
    assert hide({"a": ["sk-" + "x" * 43, "skip-this"], "tp-" + "a" * 64: 1}) == {"a": [HIDDEN, "skip-this"], HIDDEN: 1}
    assert hide("postgresql://u:p@h/db") == f"postgresql://{HIDDEN}@h/db"


def test_who_may_not_read_an_engines_log_is_refused_by_the_api_too() -> None:
    fleet("disaggregated", prefill=2, decode=2)
    person("vic", "viewer")
    token = add_token(ANN, "vic", "ci", days=None)[1]
    answer = Client().get("/api/v1/engines/m-1/log", **bearer(token))
    assert (answer.status_code, answer.json()["kind"]) == (403, "forbidden")
    (after,) = [after for _, _, after in noted("refused")]
    assert (after["asked"], after["of"]) == ("GET api/v1/engines/<word:engine>/log", {"engine": "m-1"})


def test_a_join_token_that_is_printed_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = StateFolder(tmp_path / "state").create()
    _make(state, "gpu-1", 1)
    _make(state, "gpu-1", 1)
    assert [(subject, after) for _, subject, after in noted("secret_shown")] == [("node:gpu-1", {})] * 2
    assert models.Node.objects.filter(name="gpu-1").count() == 1


def test_the_audit_is_read_over_the_api_in_pages() -> None:
    person("vic", "viewer")
    token = add_token(ANN, "vic", "ci", days=None)[1]
    for n in range(3):
        actions.add_node(ANN, f"n{n}", reason="new")
    first = Client().get("/api/v1/audit?verb=add_node&page_size=2", **bearer(token)).json()
    assert [row["subject"] for row in first["items"]] == ["node:n2", "node:n1"]
    rest = Client().get(first["next"], **bearer(token)).json()
    assert ([row["subject"] for row in rest["items"]], rest["next"]) == (["node:n0"], None)
    only = Client().get("/api/v1/audit?subject=node:n1&actor=ann", **bearer(token)).json()["items"]
    assert [(row["reason"], row["operation"] is not None) for row in only] == [("new", True)]
    assert Client().get("/api/v1/audit?since=tomorrow", **bearer(token)).status_code == 400
