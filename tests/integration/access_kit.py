"""People of the console for tests of how they come in: codes of their apps, and browsers with their cookies."""

from __future__ import annotations

import base64
import re
import time
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django_otp.oath import hotp

from controlplane.access import sessions

PASSWORD = "correct horse battery staple"


@pytest.fixture
def quick_passwords(settings: Any) -> None:
    """Hashes that take no time: what they withstand is not what is tested."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


def person(name: str, role: str = "viewer") -> User:
    user = User.objects.create_user(name, password=PASSWORD)
    user.groups.add(Group.objects.get_or_create(name=role)[0])
    return user


def code_of(secret: str, steps: int = 0) -> str:
    """What an app with this secret (as the page shows it) shows now, or so many half minutes later."""
    key = base64.b32decode(secret.replace(" ", ""))
    return f"{hotp(key, int(time.time()) // 30 + steps):06d}"


def secret_on(page: Any) -> str:
    found = re.search(r'<output class="secret mono">([A-Z2-7 ]+)</output>', page.content.decode())
    assert found, page.content.decode()
    return found[1]


def codes_on(page: Any) -> list[str]:
    return re.findall(r"<li>(rc(?:-[a-z2-7]{4}){4})</li>", page.content.decode())


def sign_in(name: str, password: str = PASSWORD, **more: Any) -> tuple[Client, Any]:
    """A browser that has sent the form of the login page, and the answer."""
    client = Client()
    return client, client.post("/login", {"username": name, "password": password, **more})


def with_factor(name: str) -> tuple[Client, str, list[str]]:
    """A person who has set up a second factor: their browser, the secret and the recovery codes."""
    client, answer = sign_in(name)
    if answer.headers["location"] == "/login/code":
        secret = secret_on(client.get("/login/code"))
        answer = client.post("/login/code", {"code": code_of(secret)})
    else:
        secret = secret_on(client.post("/account/factor"))
        answer = client.post("/account/factor", {"code": code_of(secret)})
    assert answer.status_code == 200, answer.content
    return client, secret, codes_on(answer)


def proves(client: Client) -> Client:
    """As if whoever is signed in with this browser had just shown who they are."""
    session = client.session
    session[sessions.PROVED] = int(time.time())
    session.save()
    return client


def long_ago(client: Client) -> Client:
    """As if they had done so too long ago for making secrets."""
    session = client.session
    session[sessions.PROVED] -= sessions.PROVED_FOR_S + 1
    session.save()
    return client
