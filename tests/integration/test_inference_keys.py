"""API keys from the command that makes one to the router that accepts it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import IntegrityError, transaction
from django.utils import timezone

from controlplane.config import config
from controlplane.control.keys import add_key, revoke_key, valid_keys
from controlplane.control.newkey import NewKey, digest
from controlplane.control.publish import TablePublisher
from controlplane.control.refused import Refused
from controlplane.core import names
from controlplane.core.codec import decode
from controlplane.core.protocol import KeyEntry, ModelRoute, RoutingTable
from controlplane.core.signing import table_key, unseal
from controlplane.core.world import World
from controlplane.fleet import models
from controlplane.router import identity
from controlplane.router.errors import ApiError
from tests.integration.agent_kit import until
from tests.integration.control_kit import ANN
from tests.integration.router_process import SECRET, RouterProcess, router_process

pytestmark = pytest.mark.django_db

NEW = NewKey("web-1", "search", requests_per_minute=60, max_priority=2)
WORLD = World(0.0, 0.0, models=(ModelRoute("m", "monolithic"),))


@pytest.fixture
def publisher(valkey: redis.Redis) -> TablePublisher:
    return TablePublisher(valkey, SECRET)


@pytest.fixture
def model() -> models.Model:
    return models.Model.objects.create(name="m", aliases=["alias"], source="org/m", config={}, engine_kind="simulated")


@pytest.fixture
def key_required(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TWINPOOL_REQUIRE_KEY", "true")
    config.cache_clear()
    yield
    config.cache_clear()


def published(valkey: redis.Redis) -> RoutingTable:
    envelope = valkey.get(names.TABLE_KEY)
    assert isinstance(envelope, bytes)
    table: RoutingTable = decode(RoutingTable, unseal(table_key(SECRET), envelope))
    return table


def counts() -> list[int]:
    return [table.objects.count() for table in (models.InferenceKey, models.Operation, models.AuditEntry)]


def refusal(new: NewKey) -> str:
    before = counts()
    with pytest.raises(Refused) as refused:
        add_key(ANN, new)
    assert counts() == before, "a refusal left something behind"
    return str(refused.value)


def bearer(secret: str) -> dict[bytes, bytes]:
    return {b"authorization": f"Bearer {secret}".encode()}


def test_a_new_key_is_stored_as_its_hash_with_operation_and_audit(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    operation, secret = add_key(ANN, NEW, reason="for the web")
    assert secret.startswith("sk-") and len(secret) == 46
    row = models.InferenceKey.objects.get()
    assert (row.name, row.team, row.sha256, row.model_names) == ("web-1", "search", digest(secret), ["*"])
    entry = models.AuditEntry.objects.get()
    assert (entry.verb, entry.subject, entry.actor, entry.reason) == ("add_key", "key:web-1", "ann", "for the web")
    assert entry.operation == operation
    assert entry.after["team"] == "search" and entry.after["requests_per_minute"] == 60
    told = json.dumps([entry.before, entry.after, operation.before, operation.after]) + caplog.text
    assert secret not in told and digest(secret) not in told


def test_keys_are_published_oldest_first_and_each_change_is_a_new_generation(
    publisher: TablePublisher, valkey: redis.Redis
) -> None:
    publisher.publish(WORLD)
    empty = published(valkey)
    assert (empty.keys, empty.require_key) == ((), False)
    _, first = add_key(ANN, NEW)
    _, second = add_key(ANN, replace(NEW, name="a-2", requests_per_minute=None, tokens_per_minute=900))
    publisher.publish(WORLD)
    both = published(valkey)
    assert both.keys == (
        KeyEntry(digest(first), "search", requests_per_minute=60, max_priority=2),
        KeyEntry(digest(second), "search", tokens_per_minute=900, max_priority=2),
    )
    assert both.generation == empty.generation + 1
    publisher.publish(WORLD)
    assert published(valkey) == both, "nothing had changed"
    revoke_key(ANN, "web-1", reason="leaked")
    publisher.publish(WORLD)
    assert [entry.sha256 for entry in published(valkey).keys] == [digest(second)]
    assert published(valkey).generation == both.generation + 1


def test_an_expired_key_is_published_no_more() -> None:
    _, secret = add_key(ANN, replace(NEW, days=7))
    now = timezone.now()
    assert [entry.sha256 for entry in valid_keys(now + timedelta(days=6))] == [digest(secret)]
    assert valid_keys(now + timedelta(days=8)) == ()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": "-x"}, "key name '-x': letters, digits"),
        ({"name": ""}, "key name ''"),
        ({"name": "x" * 64}, "at most 63"),
        ({"team": "a b"}, "team 'a b': letters, digits"),
        ({"team": "a\x00"}, "team"),
        ({"model_names": ("other",)}, "there is no model 'other'; models: alias, m"),
        ({"model_names": ()}, "name at least one"),
        ({"requests_per_minute": 0}, "requests per minute: 1 to"),
        ({"requests_per_minute": -5}, "requests per minute: 1 to"),
        ({"tokens_per_minute": 0}, "tokens per minute: 1 to"),
        ({"tokens_per_minute": 10**30}, "tokens per minute: 1 to"),
        ({"max_priority": -1}, "max priority: 0 to"),
        ({"days": 0}, "days: 1 to"),
        ({"days": 10**9}, "days: 1 to"),
    ],
)
def test_a_key_that_cannot_be_is_refused_with_the_remedy(model: models.Model, change: dict[str, Any], reason: str) -> None:
    assert reason in refusal(replace(NEW, **change))


def test_a_name_is_one_keys_for_good() -> None:
    add_key(ANN, NEW)
    assert "choose another name" in refusal(NEW)
    revoke_key(ANN, "web-1")
    assert "choose another name" in refusal(NEW)
    with pytest.raises(Refused, match="revoked already"):
        revoke_key(ANN, "web-1")
    for unknown in ("web-2", "\udcff", "\x00"):
        with pytest.raises(Refused, match="there is no key"):
            revoke_key(ANN, unknown)


def test_the_database_takes_no_digest_that_routers_would_refuse() -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        models.InferenceKey.objects.create(name="n", team="t", sha256="ABC")


def test_keys_are_made_listed_and_revoked_as_typed(model: models.Model, capsys: pytest.CaptureFixture[str]) -> None:
    call_command("add_key", "web-1", "--team", "search", "--model", "alias", "--tokens-per-minute", "5", "--days", "1")
    secret = json.loads(capsys.readouterr().out)["key"]
    call_command("add_key", "web-2", "--team", "search")
    capsys.readouterr()
    call_command("revoke_key", "web-2", "--reason", "not used")
    capsys.readouterr()
    call_command("list_keys")
    text = capsys.readouterr().out
    first, second = map(json.loads, text.splitlines())
    assert (first["name"], first["state"], first["models"]) == ("web-1", "valid", ["alias"])
    assert (first["tokens_per_minute"], second["name"], second["state"]) == (5, "web-2", "revoked")
    assert secret not in text and digest(secret) not in text
    models.InferenceKey.objects.update(expires_at=timezone.now())
    call_command("list_keys")
    assert json.loads(capsys.readouterr().out.splitlines()[0])["state"] == "expired"
    with pytest.raises(CommandError, match="there is no model 'no'"):
        call_command("add_key", "web-3", "--team", "search", "--model", "no")
    with pytest.raises(CommandError, match="there is no key 'web-9'; keys: web-1"):
        call_command("revoke_key", "web-9")


def test_a_client_elsewhere_is_let_in_by_its_key_and_else_told_the_remedy(
    publisher: TablePublisher, valkey: redis.Redis
) -> None:
    _, secret = add_key(ANN, NEW)
    publisher.publish(WORLD)
    table = published(valkey)
    assert identity.authenticate(table, {}, local=True) is None
    entry = identity.authenticate(table, bearer(secret), local=False)
    assert entry is not None and entry.team == "search"
    for wrong in ({}, bearer("sk-wrong"), bearer(digest(secret))):
        with pytest.raises(ApiError, match=r"manage\.py add_key"):
            identity.authenticate(table, wrong, local=False)


@pytest.mark.usefixtures("key_required")
def test_a_router_process_accepts_a_key_until_it_is_revoked(
    publisher: TablePublisher, valkey: redis.Redis, valkey_url: str, tmp_path: Path
) -> None:
    _, secret = add_key(ANN, NEW)
    with router_process(tmp_path, valkey_url, "--valkey", "--cache", str(tmp_path / "cache" / "table.json")) as router:
        generation = publisher.publish(WORLD).stamp[1]
        until("applied", lambda: router.generation() == generation)
        refused = listed(router)
        assert refused.status_code == 401
        assert "manage.py add_key" in refused.json()["error"]["message"]
        accepted = listed(router, authorization=f"Bearer {secret}")
        assert [row["id"] for row in accepted.json()["data"]] == ["m"]
        revoke_key(ANN, "web-1")
        generation = publisher.publish(WORLD).stamp[1]
        until("applied", lambda: router.generation() == generation)
        assert listed(router, authorization=f"Bearer {secret}").status_code == 401
        assert secret not in router.log()


def listed(router: RouterProcess, **headers: str) -> httpx.Response:
    return httpx.get(router.url + "/v1/models", headers=headers, trust_env=False, timeout=30)
