"""Inference keys and tokens over pages and REST: shown once, rotated with an overlap, within scopes, told by last use."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.utils import timezone

from controlplane.access.tokens import add_token, revoke_token, tokens_of
from controlplane.api.models import ApiToken, StoredAnswer
from controlplane.control.actor import Actor
from controlplane.control.keys import add_key, keys_seen_by, revoke_key, rotate_key, valid_keys
from controlplane.control.newkey import NewKey, digest
from controlplane.control.refused import Refused
from controlplane.fleet import models
from controlplane.telemetry.queries.uses import digests_of, last_use, last_uses
from tests.integration.access_kit import person, proves, quick_passwords

__all__ = ["quick_passwords"]  # a fixture
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_passwords")]
ROOT = Actor("root", "admin")
OWNER = Actor("ola", "owner", frozenset({"search"}))
NEW = NewKey("web-1", "search")


@pytest.fixture
def model() -> models.Model:
    return models.Model.objects.create(name="m", source="org/m", config={}, engine_kind="simulated", team="search")


class Api:
    """The REST API with one token."""

    def __init__(self, token: str) -> None:
        self.headers = {"authorization": f"Bearer {token}"}

    def __call__(self, method: str, at: str, body: Any = None, **headers: str) -> Any:
        sent = {"data": json.dumps(body), "content_type": "application/json"} if body is not None else {}
        return getattr(Client(), method)(f"/api/v1/{at}", headers={**self.headers, **headers}, **sent)


def api(role: str, *scopes: str, name: str = "") -> Api:
    user = User.objects.filter(username=name or role).first() or person(name or role, role)
    return Api(add_token(ROOT, user.username, f"t{ApiToken.objects.count()}", days=1, scopes=scopes or ("read",))[1])


def accepted(after: timedelta = timedelta()) -> list[str]:
    return [entry.sha256 for entry in valid_keys(timezone.now() + after)]


def test_a_rotated_key_is_good_in_both_forms_until_the_overlap_ends() -> None:
    _, old = add_key(ROOT, NEW)
    operation, new = rotate_key(ROOT, "web-1", overlap_hours=2, reason="yearly")
    assert accepted() == [digest(new), digest(old)] and accepted(timedelta(hours=3)) == [digest(new)]
    assert operation.verb == "rotate_key" and old not in str(operation.after) and digest(old) not in str(operation.after)
    _, newest = rotate_key(ROOT, "web-1", overlap_hours=0)
    assert accepted() == [digest(newest), digest(old)], "none of the second is left"
    revoke_key(ROOT, "web-1")
    assert accepted() == []
    with pytest.raises(Refused, match="revoked already"):
        rotate_key(ROOT, "web-1", overlap_hours=1)


@pytest.mark.parametrize("hours", [-1, 1e9, float("nan"), float("inf")])
def test_an_overlap_has_bounds(hours: float) -> None:
    add_key(ROOT, NEW)
    with pytest.raises(Refused, match="overlap_hours: 0 to"):
        rotate_key(ROOT, "web-1", overlap_hours=hours)


def test_a_key_that_has_expired_is_rotated_with_a_new_end_only() -> None:
    add_key(ROOT, replace(NEW, days=1))
    models.InferenceKey.objects.update(expires_at=timezone.now() - timedelta(days=1))
    with pytest.raises(Refused, match="has expired"):
        rotate_key(ROOT, "web-1", overlap_hours=1)
    _, secret = rotate_key(ROOT, "web-1", overlap_hours=0, days=7)
    assert accepted() == [digest(secret)]


def test_owners_make_keys_of_their_team_for_its_models_alone(model: models.Model) -> None:
    add_key(OWNER, NewKey("mine", "search", model_names=("m",)))
    for new, kind in ((NewKey("a", "search"), "is not team search's"), (NewKey("b", "ads", model_names=("m",)), "ads")):
        with pytest.raises(Refused, match=kind) as refused:
            add_key(OWNER, new)
        assert refused.value.kind == "forbidden"
    add_key(ROOT, NewKey("theirs", "ads"))
    assert [row.name for row in keys_seen_by(OWNER)] == ["mine"]
    with pytest.raises(Refused, match="there is no key"):
        rotate_key(OWNER, "theirs", overlap_hours=1)
    rotate_key(OWNER, "mine", overlap_hours=1)
    revoke_key(OWNER, "mine")


def test_the_last_use_is_of_the_key_whatever_it_was_then() -> None:
    _, old = add_key(ROOT, NEW)
    rotate_key(ROOT, "web-1", overlap_hours=1)
    at = timezone.now().replace(minute=0, second=0, microsecond=0) - timedelta(hours=5)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO telemetry_usage_hour VALUES ('m', 'search', %s, %s, 3, 0, 10, 10, 0)", [digest(old)[:16], at]
        )
    rows = list(models.InferenceKey.objects.prefetch_related("former_secrets"))
    assert last_use(rows[0], last_uses(digests_of(rows), timezone.now().timestamp())) == at.timestamp()
    out = io.StringIO()
    call_command("list_keys", stdout=out)
    shown = json.loads(out.getvalue())
    assert shown["used_at"] == at.isoformat(timespec="seconds") and shown["former_until"] and "sha256" not in shown


def test_rest_makes_rotates_lists_and_revokes_keys_and_shows_each_once() -> None:
    admin = api("admin", "read", "secrets")
    body = {"name": "web-1", "team": "search", "requests_per_minute": 60, "days": 30}
    made = admin("post", "keys", body, **{"idempotency-key": "k1"})
    assert made.status_code == 202 and made.json()["secret"].startswith("sk-")
    replayed = admin("post", "keys", body, **{"idempotency-key": "k1"})
    assert replayed.json()["id"] == made.json()["id"] and replayed.json()["secret"] == ""
    assert made.json()["secret"] not in json.dumps([row.body for row in StoredAnswer.objects.all()])
    dry = admin("post", "keys?dry_run=true", {**body, "name": "web-2"})
    assert dry.status_code == 200 and "sk-" not in dry.content.decode()
    rotated = admin("post", "keys/web-1/rotate", {"overlap_hours": 1})
    assert accepted() == [digest(rotated.json()["secret"]), digest(made.json()["secret"])]
    (listed,) = admin("get", "keys").json()["items"]
    assert (listed["name"], listed["state"], listed["requests_per_minute"]) == ("web-1", "valid", 60)
    assert listed["former_until"] and "sk-" not in json.dumps(listed) and "sha" not in json.dumps(listed)
    assert admin("delete", "keys/web-1").status_code == 202 and accepted() == []
    assert admin("post", "keys", {**body, "name": "x", "days": 0}).status_code == 400
    assert api("operator", "read", "secrets")("post", "keys", {**body, "name": "y"}).status_code == 403


def test_a_token_is_good_for_its_scopes_alone(model: models.Model) -> None:
    reader, writer, keeper = api("admin", "read"), api("admin", "write"), api("admin", "secrets")
    mode = {"mode": "monolithic"}
    key = {"name": "k", "team": "search"}
    assert reader("get", "models").status_code == 200
    assert writer("get", "models").status_code == keeper("get", "models").status_code == 403
    for each in (reader, keeper):
        refused = each("put", "models/m/mode", mode)
        assert refused.status_code == 403 and "has not the scope write" in refused.json()["reasons"][0]
    assert writer("put", "models/m/mode", mode).status_code in (202, 409, 422)
    assert reader("post", "keys", key).status_code == writer("post", "keys", key).status_code == 403
    assert keeper("post", "keys", key).status_code == 202


def test_a_token_makes_no_token_that_may_more_than_itself() -> None:
    keeper = api("viewer", "secrets")
    refused = keeper("post", "tokens", {"name": "more", "scopes": ["write"]})
    assert refused.status_code == 422 and "scopes: at least one" in refused.json()["reasons"][0]
    made = keeper("post", "tokens", {"name": "less", "scopes": ["read", "secrets"], "days": 3})
    assert made.status_code == 202 and ApiToken.objects.get(name="less").scopes == ["secrets"]


def test_people_have_their_own_tokens_and_admins_everybodys() -> None:
    person("vic")
    viewer, admin = api("viewer", "read", "secrets"), api("admin", "read", "secrets")
    made = viewer("post", "tokens", {"name": "mine", "scopes": ["read"]})
    assert made.status_code == 202 and Api(made.json()["secret"])("get", "models").status_code == 200
    assert viewer("post", "tokens", {"name": "theirs", "scopes": ["read"], "user": "vic"}).status_code == 403
    assert viewer("get", "tokens?user=vic").status_code == 403
    listed = viewer("get", "tokens").json()["items"]
    assert {row["name"] for row in listed} >= {"mine"} and "tp-" not in json.dumps(listed)
    assert admin("post", "tokens", {"name": "given", "scopes": ["read"], "user": "vic"}).status_code == 202
    assert [row["name"] for row in admin("get", "tokens?user=vic").json()["items"]] == ["given"]
    assert viewer("delete", "tokens/mine").status_code == 202
    assert Api(made.json()["secret"])("get", "models").status_code == 401
    with pytest.raises(Refused, match="revoke_token needs the role admin"):
        revoke_token(Actor("viewer", "viewer"), "vic", "given")


def test_a_token_tells_its_last_use_without_writing_each_time() -> None:
    reader = api("viewer")
    assert reader("get", "models").status_code == 200
    (row,) = tokens_of("viewer")
    first = row.used_at
    assert first is not None
    reader("get", "models")
    assert tokens_of("viewer")[0].used_at == first
    ApiToken.objects.update(used_at=first - timedelta(minutes=6))
    reader("get", "models")
    assert tokens_of("viewer")[0].used_at > first
    ApiToken.objects.update(expiry=timezone.now() - timedelta(seconds=1))
    assert reader("get", "models").status_code == 401 and tokens_of("viewer") == []


@pytest.fixture
def browser() -> Iterator[Client]:
    client = Client()
    client.force_login(person("ada", "admin"), backend="django.contrib.auth.backends.ModelBackend")
    yield proves(client)


def test_the_account_page_shows_a_new_token_once(browser: Client) -> None:
    page = browser.post("/account/tokens", {"name": "ci", "days": "7", "scopes": ["read"]})
    (token,) = re.findall(r"tp-[0-9a-zA-Z]+", page.content.decode())
    assert page.status_code == 200 and "no-store" in page.headers["Cache-Control"]
    assert Api(token)("get", "models").status_code == 200
    again = browser.get("/account").content.decode()
    assert "ci" in again and token not in again
    assert (
        b"has a token ci already" in browser.post("/account/tokens", {"name": "ci", "days": "7", "scopes": ["read"]}).content
    )
    assert browser.post("/account/tokens", {"name": "x", "days": "0", "scopes": ["none"]}).status_code == 400
    assert browser.post("/account/tokens/ci/revoke").status_code == 302
    assert Api(token)("get", "models").status_code == 401


def test_the_keys_page_makes_rotates_and_revokes(browser: Client) -> None:
    form = {"name": "web-1", "team": "search", "days": "30", "requests_per_minute": "5", "reason": "new"}
    page = browser.post("/keys/add", form).content.decode()
    (first,) = re.findall(r"sk-[\w-]{43}", page)
    (second,) = re.findall(r"sk-[\w-]{43}", browser.post("/keys/web-1/rotate", {"overlap_hours": "24"}).content.decode())
    assert accepted() == [digest(second), digest(first)]
    shown = browser.get("/keys").content.decode()
    assert "web-1" in shown and "old one until" in shown and first not in shown and second not in shown
    assert b"exists already" in browser.post("/keys/add", form).content
    assert browser.post("/keys/web-1/rotate", {"overlap_hours": "x"}).status_code == 422
    assert browser.post("/keys/web-1/revoke").status_code == 302 and accepted() == []
    viewer = Client()
    viewer.force_login(person("vic"), backend="django.contrib.auth.backends.ModelBackend")
    assert viewer.post("/keys/add", form).status_code == 403
    assert b"web-1" not in viewer.get("/keys").content
