"""The page of join tokens: plain forms, and the token in one answer alone."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from controlplane.common.jointoken import JoinToken, read_token
from controlplane.fleet.models import JoinToken as Row
from tests.integration.access_kit import proves

pytestmark = pytest.mark.django_db(transaction=True)
PAGE = "/nodes/tokens"


def signed_in(role: str) -> Client:
    user = User.objects.create_user(role)
    user.groups.add(Group.objects.get_or_create(name=role)[0])
    client = Client()
    client.force_login(user, "django.contrib.auth.backends.ModelBackend")
    return proves(client)


def test_an_admin_makes_a_token_that_is_shown_once_and_revokes_it() -> None:
    admin = signed_in("admin")
    assert "No tokens" in admin.get(PAGE).content.decode()
    wanted = {"node": "gpu-1", "hours": "2", "address": "10.0.0.1:6379", "reason": "new"}
    made = admin.post(f"{PAGE}/add", wanted).content.decode()
    (text,) = re.findall(r'<output class="secret mono">([^<]+)</output>', made)
    token = read_token(text)
    assert isinstance(token, JoinToken) and token.valkey_url == "redis://10.0.0.1:6379/0"
    shown = admin.get(PAGE).content.decode()
    assert "gpu-1" in shown and token.secret not in shown and text not in shown
    assert "is none: write HOST or HOST:PORT" in admin.post(f"{PAGE}/add", wanted | {"address": "a b"}).content.decode()
    assert admin.post(f"{PAGE}/add", wanted | {"hours": "1e9"}).status_code == 422
    assert admin.post(f"{PAGE}/{token.id}/revoke").status_code == 302
    assert Row.objects.get().revoked_at is not None
    assert admin.post(f"{PAGE}/99/revoke").status_code == 404


def test_others_see_tokens_and_make_none() -> None:
    viewer = signed_in("viewer")
    assert "Needs the role admin" in viewer.get(PAGE).content.decode()
    assert viewer.post(f"{PAGE}/add", {"node": "a", "hours": "1"}).status_code == 403
    assert not Row.objects.exists()
    assert Client().get(PAGE).status_code == 302
