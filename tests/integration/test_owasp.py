"""What is tried on every site, tried on this one, where no other test does: SQL in every filter, a session that somebody
else chose, hostile parameters and orders. Scripts in names: test_owasp_browser; other origins: test_live_socket,
test_api_requests; next: test_signing_in; logs of engines: test_agent_commands; arguments of engines: test_engine_args."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import Client as Visitor

from controlplane.console.urls import urlpatterns
from controlplane.control import actions
from controlplane.fleet.models import Operation
from tests.console_visitors import PASSWORD
from tests.integration.alert_kit import firing
from tests.integration.control_kit import ANN
from tests.integration.control_rows import fleet

SQL = (
    "' OR '1'='1", "'; DROP TABLE fleet_node; --", '"; DROP TABLE fleet_node; --', "%", "_", "\\", "1) UNION SELECT 1",
    "$$; SELECT pg_sleep(5); $$", "{}", "*", "m' --",
)  # fmt: skip


def person(name: str, role: str) -> User:
    user = User.objects.create_user(name, password=PASSWORD)
    user.groups.add(Group.objects.get_or_create(name=role)[0])
    return user


FILTERS = {
    "models": ("team",),
    "pools": ("model", "arm"),
    "engines": ("model", "arm", "node"),
    "gpus": ("node", "kind"),
    "operations": ("model", "verb", "actor"),
    "alerts": ("model",),
    "audit": ("verb", "actor", "subject"),
    "proposals": ("model",),
}


@pytest.mark.django_db
def test_no_filter_is_read_as_a_query() -> None:
    visitor = Visitor(SERVER_NAME="localhost")
    visitor.force_login(person("vic", "viewer"))
    fleet("disaggregated", prefill=2, decode=2)
    firing()
    for address, filters in FILTERS.items():
        for name in filters:
            for text in SQL:
                answer = visitor.get(f"/api/v1/{address}", {name: text})
                assert answer.status_code == 400 or answer.json()["items"] == [], (address, name, text)
    for page in ("/find", "/audit", "/operations", "/data/audit", "/requests"):
        for text in SQL:
            assert visitor.get(page, dict.fromkeys(("q", "actor", "verb", "model"), text)).status_code in (200, 400), page
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM fleet_node")
        assert cursor.fetchone() == (1,)


@pytest.mark.django_db
def test_a_session_that_somebody_else_chose_is_not_the_one_that_is_signed_in() -> None:
    person("vic", "viewer")
    visitor = Visitor(SERVER_NAME="localhost")
    visitor.cookies["sessionid"] = "chosen0by0somebody0else000000000"
    visitor.get("/login")
    answer = visitor.post("/login", {"username": "vic", "password": PASSWORD})
    assert answer.status_code == 302
    own = visitor.cookies["sessionid"]
    assert own.value != "chosen0by0somebody0else000000000"
    assert own["httponly"] and own["samesite"] == "Lax"
    other = Visitor(SERVER_NAME="localhost")
    other.cookies["sessionid"] = "chosen0by0somebody0else000000000"
    assert other.get("/api/v1/models").status_code == 401
    visitor.post("/logout")
    other.cookies["sessionid"] = own.value
    assert other.get("/api/v1/models").status_code == 401, "and none outlives the sign-out"


@pytest.mark.django_db
def test_a_role_that_is_taken_away_counts_at_once() -> None:
    fleet("disaggregated", prefill=2, decode=2)
    user = person("olga", "operator")
    visitor = Visitor(SERVER_NAME="localhost")
    visitor.force_login(user)
    order: dict[str, Any] = {"path": "/api/v1/models/m/roll-out?dry_run=true", "content_type": "application/json"}
    assert visitor.post(**order).status_code == 200
    user.groups.clear()
    assert visitor.post(**order).status_code == 403
    User.objects.filter(pk=user.pk).update(is_active=False)
    assert visitor.post(**order).status_code in (401, 403)
    assert actions.cordon_node(ANN, "n1").actor == "ann"


HOSTILE = (
    *("9999-12-31", "0001-01-01", "9999-12-31T23:59:59Z", "0001-01-01T00:00Z", "9999-12", "0000-00", "+14:00", "\x00", "-1"),
    *("1e400", "NaN", "9" * 400, "9223372036854775808", "\u202e\u200b", "２", "{", "[", "../../etc", "x" * 3000, ""),
)
PARAMETERS = (
    *(
        "q",
        "model",
        "from",
        "to",
        "range",
        "before",
        "after",
        "month",
        "id",
        "role",
        "arm",
        "format",
        "lines",
        "rank",
        "seen",
    ),
    *(
        "zone",
        "step_s",
        "span_s",
        "order",
        "mode",
        "cursor",
        "by",
        "split",
        "actor",
        "verb",
        "kind",
        "state",
        "team",
        "reason",
    ),
)


def places(pattern: str) -> str:
    """An address of the console at which there is something, where something of its kind is."""
    kinds = {"path:name": "m", "str:name": "x", "str:engine_id": "m-1", "str:node_name": "n1", "int:number": "1"}
    kinds |= {"slug:name": "x", "slug:key": "pool_empty", "uuid:number": "0" * 8 + "-0000" * 3 + "-" + "0" * 12}
    return "/" + re.sub(r"<([^>]+)>", lambda found: kinds[found[1]], pattern)


@pytest.mark.django_db
def test_no_parameter_of_a_page_is_an_accident() -> None:
    visitor = Visitor(SERVER_NAME="localhost", raise_request_exception=False)
    visitor.force_login(person("ada", "admin"), "django.contrib.auth.backends.ModelBackend")
    fleet("disaggregated", prefill=2, decode=2)
    wrong = set()
    for address in {places(str(each.pattern)) for each in urlpatterns} - {"/logout", "/strings.js"}:
        for text in HOSTILE:
            answer = visitor.get(address, dict.fromkeys(PARAMETERS, text))
            if answer.status_code >= 500 and answer.status_code != 503:
                wrong.add((address, text, answer.status_code))
    assert not wrong


REPEATED = b'{"mode": "monolithic", "version": 1, "reason": "r", "dry_run": true, "dry_run": false}'
BODIES = (
    REPEATED,
    b'{"reason": "\\u0000"}',
    b'{"reason": "\\ud800"}',
    b'{"version": 1e999}',
    b'{"a":' * 99 + b"1" + b"}" * 99,
)


@pytest.mark.django_db
@pytest.mark.parametrize("body", [*BODIES, b'{"version": ' + b"9" * 50 + b"}", b"\xff", b"[]", b"NaN"])
def test_an_order_that_readers_would_read_differently_is_none(body: bytes) -> None:
    visitor = Visitor(SERVER_NAME="localhost")
    visitor.force_login(person("ada", "admin"), "django.contrib.auth.backends.ModelBackend")
    fleet("disaggregated", prefill=2, decode=2)
    answer = visitor.post("/models/m/mode", body, content_type="application/json")
    assert (answer.status_code, answer.json()["kind"]) == (400, "malformed")
    assert not Operation.objects.filter(verb="set_mode").exists()
