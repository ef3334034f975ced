"""The page of grants: plain forms by which admins give single users a model, for a time, and take it back."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client
from django.utils import timezone

from controlplane.control import actions
from controlplane.control.actor import Actor, may
from controlplane.fleet.models import AuditEntry, Grant, Model
from tests.integration.access_kit import person
from tests.integration.control_kit import ANN
from tests.integration.control_rows import refusal

pytestmark = pytest.mark.django_db
GIVEN = {"model": "org/m", "user": "vic", "days": "7", "reason": "on call"}


@pytest.fixture
def model() -> Model:
    person("vic")
    return Model.objects.create(name="org/m", source="org/m", config={}, engine_kind="simulated", team="search")


def browser(name: str, role: str) -> Client:
    client = Client()
    client.force_login(person(name, role), "django.contrib.auth.backends.ModelBackend")
    return client


def rights() -> bool:
    return not may(Actor.of_user(User.objects.get(username="vic")), "set_mode", "search", "org/m")


def test_an_admin_gives_a_model_takes_it_back_and_undoes_that(model: Model) -> None:
    admin = browser("ada", "admin")
    assert "No grants" in admin.get("/grants").content.decode()
    page = admin.post("/grants/give", GIVEN).content.decode()
    assert "vic may change org/m now." in page and rights()
    row = Grant.objects.get()
    assert (row.given_by, row.reason) == ("ada", "on call") and row.until is not None
    for shown in ("on call", f"{row.until:%Y-%m-%d}", "<td>ada</td>", "Take back: vic, org/m"):
        assert shown in page
    page = admin.post("/grants/take", {"model": "org/m", "user": "vic"}).content.decode()
    assert "Undo: vic, org/m" in page and not rights()
    again = {"model": "org/m", "user": "vic", "until": row.until.isoformat(timespec="seconds"), "reason": "by mistake"}
    admin.post("/grants/give", again)
    assert rights() and abs(Grant.objects.get().until - row.until) < timedelta(seconds=1)
    told = AuditEntry.objects.filter(subject="model:org/m").order_by("pk").values_list("verb", "actor", "reason")
    assert list(told) == [
        ("grant_model", "ada", "on call"),
        ("ungrant_model", "ada", ""),
        ("grant_model", "ada", "by mistake"),
    ]


def test_what_was_given_for_a_time_is_over_with_it(model: Model) -> None:
    actions.grant_model(ANN, "org/m", "vic", until=timezone.now() + timedelta(days=1))
    assert rights()
    Grant.objects.update(until=timezone.now() - timedelta(seconds=1))
    assert not rights()
    page = browser("olga", "operator").get("/grants?model=org/m").content.decode()
    assert ">over</span>" in page and "Take back" not in page and "Needs the role admin" in page
    assert "No grants" in browser("ola", "owner").get("/grants?model=other").content.decode()
    person("vera")
    actions.grant_model(ANN, "org/m", "vera")
    assert [row.user.username for row in Grant.objects.all()] == ["vera"], "what is over makes room"


@pytest.mark.parametrize("days", [-1, 0, 3651])
def test_a_time_that_is_none_is_refused_everywhere(model: Model, days: int) -> None:
    until = timezone.now() + timedelta(days=days)
    assert refusal(actions.grant_model, ANN, "org/m", "vic", until=until).kind == "invalid"
    with pytest.raises(CommandError, match="--days: 1 to 3650"):
        call_command("grant_model", "org/m", "vic", "--days", str(days))
    assert browser("ada", "admin").post("/grants/give", GIVEN | {"days": str(days)}).status_code == 400
    assert not Grant.objects.exists()


def test_what_is_not_there_is_told_to_admins_and_others_hear_nothing(model: Model) -> None:
    admin, owner = browser("ada", "admin"), browser("ola", "owner")
    for wrong in ({"user": "none"}, {"model": "none"}, {"user": "vic\x00"}, {"user": "\ud800".encode("utf-8", "replace")}):
        assert admin.post("/grants/give", GIVEN | wrong).status_code in (400, 404), wrong
        assert admin.post("/grants/take", GIVEN | wrong).status_code == 404, wrong
    there, absent = (owner.post("/grants/give", GIVEN | {"user": user}) for user in ("vic", "none"))
    assert there.status_code == absent.status_code == 403
    assert b"<option" not in owner.get("/grants").content, "names of people are offered to who may use them"
    assert not Grant.objects.exists()
    assert Client().get("/grants").headers["location"].startswith("/login?")


def test_what_is_said_last_holds_also_from_the_command_line(model: Model) -> None:
    call_command("grant_model", "org/m", "vic", "--days", "3", "--reason", "first")
    call_command("grant_model", "org/m", "vic", "--reason", "for good")
    row = Grant.objects.get()
    assert (row.until, row.reason) == (None, "for good")
    before = AuditEntry.objects.latest("pk").before
    assert before["user"] == "vic" and before["until"]
