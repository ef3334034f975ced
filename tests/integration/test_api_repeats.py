"""A change that is sent again: it runs once, whoever dies between; the same key for something else is refused."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import httpx
import psycopg
import pytest
from django.utils import timezone

from controlplane.api.models import StoredAnswer
from controlplane.core import names
from controlplane.fleet import models
from controlplane.stack.ports import free_port
from controlplane.stack.postgres import EmbeddedPostgres
from tests.console_web import Web
from tests.integration.api_kit import Client, one_model, problem, token_of
from tests.integration.control_kit import until

pytestmark = pytest.mark.django_db(transaction=True)
SIZES = {"pools": {"prefill": 1, "decode": 3}}
ADDRESS = "models/m/rebalance"


@pytest.fixture(scope="module")
def web(valkey_url: str, django_db_setup: None) -> Iterator[Web]:
    web = Web(free_port())
    web.start()
    yield web
    web.stop()


@pytest.fixture
def client(web: Web) -> Iterator[Client]:
    one_model()
    with Client(web.url, token_of("operator")) as client:
        yield client


def key(value: str) -> dict[str, str]:
    return {"idempotency-key": value}


def rebalances() -> int:
    return models.Operation.objects.filter(verb="rebalance").count()


def in_background(client: Client, headers: dict[str, str]) -> threading.Thread:
    """The request in a thread; that its connection breaks is expected."""

    def send() -> None:
        with httpx.Client(base_url=client.base_url, headers=client.headers, timeout=60) as own:
            try:
                own.post(f"/api/v1/{ADDRESS}", json=SIZES, headers=headers)
            except httpx.TransportError:
                pass

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def kill(web: Web) -> None:
    assert web.process
    os.kill(web.process.pid, signal.SIGKILL)
    web.process.wait()


def test_the_same_request_with_the_same_key_gets_the_first_answer(client: Client) -> None:
    first = client.post(ADDRESS, json=SIZES, headers=key("a"))
    again = client.post(ADDRESS, json=dict(reversed(SIZES.items())), headers=key("a"))
    assert (first.status_code, again.status_code) == (202, 202)
    assert again.json() == first.json()
    assert again.headers["location"] == first.headers["location"]
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert rebalances() == models.AuditEntry.objects.filter(verb="rebalance").count() == 1


def test_of_many_at_once_with_one_key_one_runs_and_all_hear_of_the_same(client: Client) -> None:
    answers: list[httpx.Response] = []

    def send() -> None:
        with httpx.Client(base_url=client.base_url, headers=client.headers, timeout=60) as own:
            while True:
                answer = own.post(f"/api/v1/{ADDRESS}", json=SIZES, headers=key("a"))
                if answer.status_code != 409:
                    answers.append(answer)
                    return

    sending = [threading.Thread(target=send) for _ in range(8)]
    for each in sending:
        each.start()
    for each in sending:
        each.join()
    assert {(answer.status_code, answer.json()["id"]) for answer in answers} == {(202, answers[0].json()["id"])}
    assert sum("idempotency-replayed" not in answer.headers for answer in answers) == 1
    assert rebalances() == 1


def test_of_several_requests_at_once_with_one_key_one_runs(client: Client) -> None:
    def send(decode: int) -> int:
        with httpx.Client(base_url=client.base_url, headers=client.headers, timeout=60) as own:
            sizes = {"pools": {"prefill": 4 - decode, "decode": decode}}
            return own.post(f"/api/v1/{ADDRESS}", json=sizes, headers=key("a")).status_code

    with ThreadPoolExecutor(3) as sending:
        answers = sorted(sending.map(send, (1, 3, 3)))
    assert answers[0] == 202 and set(answers) <= {202, 409, 422}, answers
    assert rebalances() == models.AuditEntry.objects.filter(verb="rebalance").count() == 1


def test_a_key_is_for_one_request_of_one_user(web: Web, client: Client) -> None:
    assert client.post(ADDRESS, json=SIZES, headers=key("a")).status_code == 202
    others: list[tuple[str, Any, dict[str, str]]] = [
        (ADDRESS, {"pools": {"decode": 4}}, {}),
        (ADDRESS, {**SIZES, "reason": "x"}, {}),
        ("models/m/roll-out", {}, {}),
        (ADDRESS, SIZES, {"if-match": '"1-2"'}),
    ]
    for address, body, headers in others:
        found = problem(client.post(address, json=body, headers={**key("a"), **headers}), 422, "invalid")
        assert "choose a new key" in found["detail"]
    with Client(web.url, token_of("admin")) as other:
        problem(other.post(ADDRESS, json=SIZES, headers=key("a")), 409, "busy")
    for wrong in ("", "x" * 256, "a\tb"):
        problem(client.post(ADDRESS, json=SIZES, headers=key(wrong)), 400, "malformed")


@pytest.mark.parametrize("verb", ["freeze", "pause", "retry"])
def test_what_was_done_to_a_tag_is_answered_again_although_the_tag_is_another_by_now(client: Client, verb: str) -> None:
    if verb == "pause":
        number = client.post(ADDRESS, json=SIZES).json()["id"]
        read, method, address, body = f"operations/{number}", "POST", f"operations/{number}/pause", {}
    elif verb == "freeze":
        until_then = (timezone.now() + timedelta(hours=1)).isoformat()
        read, method, address, body = "models/m", "PUT", "models/m/freeze", {"until": until_then}
    else:
        models.Engine.objects.filter(pk="m-1").update(state="failed", failures=5)
        read, method, address, body = "models/m", "POST", "engines/m-1/retry", {}
    headers = {**key("a"), "if-match": client.get(read).headers["etag"]}
    first, again = (client.request(method, address, json=body, headers=headers) for _ in range(2))
    assert (first.status_code, again.status_code, again.json()) == (202, 202, first.json())
    assert again.headers["idempotency-replayed"] == "true"
    problem(client.request(method, address, json=body, headers=headers | key("b")), 412, "stale")


def test_a_refused_request_leaves_its_key_unused(client: Client) -> None:
    problem(client.post("models/none/rebalance", json=SIZES, headers=key("a")), 404, "not_found")
    assert not StoredAnswer.objects.exists()
    assert client.post(ADDRESS, json=SIZES, headers=key("a")).status_code == 202


def test_what_is_a_day_old_is_forgotten(client: Client) -> None:
    client.post(ADDRESS, json=SIZES, headers=key("a"))
    models.Operation.objects.update(state="done")
    StoredAnswer.objects.update(created_at=timezone.now() - timedelta(hours=25))
    assert "idempotency-replayed" not in client.post(ADDRESS, json=SIZES, headers=key("a")).headers
    models.Operation.objects.update(state="done")
    StoredAnswer.objects.update(created_at=timezone.now() - timedelta(hours=25))
    client.post(ADDRESS, json=SIZES, headers=key("b"))
    assert [row.key for row in StoredAnswer.objects.all()] == ["b"]


def test_while_the_first_runs_the_second_is_told_to_wait(client: Client, web: Web, postgres: EmbeddedPostgres) -> None:
    with psycopg.connect(postgres.urls.admin) as blocker:
        blocker.execute("SELECT 1 FROM fleet_model FOR UPDATE")
        first = in_background(client, key("a"))
        until("the first waits for the model's row", lambda: _waiting(postgres))
        answer = client.post(ADDRESS, json=SIZES, headers=key("a"))
        assert "still runs" in problem(answer, 409, "busy")["detail"]
        assert answer.headers["retry-after"] == "1"
    first.join()
    assert client.post(ADDRESS, json=SIZES, headers=key("a")).headers["idempotency-replayed"] == "true"
    assert rebalances() == 1


def test_a_server_killed_before_the_commit_leaves_nothing_and_one_killed_after_it_has_the_answer(
    client: Client, web: Web, postgres: EmbeddedPostgres
) -> None:
    version = models.Model.objects.get().version
    with psycopg.connect(postgres.urls.admin) as blocker:
        blocker.execute("SELECT 1 FROM fleet_model FOR UPDATE")
        first = in_background(client, key("a"))
        until("the first waits for the model's row", lambda: _waiting(postgres))
        kill(web)
        first.join()
    until("the server's transaction is gone", lambda: not _waiting(postgres))
    assert (rebalances(), StoredAnswer.objects.count(), models.Model.objects.get().version) == (0, 0, version)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # a broker that accepts and never answers
        web.environment[names.ENV_VALKEY_URL] = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        web.start()
        second = in_background(client, key("a"))
        until("the change is committed", lambda: rebalances() == 1)
        kill(web)
        second.join()
    del web.environment[names.ENV_VALKEY_URL]
    web.start()
    answer = client.post(ADDRESS, json=SIZES, headers=key("a"))
    assert (answer.status_code, answer.headers["idempotency-replayed"]) == (202, "true")
    assert answer.json()["id"] == models.Operation.objects.get(verb="rebalance").pk
    assert rebalances() == models.AuditEntry.objects.filter(verb="rebalance").count() == 1


def _waiting(postgres: EmbeddedPostgres) -> bool:
    """Whether some session waits for a row's lock."""
    with psycopg.connect(postgres.urls.admin) as connection:
        found = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%fleet_model%'"
        ).fetchone()
    return found is not None and found[0] > 0
