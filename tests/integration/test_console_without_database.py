"""The web process while PostgreSQL is away: it lives, says so, and needs nobody's help to come back."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from controlplane.core import names
from controlplane.stack.ports import free_port
from tests.console_web import Web


@pytest.fixture(scope="module")
def web(valkey_url: str) -> Iterator[Web]:
    web = Web(free_port(), {names.ENV_DATABASE_URL: "postgresql://app:none@127.0.0.1:1/none"})
    web.start()
    yield web
    web.stop()


def test_health_is_good(web: Web) -> None:
    assert httpx.get(f"{web.url}/healthz").text == "ok\n"


def test_a_page_says_that_the_database_is_away_and_tries_again(web: Web) -> None:
    answer = httpx.get(web.url, cookies={"sessionid": "a" * 32}, timeout=60)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert "The database is away" in answer.text
    assert 'http-equiv="refresh"' in answer.text


def test_signing_in_says_the_same_and_shows_nothing_of_the_server(web: Web) -> None:
    with httpx.Client(base_url=web.url, headers={"origin": web.url}, timeout=60) as client:
        client.get("/login")
        form = {"username": "kim", "password": "secret-word", "csrfmiddlewaretoken": client.cookies["csrftoken"]}
        answer = client.post("/login", data=form)
    assert answer.status_code == 503
    assert "secret-word" not in answer.text
    assert "127.0.0.1:1" not in answer.text


def test_the_api_says_so_in_its_own_language(web: Web) -> None:
    answer = httpx.get(f"{web.url}/api/v1/models", headers={"authorization": "Bearer tp-" + "0" * 64}, timeout=60)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["kind"] == "unavailable"
    assert "127.0.0.1:1" not in answer.text


def test_an_order_of_a_page_gets_an_answer_that_its_script_can_show(web: Web) -> None:
    with httpx.Client(base_url=web.url, headers={"origin": web.url}, timeout=60) as client:
        client.get("/login")
        client.cookies.set("sessionid", "a" * 32)
        headers = {"x-csrftoken": client.cookies["csrftoken"]}
        answer = client.post("/models/m/rebalance/start", json={"sizes": {}, "reason": "r"}, headers=headers)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert "The database does not answer" in answer.json()["reasons"][0]
