"""Signing in with an OpenID provider, a process with keys of its own: who is believed, and what they may do here."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client
from pydantic import ValidationError

from controlplane.access import oidc
from controlplane.access.models import Identity
from controlplane.config import Config, config
from controlplane.control.actor import Actor
from controlplane.fleet.models import AuditEntry, Team
from tests.integration.access_kit import code_of, secret_on
from tests.openid_provider import CLIENT, SECRET

pytestmark = pytest.mark.django_db
ANNA = {"sub": "42", "preferred_username": "anna", "groups": ["platform", "ml-search", "cooks"]}


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    command = [sys.executable, str(Path(__file__).parents[1] / "openid_provider.py")]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        yield f"http://127.0.0.1:{port}"
        process.kill()


@pytest.fixture(autouse=True)
def provided(issuer: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    secret = tmp_path / "client"
    secret.write_text(f"{SECRET}\n")
    values = {
        "ISSUER": issuer,
        "CLIENT_ID": CLIENT,
        "CLIENT_SECRET_FILE": str(secret),
        "ROLES": "platform=operator,bosses=admin",
        "TEAMS": "ml-search=search,ml-ads=ads",
        "NAME": "Example Inc.",
    }
    for name, value in values.items():
        monkeypatch.setenv(f"TWINPOOL_OIDC_{name}", value)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    config.cache_clear()
    oidc.forget()
    yield
    config.cache_clear()
    oidc.forget()


def came_back(
    issuer: str, claims: dict[str, Any], fault: str = "", client: Client | None = None, **form: str
) -> tuple[Client, Any]:
    """A browser that went to the provider and back, and the answer to that."""
    httpx.post(f"{issuer}/next", json={"claims": claims, "fault": fault}, trust_env=False)
    client = Client()
    away = client.post("/login/provider", form)
    assert away.status_code == 302 and away.headers["location"].startswith(f"{issuer}/authorize?"), away.content
    back = httpx.get(away.headers["location"], trust_env=False)
    assert back.status_code == 302, back.text
    url = urlsplit(back.headers["location"])
    return client, client.get(f"{url.path}?{url.query}")


def test_somebody_comes_in_with_role_and_teams_of_their_groups(issuer: str) -> None:
    Team.objects.create(name="search")
    assert b"Example Inc." in Client().get("/login").content
    client, answer = came_back(issuer, ANNA, next="/nodes")
    assert (answer.status_code, answer.headers["location"]) == (302, "/nodes")
    user = User.objects.get()
    assert Actor.of_user(user) == Actor("anna", "operator", frozenset({"search"})) and not user.has_usable_password()
    assert client.get("/nodes").status_code == 200
    came_back(issuer, {**ANNA, "preferred_username": "renamed", "groups": ["bosses"], "amr": ["pwd", "otp"]})
    assert Actor.of_user(User.objects.get()) == Actor("anna", "admin"), "the same person, with what their groups give now"
    verbs = list(AuditEntry.objects.filter(subject="user:anna").order_by("pk").values_list("verb", flat=True))
    assert verbs == ["add_account", "login", "set_account", "login"]


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("nonce", "token"),
        ("no_nonce", "token"),
        ("audience", "token"),
        ("several_audiences", "token"),
        ("issuer", "token"),
        ("expired", "token"),
        ("signature", "token"),
        ("no_signature", "token"),
        ("secrets_signature", "token"),
        ("no_token", "token"),
        ("state", "state"),
        ("denied", "refused"),
        ("mixed_up", "issuer"),
    ],
)
def test_what_is_not_the_providers_word_for_us_is_not_believed(issuer: str, fault: str, why: str) -> None:
    client, answer = came_back(issuer, ANNA, fault)
    assert answer.status_code == 403 and not User.objects.exists()
    assert client.get("/").status_code == 302
    entry = AuditEntry.objects.get(verb="login_failed")
    assert entry.after["why"] == why and entry.subject == "identity:refused"


def test_a_new_key_of_the_provider_is_fetched(issuer: str) -> None:
    assert came_back(issuer, ANNA)[1].status_code == 302
    assert came_back(issuer, ANNA, "new_key")[1].status_code == 302


def test_an_answer_is_good_in_the_browser_that_asked_and_once(issuer: str) -> None:
    httpx.post(f"{issuer}/next", json={"claims": ANNA, "fault": ""}, trust_env=False)
    client = Client()
    away = client.post("/login/provider").headers["location"]
    assert {"code_challenge", "nonce", "state"} <= parse_qs(urlsplit(away).query).keys()
    url = urlsplit(httpx.get(away, trust_env=False).headers["location"])
    assert Client().get(f"{url.path}?{url.query}").status_code == 403, "somebody else's browser"
    assert client.get(f"{url.path}?{url.query}").status_code == 302
    assert client.get(f"{url.path}?{url.query}").status_code == 403, "again"
    assert Client().get("/login/provider").status_code == 405, "no other site sends people there"


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"groups": ["cooks"]}, b"None of your groups"),
        ({"groups": "platform"}, b"None of your groups"),
        ({"preferred_username": "a b\x00"}, b"no name that can be used"),
        ({"preferred_username": 7}, b"no name that can be used"),
        ({"sub": ""}, b"not believed"),
    ],
)
def test_who_has_no_role_or_name_here_stays_outside(issuer: str, claims: dict[str, Any], words: bytes) -> None:
    _, answer = came_back(issuer, ANNA | claims)
    assert answer.status_code == 403 and words in answer.content and not User.objects.exists()


def test_a_name_alone_opens_nobodys_account(issuer: str) -> None:
    local = User.objects.create_superuser("Anna")
    _, answer = came_back(issuer, ANNA)
    assert answer.status_code == 403 and b"another account of your name" in answer.content
    call_command("account", "link", "Anna", "42")
    User.objects.create_superuser("root")
    _, answer = came_back(issuer, ANNA)
    assert answer.status_code == 302 and Identity.objects.get().user == local
    assert Actor.of_user(User.objects.get(username="Anna")).role == "operator"
    User.objects.update(is_active=False)
    assert b"switched off" in came_back(issuer, ANNA)[1].content


def test_an_admin_whose_provider_asked_for_a_password_alone_is_asked_for_a_code(issuer: str, settings: Any) -> None:
    settings.SECOND_FACTOR_FOR_ADMINS = True
    boss = {**ANNA, "groups": ["bosses"]}
    client, answer = came_back(issuer, boss)
    assert answer.headers["location"] == "/login/code" and client.get("/").status_code == 302
    code = code_of(secret_on(client.get("/login/code")))
    assert client.post("/login/code", {"code": code}).status_code == 200 and client.get("/").status_code == 200
    client, answer = came_back(issuer, {**boss, "amr": ["mfa"]})
    assert answer.headers["location"] == "/" and client.get("/").status_code == 200


def test_a_provider_that_is_away_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWINPOOL_OIDC_ISSUER", "http://127.0.0.1:9")
    config.cache_clear()
    oidc.forget()
    answer = Client().post("/login/provider")
    assert answer.status_code == 503 and b"does not answer" in answer.content


def test_neither_codes_nor_tokens_are_logged(issuer: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    came_back(issuer, ANNA)
    told = caplog.text + "".join(f"{e.before}{e.after}" for e in AuditEntry.objects.all())
    assert SECRET not in told and "eyJ" not in told and "code=" not in told


@pytest.mark.parametrize("wrong", ["http://id.example", "https://", "https://a@id.example", "https://id.example?x=1", "id"])
def test_an_issuer_that_cannot_be_one_is_refused_at_start(wrong: str) -> None:
    with pytest.raises(ValidationError):
        Config(oidc_issuer=wrong)
