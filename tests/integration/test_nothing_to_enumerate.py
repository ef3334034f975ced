"""What is private (inference keys, tokens, who there is) is answered alike whether it is there or not, to whoever may not
use it: same status, headers and body, through API, pages and search; and no answer of another kind tells it.

Models, engines, nodes, operations, usage, costs and the audit are no secrets from anybody who is signed in (SECURITY.md).
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from controlplane.access.tokens import add_token
from controlplane.api.urls import urlpatterns as api_patterns
from controlplane.control.keys import add_key
from controlplane.control.newkey import NewKey
from controlplane.fleet import models
from tests.integration.access_kit import proves, quick_passwords
from tests.integration.control_kit import ANN
from tests.integration.control_rows import fleet
from tests.integration.test_permission_matrix import VISITORS, Visitor

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_passwords")]
__all__ = ["quick_passwords"]  # a fixture
THERE, ABSENT = "hidden-thing-1", "absent-thing-1"
"""A key of another team, a token of another user, a user, each of this name; and what there is none of. Equally long."""
PLAIN = [each for each in VISITORS if each.group not in ("admin", "operator")]
"""Whom keys, tokens and people of others are no business of."""
DOORS: dict[str, tuple[str, str, dict[str, Any] | None]] = {
    "revoke a key": ("DELETE", "/api/v1/keys/{}", None),
    "try to revoke a key": ("DELETE", "/api/v1/keys/{}?dry_run=true", None),
    "rotate a key": ("POST", "/api/v1/keys/{}/rotate", {}),
    "read one key": ("GET", "/api/v1/keys/{}", None),
    "list another's tokens": ("GET", "/api/v1/tokens?user={}", None),
    "make another's token": ("POST", "/api/v1/tokens", {"user": "{}", "name": "t", "scopes": ["read"]}),
    "revoke another's token": ("DELETE", "/api/v1/tokens/{}", None),
    "give somebody a model": ("PUT", "/api/v1/models/m/grants/{}", {}),
    "take it back": ("DELETE", "/api/v1/models/m/grants/{}", None),
    "search": ("GET", "/find?q={}", None),
    "filter requests by key": ("GET", "/data/requests?range=1h&key={}", None),
    "rotate on the page": ("POST", "/keys/{}/rotate", {"overlap_hours": "1"}),
    "revoke on the page": ("POST", "/keys/{}/revoke", {}),
    "revoke a token on the page": ("POST", "/account/tokens/{}/revoke", {}),
    "give on the page": ("POST", "/grants/give", {"model": "m", "user": "{}", "days": "", "reason": "r"}),
    "take back on the page": ("POST", "/grants/take", {"model": "m", "user": "{}"}),
    "sign in": ("POST", "/login", {"username": "{}", "password": "wrong"}),
}
HOME_PAGES = ("/", "/keys", "/account", "/grants", "/nodes/tokens", "/requests", "/find?q=hidden", "/nodes", "/alerts")


@pytest.fixture(autouse=True)
def company(settings: Any) -> None:
    """Everybody of VISITORS, a model, and the hidden things; wrong passwords lock nobody out here."""
    settings.AXES_ENABLED = False
    for team in ("search", "ads", "secret"):
        models.Team.objects.create(name=team)
    row = fleet("disaggregated", "m", prefill=1, decode=1)
    models.Model.objects.filter(pk=row.pk).update(team="search")
    for each in VISITORS[1:]:
        user = User.objects.create_user(each.name)
        user.groups.add(Group.objects.get_or_create(name=each.group)[0])
        user.teams.set(models.Team.objects.filter(name__in=each.teams))
    hidden = User.objects.create_user(THERE, password="x" * 30)
    add_token(ANN, hidden.username, THERE, days=1)
    add_key(ANN, NewKey(THERE, "secret"))


def client_of(visitor: Visitor) -> Client:
    client = Client(SERVER_NAME="localhost")
    if visitor.group:
        client.force_login(User.objects.get(username=visitor.name), "django.contrib.auth.backends.ModelBackend")
        proves(client)
    return client


def filled(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return {key: filled(each, name) for key, each in value.items()}
    return value.replace("{}", name) if isinstance(value, str) else value


def answer(client: Client, door: tuple[str, str, dict[str, Any] | None], name: str) -> tuple[int, str, dict[str, str]]:
    """Status, body and headers, without what differs by chance or repeats the name that was asked for."""
    method, address, body = door
    sent: dict[str, Any] = {} if body is None else {"data": filled(body, name)}
    if address.startswith("/api/") and body is not None:
        sent["content_type"] = "application/json"
    found = getattr(client, method.lower())(address.replace("{}", name), **sent)
    text = re.sub(r'(csrfmiddlewaretoken" value=)"\w+"', r"\1", found.content.decode()).replace(name, "NAME")
    text = re.sub(r'"(now|since|until)": ?[\d.]+', "", text)
    headers = {key.lower(): value.replace(name, "NAME") for key, value in found.headers.items()}
    for by_chance in ("expires", "etag", "content-length"):  # of the answer as it was, with its times
        headers.pop(by_chance, "")
    return found.status_code, text, headers


@pytest.mark.parametrize("visitor", PLAIN, ids=lambda each: each.name)
def test_what_is_there_is_answered_as_what_is_not(visitor: Visitor) -> None:
    client = client_of(visitor)
    for name, door in DOORS.items():
        there = answer(client, door, THERE)
        assert there == answer(client, door, ABSENT), name
        assert there[0] < 500 and there[0] != 202, name


def addresses() -> list[str]:
    """Every list of the API, and pages that list much."""
    plain = [f"/api/{each.pattern}" for each in api_patterns]
    return [each for each in plain if "<" not in each and each.count("/") == 3] + list(HOME_PAGES)


@pytest.mark.parametrize("visitor", PLAIN, ids=lambda each: each.name)
def test_no_list_page_or_export_names_it(visitor: Visitor) -> None:
    """The audit alone names keys, tokens and people: it says who did what to everybody who is signed in."""
    client, tried = client_of(visitor), 0
    for address in addresses():
        found = client.get(address)
        if address not in ("/api/v1/audit", "/api/v1/operations") and found.status_code < 300:
            assert THERE.encode() not in b"".join(found), address
            tried += 1
    assert tried > 20 or not visitor.group
    assert (THERE in client.get("/api/v1/audit").content.decode()) == bool(visitor.group)


def test_who_may_use_them_is_told_what_there_is() -> None:
    """The doors are real: an admin gets other answers for what is there."""
    admin = client_of(VISITORS[-1])
    told = [door for door in DOORS if answer(admin, DOORS[door], ABSENT)[0] != answer(admin, DOORS[door], THERE)[0]]
    assert {"revoke a key", "rotate on the page", "list another's tokens", "give somebody a model"} <= set(told)
