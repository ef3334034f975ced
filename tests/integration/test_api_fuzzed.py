"""What the API's description allows, and what it does not, sent to the running server by people of every role: no answer is
an accident, none is of a status, type or form that the description does not have.

A few requests of each operation; TWINPOOL_FUZZ_EXAMPLES=200 makes it many, and TWINPOOL_FUZZ_SEED others.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks, not_a_server_error

from controlplane.fleet import models
from tests.console_web import Web
from tests.integration.alert_kit import firing
from tests.integration.api_kit import ROLES, Client, one_model, shared_web, token_of
from tests.integration.planner_rows import proposal

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(3600)]
EXAMPLES = int(os.environ.get("TWINPOOL_FUZZ_EXAMPLES", "1"))
SEED = int(os.environ.get("TWINPOOL_FUZZ_SEED", "8"))
STREAMS = frozenset({"follow_operation"})
"""They do not end by themselves; test_api_progress follows them."""
load_all_checks()
CONFORMS = [
    CHECKS.get_one(name)
    for name in (
        *("status_code_conformance", "content_type_conformance"),
        *("response_headers_conformance", "response_schema_conformance"),
    )
]


@pytest.fixture(scope="module")
def web(valkey_url: str, django_db_setup: None) -> Web:
    return shared_web()


@pytest.fixture
def places() -> dict[str, Any]:
    """Path parameters under which there is something."""
    row = one_model()
    return {
        "engine": "m-1",
        "role": "decode",
        "proposal": proposal(row).pk,
        "alert": firing().pk,
        "user": "viewer",
        "operation": models.Operation.objects.filter(model=row).latest("pk").pk,
    }


def of(operation: Any, places: dict[str, Any]) -> dict[str, Any]:
    wanted = {each.name for each in operation.path_parameters}
    known = places | {"name": "n1" if "/nodes/" in operation.path else "m"}
    return {name: value for name, value in known.items() if name in wanted}


def ways(operation: Any, places: dict[str, Any]) -> Iterator[Any]:
    """Requests that the description allows, of what is there and of anything, and some that it forbids."""
    yield operation.as_strategy(path_parameters=of(operation, places))
    yield operation.as_strategy()
    if operation.body or operation.query:
        yield operation.as_strategy(GenerationMode.NEGATIVE, path_parameters=of(operation, places))


@pytest.mark.parametrize("role", ROLES)
def test_every_answer_is_one_that_the_description_has(web: Web, places: dict[str, Any], role: str) -> None:
    token = token_of(role)
    with Client(web.url, token) as client:
        description = client.get("/api/schema/").json()
    schema = schemathesis.openapi.from_dict(description)
    wrong: list[str] = []
    with requests.Session() as session:
        session.headers["Authorization"] = f"Bearer {token}"
        for result in schema.get_all_operations():
            operation = result.ok()
            if operation.definition.raw["operationId"] not in STREAMS:
                for strategy in ways(operation, places):
                    _try(strategy, web.url, session, wrong)
    assert not wrong, "\n\n".join(wrong[:10])


def _try(strategy: Any, url: str, session: requests.Session, wrong: list[str]) -> None:
    @seed(SEED)
    @settings(
        max_examples=EXAMPLES,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def ask(case: Any) -> None:
        answer = case.call(base_url=url, session=session, timeout=120)
        # An agent that does not answer is told as 504, and here there is none.
        accidents = [] if answer.status_code == 504 and case.operation.path.endswith("/log") else [not_a_server_error]
        try:
            case.validate_response(answer, checks=[*CONFORMS, *accidents])
        except Exception as failure:  # noqa: BLE001 - each is told, and the next is tried
            wrong.append(f"{case.as_curl_command()}\n{failure}")

    ask()


RAW = (
    *(b"\x00", b"\xff\xfe{}", b"{" * 1000, b"[" * 1000 + b"]" * 1000, b'{"a":' * 1000 + b"1" + b"}" * 1000),
    *(
        b'{"engines": 1' + b"0" * 400 + b"}",
        b'{"reason": "\\u0000"}',
        b'{"reason": "\\ud800"}',
        b'"' + b"a" * 3_000_000 + b'"',
    ),
    *(b"name=m", b"<a/>", b"version: 1\n", b"&a [*a, *a]", b"!!python/object:os.system {}"),
)
TYPES = (
    "application/json",
    "application/yaml",
    "text/plain",
    "multipart/form-data; boundary=x",
    "application/json; charset=x",
)


def test_no_body_of_any_type_is_an_accident(web: Web, places: dict[str, Any]) -> None:
    """Every address that takes a body, with bytes that no client would send."""
    dice = random.Random(SEED)
    with Client(web.url, token_of("admin")) as client:
        description = client.get("/api/schema/").json()
        addresses = [(method, path) for path, each in description["paths"].items() for method in each if method != "get"]
        for method, path in addresses:
            known = places | {"name": "n1" if "/nodes/" in path else "m", "price": 1, "token": 1, "rule": "pool_empty"}
            for body in dice.sample(RAW, 3):
                answer = client.request(
                    method.upper(), path.format(**known), content=body, headers={"content-type": dice.choice(TYPES)}
                )
                documented = description["paths"][path][method]["responses"]
                assert answer.status_code < 500, (method, path, body[:60])
                assert str(answer.status_code) in documented, (method, path, body[:60], answer.status_code)
                if method != "delete":  # it has no body, and what is sent is not read
                    assert answer.status_code in (400, 404, 409, 412, 413, 415, 422), (method, path, body[:60])
