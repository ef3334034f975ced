"""The console's pages over Django's client, on the real database and the real Valkey."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import redis
from django.contrib.auth.models import Group, User
from django.contrib.staticfiles import finders
from django.test import Client
from django.urls import reverse

from controlplane.console import live_state
from controlplane.console.modules import module_files
from controlplane.core import names
from tests.console_rows import find, rows

PASSWORD = "correct horse battery staple"
ROOT = Path(__file__).resolve().parents[2]
BUDGET_BYTES = 250_000


@pytest.fixture
def user(db: None) -> User:
    user = User.objects.create_user("ops-1", password=PASSWORD)
    user.groups.add(Group.objects.get_or_create(name="operator")[0])
    return user


@pytest.fixture
def signed_in(client: Client, user: User) -> Client:
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client


def write_live(valkey: redis.Redis, fleet: list[dict[str, Any]], seq: int = 7) -> None:
    state: dict[str, Any] = {"epoch": "e1", "seq": seq, "at": time.time(), "rows": json.dumps(fleet)}
    valkey.hset(names.live_key("fleet"), mapping=state)


def first(page: str) -> dict[str, Any]:
    found = re.search(r'<script id="first" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert found
    document: dict[str, Any] = json.loads(found[1])
    return document


def test_health_answers_without_database_and_login(client: Client) -> None:
    answer = client.get("/healthz")
    assert (answer.status_code, answer.content) == (200, b"ok\n")


def test_a_visitor_is_sent_to_the_login_page_and_back(client: Client, user: User) -> None:
    assert client.get("/").headers["location"] == "/login?next=/"
    answer = client.post("/login", {"username": "ops-1", "password": PASSWORD, "next": "/"})
    assert (answer.status_code, answer.headers["location"]) == (302, "/")


def test_the_login_page_never_sends_a_viewer_to_another_site(client: Client, user: User) -> None:
    answer = client.post("/login", {"username": "ops-1", "password": PASSWORD, "next": "https://evil.example/"})
    assert answer.headers["location"] == "/"


def test_a_wrong_password_is_refused_without_telling_what_was_wrong(client: Client, user: User) -> None:
    for name in ("ops-1", "nobody"):
        page = client.post("/login", {"username": name, "password": "wrong"}).content.decode()
        assert "That name and password do not match." in page
        assert "wrong" not in page


def test_too_many_wrong_passwords_lock_the_name_and_say_for_how_long(client: Client, user: User) -> None:
    for _ in range(8):
        answer = client.post("/login", {"username": "ops-1", "password": "wrong"})
    assert answer.status_code == 429
    assert "locked for 15 minutes" in answer.content.decode()
    assert client.post("/login", {"username": "ops-1", "password": PASSWORD}).status_code == 429


def test_signing_out_takes_a_post(signed_in: Client) -> None:
    assert signed_in.get("/logout").status_code == 405
    assert signed_in.get("/").status_code == 200
    assert signed_in.post("/logout").headers["location"] == "/login"
    assert signed_in.get("/").status_code == 302


def test_the_fleet_page_carries_the_newest_rows(signed_in: Client, valkey: redis.Redis) -> None:
    fleet = rows(time.time())
    write_live(valkey, fleet)
    frame = first(signed_in.get("/").content.decode())["frame"]
    assert (frame["topic"], frame["kind"], frame["epoch"], frame["seq"], frame["rows"]) == (
        "fleet",
        "snapshot",
        "e1",
        7,
        fleet,
    )


def test_the_fleet_page_comes_without_rows_when_there_are_none_yet(signed_in: Client, valkey: redis.Redis) -> None:
    document = first(signed_in.get("/").content.decode())
    assert document["frame"] is None
    assert abs(document["now"] - time.time()) < 60


def test_the_fleet_page_comes_without_rows_when_they_are_broken(signed_in: Client, valkey: redis.Redis) -> None:
    valkey.hset(names.live_key("fleet"), mapping={"epoch": "e", "seq": 1, "at": 1.0, "rows": "[{"})
    assert first(signed_in.get("/").content.decode())["frame"] is None


def test_the_fleet_page_comes_when_valkey_is_away(signed_in: Client, settings: Any) -> None:
    settings.VALKEY_URL = "redis://127.0.0.1:1/0"
    live_state._valkey.cache_clear()
    try:
        assert first(signed_in.get("/").content.decode())["frame"] is None
    finally:
        live_state._valkey.cache_clear()


def test_a_hostile_name_cannot_leave_the_data_block(signed_in: Client, valkey: redis.Redis) -> None:
    fleet = rows(time.time())
    hostile = "</script><img src=x onerror=alert(1)>"
    find(fleet, "model:llama-3.1-70b")["name"] = hostile
    write_live(valkey, fleet)
    page = signed_in.get("/").content.decode()
    assert hostile not in page
    assert "<img" not in page
    assert find(first(page)["frame"]["rows"], "model:llama-3.1-70b")["name"] == hostile


@pytest.mark.parametrize(
    ("groups", "superuser", "shown"),
    [
        (["viewer"], False, "viewer"),
        (["viewer", "operator"], False, "operator"),
        (["owner"], False, "owner"),
        ([], True, "admin"),
        ([], False, "viewer"),
    ],
)
def test_the_page_shows_who_is_signed_in_and_as_what(
    client: Client, db: None, valkey: redis.Redis, groups: list[str], superuser: bool, shown: str
) -> None:
    user = User.objects.create_user("<b>kim</b>", password=PASSWORD, is_superuser=superuser)
    user.groups.set([Group.objects.get_or_create(name=name)[0] for name in groups])
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    page = client.get("/").content.decode()
    assert f'<b>&lt;b&gt;kim&lt;/b&gt;</b><span class="role">{shown}</span>' in page


def test_the_language_is_chosen_by_browser_then_by_the_switch(client: Client, db: None) -> None:
    assert "Đăng nhập" in client.get("/login", headers={"accept-language": "vi"}).content.decode()
    client.post(reverse("set_language"), {"language": "vi", "next": "/login"})
    page = client.get("/login", headers={"accept-language": "en"}).content.decode()
    assert '<html lang="vi"' in page
    assert "Mật khẩu" in page


def test_the_words_of_the_scripts_come_in_the_viewers_language(client: Client) -> None:
    words = client.get("/strings.js", headers={"accept-language": "vi"}).content.decode()
    assert json.dumps("Truyền KV") in words


@pytest.mark.parametrize(("cookie", "attribute"), [("dark", 'data-theme="dark"'), ("light", 'data-theme="light"')])
def test_the_page_comes_in_the_chosen_theme(client: Client, db: None, cookie: str, attribute: str) -> None:
    client.cookies["theme"] = cookie
    assert attribute in client.get("/login").content.decode()


def test_an_invented_theme_is_ignored(client: Client, db: None) -> None:
    client.cookies["theme"] = '"><script>'
    assert "data-theme" not in client.get("/login").content.decode()


def test_pages_allow_no_inline_code_and_have_none(signed_in: Client, valkey: redis.Redis) -> None:
    answer = signed_in.get("/")
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    page = answer.content.decode()
    assert not re.search(r"\s(style|on\w+)=", page)
    assert re.findall(r"<script(?![^>]*(?:\bsrc=|application/json))", page) == []


def test_of_the_chart_wheel_only_the_library_is_served() -> None:
    assert finders.find("vendor/plotly.min.js")
    for other in ("vendor/widgetbundle.js", "vendor/../plotly.min.js", "vendor/datasets/iris.csv.gz"):
        assert not finders.find(other)


PAGES = ("fleet", "rebalance", "operation", "operations")


@pytest.mark.parametrize("page", PAGES)
def test_everything_that_scripts_import_is_announced_ahead(page: str) -> None:
    scripts = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "static/js").glob("*.js")}
    imports = {name: set(re.findall(r'from "\./(\w+)\.js"', source)) for name, source in scripts.items()}
    needed, found = set(), {page}
    while found:
        needed |= found
        found = set().union(*(imports[name] for name in found)) - needed
    assert {f"js/{name}.js" for name in needed - {page}} == set(module_files(page))


def test_the_fleet_page_is_light_before_the_chart_library(signed_in: Client, valkey: redis.Redis) -> None:
    write_live(valkey, rows(time.time()))
    page = signed_in.get("/")
    files = set(re.findall(r'(?:href|src)="/static/([^"]+)"', page.content.decode())) | {"js/heat.js", "js/heatdata.js"}
    sizes = [Path(str(finders.find(name))).stat().st_size for name in files]
    assert sum(sizes) + len(page.content) + len(signed_in.get("/strings.js").content) < BUDGET_BYTES


def test_an_unknown_address_and_an_old_form_get_pages_of_ours(db: None) -> None:
    client = Client(enforce_csrf_checks=True)
    missing, old = client.get("/nowhere"), client.post("/login", {"username": "ops-1", "password": PASSWORD})
    assert (missing.status_code, old.status_code) == (404, 403)
    assert "There is no such page" in missing.content.decode()
    assert "This form was too old" in old.content.decode()
