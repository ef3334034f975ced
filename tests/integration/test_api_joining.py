"""Join tokens over the REST API."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from django.test import Client

from controlplane.access.tokens import add_token
from controlplane.common.jointoken import JoinToken, read_token
from controlplane.fleet import models
from tests.integration.api_kit import ROOT, token_of

pytestmark = pytest.mark.django_db(transaction=True)


def send(token: str, method: str, path: str, body: dict[str, Any] | None = None, key: str = "") -> tuple[int, Any]:
    """Status and document of an answer."""
    headers = {"authorization": f"Bearer {token}"} | ({"idempotency-key": key} if key else {})
    options: dict[str, Any] = {"data": json.dumps(body), "content_type": "application/json"} if body else {}
    answer = Client().generic(method, f"/api/v1/{path}", headers=headers, **options)
    return answer.status_code, json.loads(answer.content)


def refused(answer: tuple[int, Any]) -> tuple[int, str]:
    return answer[0], answer[1]["kind"]


def test_an_admin_makes_lists_and_revokes_tokens_and_nobody_else_does() -> None:
    wanted = {"node": "gpu-1", "hours": 2, "address": "valkey.internal:6379", "reason": "new machine"}
    operator, admin = (partial(send, token_of(role)) for role in ("operator", "admin"))
    assert refused(operator("POST", "join-tokens", wanted)) == (403, "forbidden")
    assert refused(admin("POST", "join-tokens", wanted | {"node": "../x"})) == (422, "invalid")
    assert admin("POST", "join-tokens", wanted | {"address": "a b"})[0] == 400
    assert admin("POST", "join-tokens?dry_run=true", wanted)[0] == 200
    writer = partial(send, add_token(ROOT, "admin", "writer", days=None, scopes=("read", "write"))[1])
    assert writer("POST", "join-tokens", wanted)[0] == 403, "a token that is not for secrets made one"
    assert not models.JoinToken.objects.exists()

    status, made = admin("POST", "join-tokens", wanted, "once")
    assert status == 202, made
    token = read_token(made["join_token"])
    assert isinstance(token, JoinToken) and token.valkey_url == "redis://valkey.internal:6379/0"
    row = models.JoinToken.objects.get()
    assert (token.id, token.node, row.created_by) == (row.pk, "gpu-1", "admin")
    assert admin("POST", "join-tokens", wanted, "once")[1] == made, "another token was made"
    assert models.AuditEntry.objects.filter(verb="secret_shown", subject="node:gpu-1").exists()

    listed = operator("GET", "join-tokens?node=gpu-1")[1]
    assert token.secret not in str(listed)
    assert [(each["token"], each["state"]) for each in listed["items"]] == [(row.pk, "valid")]
    assert refused(operator("DELETE", f"join-tokens/{row.pk}")) == (403, "forbidden")
    assert admin("DELETE", f"join-tokens/{row.pk}")[0] == 202
    assert operator("GET", f"join-tokens/{row.pk}")[1]["state"] == "revoked"
    assert admin("POST", "join-tokens", wanted, "once")[1]["join_token"] == "", "a dead token was told"
    assert refused(admin("DELETE", f"join-tokens/{row.pk}")) == (422, "invalid")
    assert refused(admin("DELETE", "join-tokens/99")) == (404, "not_found")
