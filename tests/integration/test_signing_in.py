"""Passwords, sessions and accounts: how people come in, what ends that, and what is told to whom."""

from __future__ import annotations

import io
import json
import time
from datetime import timedelta
from typing import Any

import pytest
from axes.models import AccessAttempt
from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.contrib.sessions.models import Session
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client
from django.utils import timezone

from controlplane.access import sessions
from controlplane.config import Config
from controlplane.fleet.models import AuditEntry, Team
from tests.integration.access_kit import PASSWORD, person, quick_passwords, sign_in

__all__ = ["quick_passwords"]  # a fixture
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_passwords")]
NEW = "nineteen purple lanterns"


def test_too_many_wrong_passwords_lock_name_and_address_alike_for_users_and_strangers(settings: Any) -> None:
    person("vic")
    answers: dict[str, list[Any]] = {}
    for name in ("vic", "nobody"):
        answers[name] = [sign_in(name, "wrong")[1] for _ in range(settings.AXES_FAILURE_LIMIT + 1)]
    for known, unknown in zip(answers["vic"], answers["nobody"], strict=True):
        assert known.status_code == unknown.status_code
        assert known.headers.get("Retry-After") == unknown.headers.get("Retry-After")
        assert known.content.count(b"do not match") == unknown.content.count(b"do not match")
    last = answers["vic"][-1]
    assert last.status_code == 429 and last.headers["Retry-After"] == "900" and b"15 minutes" in last.content
    assert sign_in("vic")[1].status_code == 429, "the right one too"
    call_command("account", "unlock", "vic", "--reason", "was me")
    assert sign_in("vic")[1].status_code == 302
    assert AuditEntry.objects.filter(verb="unlock_account", subject="user:vic", reason="was me").exists()


def test_an_account_that_is_switched_off_looks_like_a_wrong_password() -> None:
    User.objects.filter(pk=person("vic").pk).update(is_active=False)
    off, wrong = sign_in("vic")[1], sign_in("nobody")[1]
    assert off.status_code == wrong.status_code == 200 and b"do not match" in off.content
    assert b"switched off" not in off.content


def test_signing_in_starts_a_new_session_key() -> None:
    person("vic")
    client = Client()
    client.get("/login")
    session = client.session
    session["planted"] = "x"
    session.save()
    client.cookies["sessionid"] = planted = session.session_key
    client.post("/login", {"username": "vic", "password": PASSWORD})
    assert client.session.session_key != planted
    attacker = Client()
    attacker.cookies["sessionid"] = planted
    assert attacker.get("/").status_code == 302


@pytest.mark.parametrize(
    "wanted",
    ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", "http:///evil.example", "\x00//e"],
)
def test_nobody_is_sent_to_another_site(wanted: str) -> None:
    person("vic")
    for address in ("/login", f"/login?next={wanted}"):
        answer = Client().post(address, {"username": "vic", "password": PASSWORD, "next": wanted})
        assert answer.status_code == 302 and answer.headers["location"] in ("/",)


def test_a_session_ends_when_idle_and_in_any_case_after_its_hours(settings: Any) -> None:
    person("vic")
    client, _ = sign_in("vic")
    assert 0 < client.session.get_expiry_age() <= settings.SESSION_IDLE_S
    session = client.session
    session[sessions.SEEN] -= 3600
    session.save()
    client.get("/", headers={"sec-fetch-mode": "cors"})
    assert client.session[sessions.SEEN] < time.time() - 3000, "what a page fetches by itself is nobody's doing"
    client.get("/", headers={"sec-fetch-mode": "navigate"})
    assert client.session[sessions.SEEN] > time.time() - 60
    session = client.session
    session[sessions.STARTED] -= settings.SESSION_ABSOLUTE_S - 100
    session[sessions.SEEN] -= 3600
    session.save()
    client.get("/")
    assert client.session.get_expiry_age() <= 100, "the end stays where it was"
    session = client.session
    session[sessions.STARTED] -= 200
    session.save()
    assert client.get("/").headers["location"] == "/login?next=/"
    assert not sessions.user_of(sessions.stored(session.session_key)).is_authenticated


def test_sessions_that_are_over_are_cleared_away_with_the_next_sign_in() -> None:
    person("vic")
    sign_in("vic")
    Session.objects.update(expire_date=timezone.now() - timedelta(seconds=1))
    new, _ = sign_in("vic")
    assert [row.session_key for row in Session.objects.all()] == [new.session.session_key]


def test_a_new_password_of_ones_own_ends_the_other_sessions() -> None:
    person("vic")
    (here, _), (there, _) = sign_in("vic"), sign_in("vic")
    wrong = here.post("/account/password", {"old_password": "no", "new_password1": NEW, "new_password2": NEW})
    assert wrong.status_code == 400 and b"another one" in wrong.content
    weak = here.post("/account/password", {"old_password": PASSWORD, "new_password1": "short", "new_password2": "short"})
    assert weak.status_code == 400 and b"at least 12" in weak.content
    unequal = here.post("/account/password", {"old_password": PASSWORD, "new_password1": NEW, "new_password2": NEW + "x"})
    assert unequal.status_code == 400
    done = here.post("/account/password", {"old_password": PASSWORD, "new_password1": NEW, "new_password2": NEW})
    assert done.status_code == 200 and NEW.encode() not in done.content
    assert here.get("/").status_code == 200 and there.get("/").status_code == 302
    assert sign_in("vic", NEW)[1].status_code == 302
    assert AuditEntry.objects.filter(verb="change_password", subject="user:vic").count() == 1


def test_guessing_the_present_password_on_the_account_page_locks_too(settings: Any) -> None:
    person("vic")
    client, _ = sign_in("vic")
    form = {"old_password": "no", "new_password1": NEW, "new_password2": NEW}
    statuses = [client.post("/account/password", form).status_code for _ in range(settings.AXES_FAILURE_LIMIT + 1)]
    assert statuses[0] == 400 and statuses[-1] == 429
    assert AccessAttempt.objects.get().failures_since_start >= settings.AXES_FAILURE_LIMIT


def test_signing_out_everywhere_else_leaves_this_one() -> None:
    person("vic")
    (here, _), (there, _) = sign_in("vic"), sign_in("vic")
    other, _ = sign_in(person("vera").username)
    assert b"ended: 1" in here.post("/account/sessions").content
    assert (here.get("/").status_code, there.get("/").status_code, other.get("/").status_code) == (200, 302, 200)


@pytest.mark.parametrize(
    "weak",
    ["password1234", "P@ssw0rd2026!", "qwertyuiop123", "letmein!letmein!", "aaaaaaaaaaaaaa", "123456789012", "abcabcabcabc"],
)
def test_a_common_password_in_a_disguise_is_refused(weak: str) -> None:
    with pytest.raises(ValidationError):
        validate_password(weak)


@pytest.mark.parametrize("strong", [PASSWORD, NEW, "Tr0ub4dor&3-again", "kq9vZ2mPx71L", "tangerine-orbit-42-flute"])
def test_others_are_not(strong: str) -> None:
    validate_password(strong)


def run(*words: str) -> Any:
    out = io.StringIO()
    call_command("account", *words, stdout=out)
    return json.loads(out.getvalue().splitlines()[0])


def test_accounts_are_made_and_changed_by_command(monkeypatch: pytest.MonkeyPatch) -> None:
    Team.objects.create(name="search")
    made = run("add", "olga", "--role", "owner", "--team", "search")
    assert sign_in("olga", made["password"])[1].status_code == 302
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{NEW}\n"))
    assert "password" not in run("password", "olga", "--password-stdin")
    assert sign_in("olga", made["password"])[1].status_code == 200
    client, answer = sign_in("olga", NEW)
    assert answer.status_code == 302
    with pytest.raises(CommandError, match="nobody would be an admin"):
        run("set", "olga", "--role", "viewer")
    run("add", "ada", "--role", "admin")
    run("set", "olga", "--role", "operator", "--no-team")
    listed = next(each for each in accounts_listed() if each["name"] == "olga")
    assert (listed["role"], listed["teams"], listed["active"]) == ("operator", [], True)
    run("set", "olga", "--disable")
    assert client.get("/").status_code == 302 and sign_in("olga", NEW)[1].status_code == 200
    with pytest.raises(CommandError, match="nobody would be an admin"):
        run("set", "ada", "--disable")
    told = "".join(f"{e.before}{e.after}{e.reason}" for e in AuditEntry.objects.all())
    assert NEW not in told and made["password"] not in told


def accounts_listed() -> list[dict[str, Any]]:
    out = io.StringIO()
    call_command("account", "list", stdout=out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("add", "-x"), None),
        (("add", "a b"), "letters, digits"),
        (("add", "x", "--team", "none"), "there is no team"),
        (("set", "nobody", "--role", "viewer"), "there is no user"),
        (("password", "nobody"), "there is no user"),
        (("reset-second-factor", "vic"), "has no second factor"),
        (("link", "vic", "1"), "TWINPOOL_OIDC_ISSUER"),
    ],
)
def test_a_command_that_cannot_be_is_one_line(words: tuple[str, ...], reason: str | None) -> None:
    person("vic")
    before = User.objects.count()
    with pytest.raises((CommandError, SystemExit), match=reason):
        call_command("account", *words)
    assert User.objects.count() == before


@pytest.mark.parametrize(
    ("origins", "setting", "needed"),
    [
        ("http://127.0.0.1:8080,http://localhost:8080", "auto", False),
        ("https://twinpool.example", "auto", True),
        ("http://localhost:8080,http://10.0.0.5:8080", "auto", True),
        ("https://twinpool.example", "optional", False),
        ("http://localhost:8080", "admins", True),
    ],
)
def test_admins_need_a_second_factor_where_others_reach_the_console(origins: str, setting: Any, needed: bool) -> None:
    assert Config(console_origins=origins, second_factor=setting).admins_need_second_factor() is needed
