"""Requests to the REST API as the network brings them: who asks, what bodies hold, and how lists are read."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import CommandError
from django.utils import timezone

from controlplane.api.models import ApiToken
from controlplane.api.parsing import MAX_BYTES
from controlplane.core import names
from controlplane.fleet import models
from controlplane.stack.ports import free_port
from tests.console_web import Web
from tests.integration.api_kit import CONFIG, Client, one_model, problem, shared_web, token_of

pytestmark = pytest.mark.django_db(transaction=True)
LIMITED = {
    "TWINPOOL_API_CHANGES_PER_MINUTE": "3",
    "TWINPOOL_API_STRANGERS_PER_MINUTE": "4",
    names.ENV_VALKEY_URL: "redis://127.0.0.1:1/0",
}


@pytest.fixture(scope="module")
def web(valkey_url: str, django_db_setup: None) -> Web:
    return shared_web()


@pytest.fixture
def client(web: Web) -> Iterator[Client]:
    with Client(web.url, token_of("admin")) as client:
        yield client


def test_nobody_is_let_in_without_a_token_that_counts(web: Web, client: Client) -> None:
    row = ApiToken.objects.get()
    with Client(web.url, "") as stranger:
        del stranger.headers["authorization"]
        answer = stranger.get("models")
        problem(answer, 401, "not_signed_in")
        assert answer.headers["www-authenticate"] == "Bearer"
        for wrong in ("", "x", "x y", "tp-" + "0" * 64, "\xff" * 70, row.token_key, row.digest):
            header = f"Bearer {wrong}".strip().encode("latin1")
            problem(stranger.get("models", headers={b"authorization": header}), 401, "not_signed_in")
        problem(stranger.post("models", json={}), 401, "not_signed_in")
        problem(stranger.get("/api/schema/"), 401, "not_signed_in")
    ApiToken.objects.update(expiry=timezone.now() - timedelta(seconds=1))
    problem(client.get("models"), 401, "not_signed_in")


def test_a_token_of_a_user_who_may_sign_in_no_more_is_refused(client: Client) -> None:
    User.objects.update(is_active=False)
    problem(client.get("models"), 401, "not_signed_in")


def test_a_browser_that_is_signed_in_needs_the_csrf_token_for_changes(web: Web, client: Client) -> None:
    user = User.objects.get()
    user.set_password("correct-horse-battery")
    user.save()
    with httpx.Client(base_url=web.url, headers={"origin": web.url}, timeout=60) as browser:
        browser.get("/login")
        form = {
            "username": "admin",
            "password": "correct-horse-battery",
            "csrfmiddlewaretoken": browser.cookies["csrftoken"],
        }
        assert browser.post("/login", data=form).status_code == 302
        assert browser.get("/api/v1/nodes").is_success
        new = {"name": "n9"}
        assert "CSRF" in problem(browser.post("/api/v1/nodes", json=new), 403, "forbidden")["detail"]
        elsewhere = {"origin": "http://evil.test", "x-csrftoken": browser.cookies["csrftoken"]}
        problem(browser.post("/api/v1/nodes", json=new, headers=elsewhere), 403, "forbidden")
        assert not models.Node.objects.exists()
        answer = browser.post("/api/v1/nodes", json=new, headers={"x-csrftoken": browser.cookies["csrftoken"]})
        assert answer.status_code == 202
        assert models.AuditEntry.objects.get(verb="add_node").actor == "admin"


def test_a_token_is_shown_once_and_kept_as_a_digest(web: Web, capsys: Any) -> None:
    User.objects.create_user("ann")
    call_command("add_token", "ann", "ci", "--days", "2")
    shown = json.loads(capsys.readouterr().out)
    with Client(web.url, shown["token"]) as ann:
        assert ann.get("models").is_success
        assert shown["token"] not in json.dumps(
            [*ApiToken.objects.values(), *models.AuditEntry.objects.values()], default=str
        )
        with pytest.raises(CommandError, match="has a token ci already"):
            call_command("add_token", "ann", "ci")
        for wrong in (("nobody", "ci"), ("ann", "a b"), ("ann", "y", "--days", "0")):
            with pytest.raises(CommandError, match="refused"):
                call_command("add_token", *wrong)
        call_command("revoke_token", "ann", "ci")
        problem(ann.get("models"), 401, "not_signed_in")
    with pytest.raises(CommandError, match="has no token 'ci'"):
        call_command("revoke_token", "ann", "ci")


HOSTILE: list[tuple[bytes, int, str]] = [
    (b"", 400, "name"),
    (b"{", 400, "not JSON"),
    (b"\xff\xfe", 400, "not UTF-8"),
    (b"[]", 400, "must be a JSON object, not an array"),
    (b"null", 400, "not null"),
    (b'"x"', 400, "not a text"),
    (b'{"name": NaN}', 400, "NaN"),
    (b'{"name": 1e999}', 400, "too large"),
    (b'{"name": "a", "name": "b"}', 400, "comes twice"),
    (b'{"name": "a\\u0000b"}', 400, "NUL"),
    (b'{"a\\u0000": 1}', 400, "NUL"),
    (b'{"name": "\\ud800"}', 400, "surrogate"),
    (b'{"name": ' + b"9" * 5000 + b"}", 400, "digits"),
    (b'{"name": ' + b"9" * 40 + b"}", 400, "name: Not a valid"),
    (b'{"name": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, "deeper than"),
    (b'{"labels": ' + b'{"a":' * 40 + b"1" + b"}" * 40 + b"}", 400, "deeper than"),
    (b'{"name": "n", "nmae": 1}', 400, "nmae: Unknown field; known: labels, name, reason"),
    (b'{"name": ["n"]}', 400, "name: Not a valid string"),
    (b'{"name": true}', 400, "name: Not a valid string"),
    (b'{"name": null}', 400, "name: This field may not be null"),
    (b'{"name": "n", "labels": []}', 400, "labels: Expected a dictionary"),
    (b'{"name": "n", "labels": {"a": {}}}', 400, "labels.a: Not a valid string"),
    (b'{"name": "n", "labels": {"a b": "c"}}', 400, "is no label"),
    (b'{"name": "n", "labels": ' + json.dumps({f"k{i}": "" for i in range(70)}).encode() + b"}", 400, "At most 64"),
    (b'{"name": "' + b"n" * 64 + b'"}', 400, "name: Ensure this field has no more than 63"),
    (b'{"name": "n", "reason": "' + b"r" * 501 + b'"}', 400, "reason: Ensure"),
    (b'{"name": "../n"}', 422, "no node name"),
    (b'{"name": "' + b"n" * (MAX_BYTES + 1) + b'"}', 413, "more than"),
]


def test_a_hostile_body_is_one_clear_refusal(client: Client) -> None:
    for body, status, says in HOSTILE:
        answer = client.post("nodes", content=body, headers={"content-type": "application/json"})
        kind = {400: None, 422: "invalid", 413: "too_large"}[status]
        found = problem(answer, status, kind or answer.json()["kind"])
        assert says in found["detail"], body[:100]
        assert not models.Node.objects.exists(), body[:100]


WRONG_FIELDS: list[tuple[str, str, Any, str]] = [
    ("put", "models/m/pools/decode", {"engines": "3"}, "engines"),
    ("put", "models/m/pools/decode", {"engines": 1.5}, "engines"),
    ("put", "models/m/pools/decode", {"engines": True}, "engines"),
    ("put", "models/m/pools/decode", {"engines": -1}, "engines"),
    ("put", "models/m/pools/decode", {"engines": 10**30}, "engines"),
    ("put", "models/m/pools/decode", {}, "engines"),
    ("post", "models/m/rebalance", {"pools": {}}, "pools"),
    ("post", "models/m/rebalance", {"pools": {"prefil": 1}}, "pools"),
    ("post", "models/m/rebalance", {"pools": {"prefill": None}}, "pools.prefill"),
    ("put", "models/m/mode", {"mode": "both"}, "mode"),
    ("put", "models/m/mode", {"mode": {}}, "mode"),
    ("put", "models/m/mode", {"mode": "conditional", "min_uncached_ratio": 2}, "min_uncached_ratio"),
    ("put", "models/m/canary", {"mode": "monolithic", "guardrails": {"margin": 5}}, "guardrails"),
    ("put", "models/m/canary", {"mode": "monolithic", "guardrails": {"limit": 1}}, "guardrails.limit"),
    ("put", "models/m/canary", {"mode": "monolithic", "steps": [0.1, "x"]}, "steps[1]"),
    ("put", "models/m/freeze", {"until": "tomorrow"}, "until"),
    ("patch", "models/m", {"strict": "yes"}, "strict"),
    ("patch", "models/m", {"aliases": "a"}, "aliases"),
    ("patch", "models/m", {"selectors": {"decode": {"gpu_kind": []}}}, "selectors.decode.gpu_kind"),
    ("post", "models", {"name": "x", "source": "x", "config": "{}"}, "config"),
    (
        "post",
        "models",
        {"name": "x", "source": "x", "config": {}, "pools": [{"role": "prefill", "engines": "1"}]},
        "pools[0].engines",
    ),
    ("post", "models", {"name": "x", "source": "x", "config": {}, "pools": {}}, "pools"),
    ("post", "operations/1/cancel", {"why": ""}, "why"),
    ("get", "models?page_size=0", None, "page_size"),
    ("get", "models?page_size=10000000000000000000000", None, "page_size"),
    ("get", "models?limit=1", None, "limit"),
    ("get", "models?order=source", None, "order"),
    ("get", "models?order=name&order=id", None, "order"),
    ("get", "models?team=%00", None, "team"),
    ("get", "operations?state=x&since=y", None, "state"),
    ("get", "operations/1?wait=61", None, "wait"),
    ("get", "engines/m-1/log?lines=0", None, "lines"),
    ("delete", "models/m?dry_run=maybe", None, "dry_run"),
]


def test_a_wrong_field_is_named(client: Client) -> None:
    one_model()
    before = models.Operation.objects.count()
    for method, address, body, field in WRONG_FIELDS:
        answer = client.request(method, address, json=body) if body is not None else client.request(method, address)
        found = problem(answer, 400, "invalid_fields")
        assert field in [each["field"] for each in found["errors"]], (address, body)
        assert models.Operation.objects.count() == before, (address, body)


def test_what_is_not_json_and_what_wants_none_is_told_so(client: Client) -> None:
    problem(client.post("nodes", data={"name": "n"}), 415, "not_json")
    problem(client.post("nodes", content=b"{}", headers={"content-type": "text/plain"}), 415, "not_json")
    problem(client.get("nodes", headers={"accept": "text/html"}), 406, "not_acceptable")
    answer = client.put("nodes", json={})
    problem(answer, 405, "no_such_method")
    assert "POST" in answer.headers["allow"]


NOWHERE = [
    *("nothing", "", "models/", "models/a/b", "models/%00", "models/-x", "models/../../healthz", "models/m%2F..%2Fn"),
    *("models/%ff", "operations/x", "operations/1" + "0" * 30, "engines/a'b", "nodes/n.1", "models/m/pools/%27--"),
    *("models/none", "operations/999999999999999999", "engines/none", "nodes/none", "models/m/pools/none"),
]


def test_where_there_is_nothing_the_answer_is_404(client: Client) -> None:
    one_model()
    for address in NOWHERE:
        raw = f"/api/v1/{address}".encode()
        answer = client.get(client.base_url.copy_with(raw_path=raw))
        assert answer.status_code == 404, address
        problem(answer, 404, "not_found")


def test_a_body_in_chunks_counts_and_one_without_an_end_is_refused(client: Client) -> None:
    def chunks(total: int) -> Iterator[bytes]:
        yield b'{"name": "n5", "reason": "'
        for _ in range(total // 1000):
            yield b"r" * 1000
        yield b'"}'

    headers = {"content-type": "application/json"}
    problem(client.post("nodes", content=chunks(1000), headers=headers), 400, "invalid_fields")
    assert client.post("nodes", content=chunks(0), headers=headers).status_code == 202
    address = (client.base_url.host, client.base_url.port or 0)
    with socket.create_connection(address, timeout=60) as raw:
        head = f"POST /api/v1/nodes HTTP/1.1\r\nhost: {address[0]}\r\nauthorization: {client.headers['authorization']}\r\n"
        raw.sendall(f"{head}content-type: application/json\r\ncontent-length: {MAX_BYTES + 1}\r\n\r\n".encode())
        assert raw.recv(100).startswith(b"HTTP/1.1 413")


def test_every_list_is_read_page_by_page_without_a_row_twice_or_missing(client: Client) -> None:
    one_model("a/m", prefill=3, decode=4)
    one_model("b", prefill=1, decode=0)
    for number in range(5):
        client.post("nodes", json={"name": f"x{number}"})
    for name, key, total in (("models", "name", 2), ("nodes", "name", 6), ("gpus", "uuid", 8), ("engines", "id", 8)):
        for order in (key, f"-{key}"):
            found, next_page = [], f"/api/v1/{name}?page_size=3&order={order}"
            while next_page:
                answer = client.get(next_page)
                assert answer.is_success, (next_page, answer.text)
                page = answer.json()
                assert len(page["items"]) <= 3
                found += [item[key] for item in page["items"]]
                next_page = page["next"]
            assert found == sorted(found, reverse=order.startswith("-"))
            assert len(set(found)) == len(found) == total, name
    operations = client.get("operations?page_size=2").json()
    assert [each["id"] for each in operations["items"]] == sorted((each["id"] for each in operations["items"]), reverse=True)
    for wrong in ("x", "%00", "WyJpZCIsICIxIl0", "8J+YgA", "e30", "WyItaWQiLCAi4oKsIl0", "W" * 401):
        assert client.get(f"operations?cursor={wrong}").status_code == 400, wrong


def test_lists_are_filtered(client: Client) -> None:
    one_model("a/m", prefill=3, decode=4)
    one_model("b", team="", prefill=1, decode=0)
    client.put("models/b/mode", json={"mode": "monolithic", "split": {"mixed": 1}})

    def ids(address: str, key: str) -> list[Any]:
        return [item[key] for item in client.get(address).json()["items"]]

    assert ids("models?team=search", "name") == ["a/m"]
    assert ids("models?mode=monolithic", "name") == ["b"]
    assert len(ids("engines?model=a/m&role=decode", "id")) == 4
    assert ids("engines?state=failed", "id") == []
    assert len(ids("engines?node=n1&wanted=true", "id")) == 8
    assert len(ids("gpus?free=true", "uuid")) == 0
    assert ids("pools?model=b&role=prefill", "states") == [{"ready": 1}]
    assert ids("operations?open=true", "verb") == ["set_mode"]
    assert ids("operations?model=a/m&verb=register_model&actor=root", "state") == ["done"]
    assert ids("operations?since=2100-01-01T00:00Z", "id") == []


def test_a_document_that_the_client_has_is_not_sent_again(client: Client) -> None:
    one_model()
    for address in ("models/m", f"operations/{models.Operation.objects.latest('pk').pk}"):
        first = client.get(address)
        tag = first.headers["etag"]
        for known in (tag, f"W/{tag}", f'"x", {tag}', "*"):
            again = client.get(address, headers={"if-none-match": known})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert client.get(address, headers={"if-none-match": '"x"'}).json() == first.json()
    client.patch("models/m", json={"slo_itl_ms": 40})
    assert client.get("models/m", headers={"if-none-match": tag}).json()["slo_itl_ms"] == 40


def test_too_many_changes_are_told_when_to_come_back_and_a_broker_that_is_away_stops_none(django_db_setup: None) -> None:
    web = Web(free_port(), LIMITED)
    web.start()
    try:
        with Client(web.url, token_of("admin")) as client:
            answers = [client.post("nodes", json={"name": f"x{number}"}) for number in range(4)]
            assert [answer.status_code for answer in answers] == [202, 202, 202, 429]
            problem(answers[3], 429, "too_many")
            assert 1 <= int(answers[3].headers["retry-after"]) <= 61
            strangers = [client.get("nodes", headers={"authorization": "Bearer none"}) for _ in range(5)]
            assert [answer.status_code for answer in strangers] == [401, 401, 401, 401, 429]
            problem(strangers[4], 429, "too_many")
            assert 1 <= int(strangers[4].headers["retry-after"]) <= 61
            assert client.get("nodes").is_success
            one_model()
            problem(client.get("engines/m-1/log"), 504, "no_answer")
            problem(client.get("engines/none/log"), 404, "not_found")
    finally:
        web.stop()


def test_a_models_config_is_checked_as_the_command_line_checks_it(client: Client) -> None:
    new = {"name": "x", "source": "x", "config": CONFIG, "engine_args": {"--shell": "rm"}, "engine_kind": "simulated"}
    problem(client.post("models", json=new), 422, "invalid")
    problem(client.post("models", json={**new, "engine_args": {}, "config": {"hidden_size": 10**39}}), 422, "invalid")
    assert not models.Model.objects.exists()
