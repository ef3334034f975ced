"""How an operation goes on, told by the API: long polls and events, both from rows."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psycopg
import pytest
from django.db import connection as own_connection
from django.db import transaction
from django.utils import timezone

from controlplane.api.watch import EVERY_S
from controlplane.core import names
from controlplane.fleet import models
from controlplane.stack.postgres import EmbeddedPostgres
from tests.console_web import Web
from tests.integration.api_kit import SHARED, Client, one_model, problem, shared_web, token_of
from tests.integration.control_kit import until

pytestmark = pytest.mark.django_db(transaction=True)
LONG_S = 60


@pytest.fixture(scope="module")
def web(valkey_url: str, django_db_setup: None) -> Web:
    return shared_web()


@pytest.fixture
def client(web: Web) -> Iterator[Client]:
    one_model()
    with Client(web.url, token_of("operator")) as client:
        yield client


@pytest.fixture
def operation(client: Client) -> int:
    """A rebalance that runs, with one step."""
    answer = client.post("models/m/rebalance", json={"pools": {"prefill": 1, "decode": 3}})
    return int(answer.json()["id"])


def end(operation: int) -> None:
    with transaction.atomic():
        models.Step.objects.filter(operation=operation).update(state="done", finished_at=timezone.now())
        models.Operation.objects.filter(pk=operation).update(state="done", outcome="moved", finished_at=timezone.now())


class Events:
    """Reads a stream in a thread: (event, data) as they come."""

    def __init__(self, client: Client, operation: int, **headers: str) -> None:
        self.seen: list[tuple[str, Any]] = []
        self.ids: list[str] = []
        self.status = 0
        self._own = httpx.Client(base_url=client.base_url, headers=dict(client.headers) | headers, timeout=LONG_S)
        self._address = f"/api/v1/operations/{operation}/events"
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with self._own as own, own.stream("GET", self._address) as answer:
            self.status = answer.status_code
            name = ""
            for line in answer.iter_lines():
                field, _, value = line.partition(": ")
                if field == "event":
                    name = value
                elif field == "id":
                    self.ids.append(value)
                elif field == "data":
                    self.seen.append((name, json.loads(value)))

    def join(self) -> None:
        self._thread.join(LONG_S)
        assert not self._thread.is_alive(), "the stream did not end"


def sessions(postgres: EmbeddedPostgres) -> int:
    """Connections that the web process (and this test) has."""
    with psycopg.connect(postgres.urls.admin) as connection:
        found = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE usename = 'app'").fetchone()
    return int(found[0]) if found else 0


def quiet_s(postgres: EmbeddedPostgres) -> float:
    """Seconds since the web process last asked for operations by number."""
    asked = "SELECT extract(epoch FROM now() - max(query_start)) FROM pg_stat_activity WHERE query LIKE %s"
    with psycopg.connect(postgres.urls.admin) as connection:
        found = connection.execute(asked, ['%fleet_operation"."id" IN%']).fetchone()
    return float(found[0]) if found and found[0] is not None else float("inf")


def test_a_stream_tells_each_change_and_ends_with_the_operation(client: Client, operation: int) -> None:
    events = Events(client, operation, accept="text/event-stream")
    until("the first event came", lambda: events.seen)
    assert (events.status, events.seen[0][0], events.seen[0][1]["id"]) == (200, "operation", operation)
    models.Step.objects.filter(operation=operation).update(state="running", engine="m-1", reason="fewest requests")
    until("the step's change came", lambda: len(events.seen) == 2)
    assert events.seen[1][1]["steps"][0]["reason"] == "fewest requests"
    end(operation)
    events.join()
    assert [name for name, _ in events.seen] == ["operation", "operation", "operation", "end"]
    assert events.seen[2][1]["outcome"] == "moved"
    assert events.ids[2] == client.get(f"operations/{operation}").headers["etag"]


def test_a_stream_that_is_taken_up_again_tells_only_what_is_new(client: Client, operation: int) -> None:
    tag = client.get(f"operations/{operation}").headers["etag"]
    events = Events(client, operation, **{"last-event-id": tag})
    end(operation)
    events.join()
    assert [(name, data.get("state")) for name, data in events.seen] == [("operation", "done"), ("end", None)]
    events = Events(client, operation)
    events.join()
    assert [name for name, _ in events.seen] == ["operation", "end"]


def test_a_stream_is_for_those_who_may_read(web: Web, client: Client, operation: int) -> None:
    problem(httpx.get(f"{web.url}/api/v1/operations/{operation}/events"), 401, "not_signed_in")
    problem(client.get("operations/999/events"), 404, "not_found")
    headers = {"accept": "text/event-stream"}
    problem(client.get("operations/999/events", headers=headers), 404, "not_found")
    problem(client.get(f"operations/{operation}/events?x=1", headers=headers), 400, "invalid_fields")


def test_many_who_wait_hold_no_connection_of_their_own(client: Client, operation: int, postgres: EmbeddedPostgres) -> None:
    """There are fewer than they are, and others are answered all the same."""
    streams = [Events(client, operation) for _ in range(20)]
    polls: list[int] = []
    waiting = [threading.Thread(target=lambda: polls.append(_poll(client, operation))) for _ in range(10)]
    for thread in waiting:
        thread.start()
    until("all streams are open", lambda: all(each.seen for each in streams))
    assert client.get("models/m").is_success and sessions(postgres) <= 1 + int(SHARED[names.ENV_DATABASE_CONNECTIONS])
    end(operation)
    for each in [*streams, *waiting]:
        each.join()
    assert polls == [200] * 10


def _poll(client: Client, operation: int) -> int:
    with httpx.Client(base_url=client.base_url, headers=client.headers, timeout=LONG_S + 30) as own:
        answer = own.get(f"/api/v1/operations/{operation}?wait={LONG_S}")
        assert answer.json()["state"] == "done"
        return answer.status_code


def test_a_client_that_leaves_is_waited_for_no_longer(client: Client, operation: int, postgres: EmbeddedPostgres) -> None:
    address, headers = f"{client.base_url}/api/v1/operations/{operation}/events", dict(client.headers)
    with httpx.stream("GET", address, headers=headers, timeout=LONG_S) as answer:
        assert answer.status_code == 200
        until("the reader asks again and again", lambda: quiet_s(postgres) < EVERY_S)
    until("the reader has gone", lambda: quiet_s(postgres) > 8 * EVERY_S)


def test_a_long_poll_comes_back_when_the_operation_has_ended(client: Client, operation: int) -> None:
    def work() -> None:
        models.Step.objects.filter(operation=operation).update(state="running")
        time.sleep(1)  # the poll must sleep through what is no end
        end(operation)

    changing = threading.Thread(target=work)
    changing.start()
    assert client.get(f"operations/{operation}?wait={LONG_S}").json()["state"] == "done"
    changing.join()
    assert client.get(f"operations/{operation}?wait={LONG_S}").json()["state"] == "done"


def test_a_long_poll_with_a_tag_comes_back_at_the_next_change(client: Client, operation: int) -> None:
    address, tag = f"operations/{operation}", client.get(f"operations/{operation}").headers["etag"]
    assert client.get(f"{address}?wait=1", headers={"if-none-match": tag}).status_code == 304
    changing = threading.Timer(0.5, lambda: models.Operation.objects.filter(pk=operation).update(state="running"))
    changing.start()
    answer = client.get(f"{address}?wait={LONG_S}", headers={"if-none-match": tag})
    changing.join()
    assert (answer.status_code, answer.json()["state"]) == (200, "running")
    assert client.get(f"{address}?wait={LONG_S}", headers={"if-none-match": tag}).json()["state"] == "running"
    assert client.get(f"{address}?wait=1").json()["state"] == "running"
    problem(client.get(f"operations/999?wait={LONG_S}"), 404, "not_found")


def test_a_stream_lives_through_a_database_that_is_away(client: Client, operation: int, postgres: EmbeddedPostgres) -> None:
    events = Events(client, operation)
    until("the first event came", lambda: events.seen)
    with psycopg.connect(postgres.urls.admin, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")
    until("this test has a connection again", _reconnected)
    end(operation)
    events.join()
    assert events.seen[-1][0] == "end"


def _reconnected() -> bool:
    own_connection.close()
    return models.Operation.objects.exists()
