"""The second factor: who is asked for it, what is accepted and how often, and what somebody without it can reach."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from controlplane.access import factors, pending, sessions
from controlplane.access.models import RecoveryCode, SecondFactor
from controlplane.access.tokens import add_token
from controlplane.control.actor import Actor
from controlplane.core.secretwords import hide
from controlplane.fleet.models import AuditEntry
from tests.integration.access_kit import PASSWORD, code_of, person, quick_passwords, secret_on, sign_in, with_factor

__all__ = ["quick_passwords"]  # a fixture
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_passwords")]


@pytest.fixture
def required(settings: Any) -> None:
    settings.SECOND_FACTOR_FOR_ADMINS = True


def unthrottled() -> None:
    """As if the wait after wrong codes had passed."""
    SecondFactor.objects.update(throttling_failure_timestamp=timezone.now() - timedelta(days=1))


def test_an_admin_sets_one_up_before_anything_else(required: None) -> None:
    person("ada", "admin")
    client, answer = sign_in("ada", next="/nodes")
    assert answer.headers["location"] == "/login/code"
    assert client.get("/").headers["location"] == "/login?next=/"
    assert client.get("/api/v1/models").status_code == 401
    assert client.post("/rebalance", {}, content_type="application/json").status_code in (401, 405)
    page = client.get("/login/code")
    assert page.status_code == 200 and b"<svg" in page.content and b" style=" not in page.content
    secret = secret_on(page)
    assert client.post("/login/code", {"code": "000000"}).status_code == 400
    done = client.post("/login/code", {"code": code_of(secret)})
    assert done.status_code == 200 and b'href="/nodes"' in done.content and secret.encode() not in done.content
    assert client.get("/nodes").status_code == 200
    assert client.get("/api/v1/models").status_code == 200
    row = SecondFactor.objects.get()
    assert secret.replace(" ", "") not in row.sealed_key and len(RecoveryCode.objects.all()) == factors.RECOVERY_CODES


def test_others_come_in_without_and_may_have_one() -> None:
    person("vic")
    _, answer = sign_in("vic")
    assert answer.headers["location"] == "/"
    _, secret, codes = with_factor("vic")
    assert len(codes) == len(set(codes)) == factors.RECOVERY_CODES
    client, answer = sign_in("vic")
    assert answer.headers["location"] == "/login/code"
    assert client.get("/").status_code == 302, "half in is not in"
    assert client.post("/login/code", {"code": code_of(secret, 1)}).headers["location"] == "/"
    assert client.get("/").status_code == 200


def test_a_code_is_good_once(required: None) -> None:
    person("ada", "admin")
    _, secret, _ = with_factor("ada")
    client, _ = sign_in("ada")
    answer = client.post("/login/code", {"code": code_of(secret)})
    assert answer.status_code == 400 and b"was used already" in answer.content, "the code that set it up"
    unthrottled()
    assert client.post("/login/code", {"code": code_of(secret, 1)}).status_code == 302
    again, _ = sign_in("ada")
    unthrottled()
    assert again.post("/login/code", {"code": code_of(secret, 1)}).status_code == 400


@pytest.mark.parametrize(
    "typed", ["", "12345", "1234567", "abcdef", "\x00", "１２３４５６", "0" * 5000, "aaaa-aaaa-aaaa-aaaa"]
)
def test_what_is_no_code_is_refused(typed: str) -> None:
    user = person("vic")
    with_factor("vic")
    assert not factors.check(user, typed).ok


def test_a_recovery_code_stands_in_once_and_new_ones_end_the_old() -> None:
    user = person("vic")
    browser, secret, codes = with_factor("vic")
    client, _ = sign_in("vic")
    assert client.post("/login/code", {"code": codes[0].upper().replace("-", " ")}).status_code == 302
    again, _ = sign_in("vic")
    assert again.post("/login/code", {"code": codes[0]}).status_code == 400
    assert factors.codes_left(user) == factors.RECOVERY_CODES - 1
    unthrottled()
    renewed = browser.post("/account/factor/codes", {"code": code_of(secret, 1)})
    assert renewed.status_code == 200 and codes[1].encode() not in renewed.content
    assert not factors.check(user, codes[1]).ok
    other = person("vera")
    with_factor("vera")
    assert not factors.check(other, codes[2]).ok, "another's codes are nobody's"


def test_wrong_codes_make_everybody_wait_longer_and_an_admin_unlocks() -> None:
    user = person("vic")
    _, secret, _ = with_factor("vic")
    client, _ = sign_in("vic")
    statuses = [client.post("/login/code", {"code": "000000"}).status_code for _ in range(3)]
    assert statuses[0] == 400 and 429 in statuses
    SecondFactor.objects.update(throttling_failure_count=12, throttling_failure_timestamp=timezone.now())
    right = client.post("/login/code", {"code": code_of(secret, 1)})
    assert right.status_code == 429 and int(right.headers["Retry-After"]) > 1000
    call_command("account", "unlock", "vic")
    assert factors.check(user, code_of(secret, 1)).ok


def test_a_half_way_visitor_is_forgotten_in_time_and_with_a_new_password(required: None) -> None:
    user = person("ada", "admin")
    client, _ = sign_in("ada")
    user.set_password("another horse battery staple")
    user.save()
    assert client.get("/login/code").headers["location"] == "/login"
    late, _ = sign_in("ada", "another horse battery staple")
    session = late.session
    session[pending.KEY] |= {"at": session[pending.KEY]["at"] - pending.LASTS_S - 1}
    session.save()
    assert late.get("/login/code").headers["location"] == "/login"
    assert Client().get("/login/code").headers["location"] == "/login"


def test_a_session_of_before_is_nobodys_once_its_user_needs_more(settings: Any) -> None:
    user = person("ada")
    client, _ = sign_in("ada")
    settings.SECOND_FACTOR_FOR_ADMINS = True
    assert client.get("/").status_code == 200
    user.groups.add(Group.objects.get_or_create(name="admin")[0])
    assert client.get("/").headers["location"] == "/login?next=/"
    assert client.get("/api/v1/models").status_code == 401
    assert not sessions.user_of(sessions.stored(client.session.session_key)).is_authenticated, "what sockets ask"


def test_a_token_needs_no_second_factor(required: None) -> None:
    person("ada", "admin")
    _, token = add_token(Actor("root", "admin"), "ada", "pipeline", days=1)
    assert Client().get("/api/v1/models", headers={"authorization": f"Bearer {token}"}).status_code == 200


def test_an_admin_resets_it_by_command_and_all_is_in_the_audit(required: None, capsys: Any) -> None:
    person("ada", "admin")
    client, secret, _ = with_factor("ada")
    assert client.get("/").status_code == 200
    call_command("account", "reset-second-factor", "ada", "--reason", "phone lost")
    assert '"sessions_ended": 1' in capsys.readouterr().out
    assert client.get("/").status_code == 302
    half, answer = sign_in("ada")
    assert answer.headers["location"] == "/login/code" and secret_on(half.get("/login/code")) != secret
    verbs = set(AuditEntry.objects.filter(subject="user:ada").values_list("verb", flat=True))
    assert {"set_up_second_factor", "remove_second_factor", "login"} <= verbs


def test_it_can_be_removed_where_it_is_not_required(settings: Any) -> None:
    person("ada", "admin")
    client, secret, _ = with_factor("ada")
    settings.SECOND_FACTOR_FOR_ADMINS = True
    assert client.post("/account/factor/remove", {"code": code_of(secret, 1)}).status_code == 403
    settings.SECOND_FACTOR_FOR_ADMINS = False
    assert client.post("/account/factor/remove", {"code": "000000"}).status_code == 400
    unthrottled()
    assert client.post("/account/factor/remove", {"code": code_of(secret, 1)}).status_code == 200
    assert not SecondFactor.objects.exists() and not RecoveryCode.objects.exists()


def test_another_django_key_makes_it_unreadable_and_says_so(settings: Any) -> None:
    user = person("vic")
    _, secret, _ = with_factor("vic")
    old, settings.SECRET_KEY = settings.SECRET_KEY, "x" * 50
    assert factors.check(user, code_of(secret, 1)).broken
    settings.SECRET_KEY_FALLBACKS = [old]
    assert factors.check(user, code_of(secret, 1)).ok


def test_nothing_secret_is_logged_or_in_the_audit(required: None, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    person("ada", "admin")
    _, secret, codes = with_factor("ada")
    client, _ = sign_in("ada")
    used = code_of(secret, 1)
    client.post("/login/code", {"code": "424242"})
    unthrottled()
    client.post("/login/code", {"code": used})
    client.post("/account/password", {"old_password": PASSWORD, "new_password1": "a b", "new_password2": "a b"})
    told = caplog.text + "".join(f"{e.subject}{e.reason}{e.before}{e.after}" for e in AuditEntry.objects.all())
    assert hide(f"kept {codes[0]} at home") == "kept [secret] at home"
    for hidden in (secret, secret.replace(" ", ""), *codes, used, "424242", PASSWORD):
        assert hidden not in told
