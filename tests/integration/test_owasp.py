"""What is tried on every site, tried on this one, where no other test does: SQL in every filter, a session that somebody
else chose. Scripts in names: test_owasp_browser; other origins: test_live_socket, test_api_requests; next: test_signing_in;
logs of engines: test_agent_commands; arguments of engines: test_engine_args."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import Client as Visitor

from controlplane.control import actions
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
