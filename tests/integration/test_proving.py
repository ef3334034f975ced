"""Whoever has a session, but neither the password nor the phone, makes nothing that outlives it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from controlplane.access.models import SecondFactor
from controlplane.api.models import ApiToken
from controlplane.fleet import models
from tests.integration.access_kit import PASSWORD, code_of, long_ago, person, quick_passwords, sign_in, with_factor

__all__ = ["quick_passwords"]  # a fixture
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_passwords")]
TOKEN = {"name": "ci", "days": "7", "scopes": ["read", "write"]}
KEY = {"name": "web-1", "team": "search", "days": "30", "reason": "new"}
FORMS: dict[str, dict[str, Any]] = {
    "/account/tokens": TOKEN,
    "/account/factor": {},
    "/keys/add": KEY,
    "/keys/none/rotate": {"overlap_hours": "1"},
    "/nodes/tokens/add": {"node": "n9", "hours": "1"},
}
API = {
    "tokens": {"name": "ci", "scopes": ["read"]},
    "keys": {"name": "web-1", "team": "search"},
    "keys/none/rotate": {},
    "join-tokens": {"node": "n9"},
    "channels": {"name": "pager", "kind": "webhook", "target": "https://93.184.215.14/in"},
}


def unthrottled() -> None:
    SecondFactor.objects.update(throttling_failure_count=0, throttling_failure_timestamp=None)


def made() -> list[int]:
    return [rows.objects.count() for rows in (ApiToken, models.InferenceKey, models.JoinToken, SecondFactor)]


@pytest.mark.parametrize("address", FORMS)
def test_a_form_that_makes_a_secret_is_not_carried_out_for_a_session_alone(address: str) -> None:
    person("ada", "admin")
    thief = long_ago(sign_in("ada")[0])
    for proof in ({}, {"proof_password": "wrong"}, {"proof_code": "123456"}, {"proof_password": ""}, {"code": "123456"}):
        answer = thief.post(address, FORMS[address] | proof)
        assert answer.status_code == 403 and b"Is it you?" in answer.content, proof
    assert made() == [0, 0, 0, 0]


def test_what_was_asked_is_done_with_the_password_and_the_session_goes_on_under_another_key() -> None:
    person("ada", "admin")
    browser = long_ago(sign_in("ada")[0])
    before = browser.session.session_key
    asked = browser.post("/account/tokens", TOKEN).content.decode()
    kept = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', asked)
    sent = [each for each in kept if each[0] not in ("csrfmiddlewaretoken", "next")]
    assert sent == [("name", "ci"), ("days", "7"), ("scopes", "read"), ("scopes", "write")]
    done = browser.post("/account/tokens", TOKEN | {"proof_password": PASSWORD})
    assert done.status_code == 200 and ApiToken.objects.get().scopes == ["read", "write"]
    assert browser.session.session_key != before
    thief = Client()
    thief.cookies["sessionid"] = before
    assert thief.get("/account").status_code == 302, "the stolen key is nobody's now"
    assert browser.post("/account/tokens", TOKEN | {"name": "other"}).status_code == 200, "and is not asked again so soon"


def test_who_has_a_second_factor_shows_both(settings: Any) -> None:
    person("ada", "admin")
    browser, secret, _ = with_factor("ada")
    long_ago(browser)
    code = code_of(secret, 1)
    for proof in ({"proof_password": PASSWORD}, {"proof_code": code}, {"proof_password": "wrong", "proof_code": code}):
        assert browser.post("/account/tokens", TOKEN | proof).status_code in (400, 403)
        unthrottled()
    assert not ApiToken.objects.exists()
    both = {"proof_password": PASSWORD, "proof_code": code}
    assert browser.post("/account/tokens", TOKEN | both).status_code == 200, "a wrong password used no code up"


@pytest.mark.parametrize("has_password", [True, False])
def test_a_code_in_a_form_that_looks_at_none_proves_nothing(has_password: bool) -> None:
    person("ada", "admin")
    browser, _, _ = with_factor("ada")
    long_ago(browser)
    if not has_password:  # as of who comes in by a provider; the session holds a hash of it
        user = User.objects.get(username="ada")
        user.set_unusable_password()
        user.save()
        session = browser.session
        session["_auth_user_hash"] = user.get_session_auth_hash()
        session.save()
    answer = browser.post("/account/tokens", TOKEN | {"code": "123456", "proof_password": PASSWORD})
    assert answer.status_code in (400, 403)
    assert not ApiToken.objects.exists()


@pytest.mark.parametrize("address", ["/account/factor/codes", "/account/factor/remove"])
def test_a_stolen_session_and_a_stolen_phone_do_not_change_the_second_factor(address: str) -> None:
    person("vic")
    browser, secret, _ = with_factor("vic")
    long_ago(browser)
    typed = {"code": code_of(secret, 1)}
    assert browser.post(address, typed).status_code == 403
    assert SecondFactor.objects.exists()
    assert browser.post(address, typed | {"proof_password": PASSWORD}).status_code == 200


def test_who_comes_in_by_a_provider_alone_signs_in_again() -> None:
    browser = Client()
    browser.force_login(User.objects.create_user("olga"), "django.contrib.auth.backends.ModelBackend")
    for proof in ({}, {"proof_password": ""}):
        answer = browser.post("/account/tokens", TOKEN | proof)
        assert answer.status_code == 403 and b"Sign out and in again" in answer.content
    assert not ApiToken.objects.exists()


@pytest.mark.parametrize("address", API)
def test_the_api_asks_the_same_of_sessions(address: str) -> None:
    person("ada", "admin")
    fresh = sign_in("ada")[0]
    stale = long_ago(sign_in("ada")[0])
    path = f"/api/v1/{address}"
    answer = stale.post(path, API[address], content_type="application/json")
    assert answer.status_code == 403 and "sign in again" in answer.json()["detail"]
    assert stale.get("/api/v1/tokens").status_code == stale.get("/api/v1/keys").status_code == 200
    assert fresh.post(path, API[address], content_type="application/json").status_code in (202, 404)


def test_a_new_password_and_signing_out_elsewhere_end_what_others_hold() -> None:
    person("vic")
    browser, thief = sign_in("vic")[0], Client()
    other = sign_in("vic")[0]
    thief.cookies["sessionid"] = browser.cookies["sessionid"].value
    assert thief.get("/account").status_code == 200
    new = "another horse battery staple"
    sent = {"old_password": PASSWORD, "new_password1": new, "new_password2": new}
    assert browser.post("/account/password", sent).status_code == 200
    assert browser.get("/account").status_code == 200
    assert thief.get("/account").status_code == other.get("/account").status_code == 302
    again = sign_in("vic", new)[0]
    assert browser.post("/account/sessions").status_code == 200
    assert again.get("/account").status_code == again.get("/account").status_code == 302
    assert browser.get("/account").status_code == 200


@pytest.mark.parametrize("address", [*FORMS, "/grants/give", "/grants/take"])
def test_who_comes_to_a_forms_address_without_a_form_sees_its_page(address: str) -> None:
    """After signing in, or by the language links of the page that asks."""
    person("ada", "admin")
    assert Client().get(address).headers["location"] == f"/login?next={address}"
    browser = sign_in("ada")[0]
    answer = browser.post("/language", {"language": "vi", "next": address}, follow=True)
    assert answer.status_code == 200 and b'<html lang="vi"' in answer.content
    assert made() == [0, 0, 0, 0]
