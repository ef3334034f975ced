"""What the API says of itself, in OpenAPI and in docs/api.md, is what it does."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client as Visitor
from django.test.utils import CaptureQueriesContext
from jsonschema import Draft202012Validator

from controlplane.api import documents, schema, selectors
from controlplane.api.documents_planner import ProposalDocument
from controlplane.api.rendering import encode
from controlplane.api.showing import show_all
from controlplane.api.views_audit import AuditDocument
from controlplane.control import actions
from controlplane.control.actor import ACCOUNT_VERBS, VERBS
from controlplane.control.planning.selectors import all_proposals
from controlplane.fleet import models
from tests.console_web import Web
from tests.integration.api_kit import Client, one_model, shared_web, token_of
from tests.integration.control_kit import ANN
from tests.integration.control_rows import fleet
from tests.integration.planner_rows import proposal

pytestmark = pytest.mark.django_db(transaction=True)
QUERIES = {
    "models": 2,
    "models/a": 2,
    "models/a/mode": 1,
    "models/a/pools/prefill": 2,
    "pools": 2,
    "engines": 2,
    "engines/a-1": 2,
    "gpus": 1,
    "nodes": 1,
    "nodes/n1": 1,
    "operations": 1,
    "audit": 1,
    "alerts": 2,
    "proposals": 1,
}
"""By address, beside the one that asks whose token it is. However many rows there are."""
DOCS = Path(__file__).parents[2] / "docs" / "api.md"


@pytest.fixture(scope="module")
def web(valkey_url: str, django_db_setup: None) -> Web:
    return shared_web()


def test_the_description_is_valid_and_complete(tmp_path: Path) -> None:
    file = tmp_path / "openapi.json"
    call_command("spectacular", "--validate", "--fail-on-warn", "--format", "openapi-json", "--file", str(file))
    description = json.loads(file.read_text())
    assert description["openapi"].startswith("3.1")
    found = {each["operationId"] for path in description["paths"].values() for each in path.values()}
    steering = {"cancel", "pause", "resume", "rollback"}
    elsewhere = {"exchange_roles", "remove_model", "set_owner", "steer_canary", "set_guardrails"}
    elsewhere |= {"set_alert_rule", "try_channel", "add_channel", "update_channel", "remove_channel", "set_priority"}
    elsewhere |= {"apply_model", "set_team", "remove_team", "add_join_token", "revoke_join_token"}
    elsewhere |= {"rotate_secret", *ACCOUNT_VERBS}
    missing = {verb for verb in VERBS if verb not in found and f"{verb}_operation" not in found} - elsewhere
    assert not missing, "verbs without an address"
    assert {f"{verb}_operation" for verb in steering} <= found
    for path, methods in description["paths"].items():
        for method, each in methods.items():
            statuses = set(each["responses"])
            assert {"400", "401", "403", "404", "429", "503"} <= statuses, (path, method)
            if method != "get" and path != "/api/v1/advisor":  # a question changes nothing
                assert {"202", "409", "412", "413", "415", "422"} <= statuses, (path, method)


def test_every_body_and_every_refusal_has_an_example_that_is_one() -> None:
    description = schema.document()
    examples = 0
    for path, methods in description["paths"].items():
        for method, each in methods.items():
            media = each.get("requestBody", {}).get("content", {}).get("application/json", {})
            for example in media.get("examples", {}).values():
                _validate(description, media["schema"], example["value"])
                examples += 1
            named = each["operationId"].removesuffix("_operation") in VERBS
            body = media.get("schema", {}).get("$ref", "").endswith("ReasonBody")
            assert not named or not media or body or media.get("examples") or each["operationId"] == "apply_state", path
            for status, answer in each["responses"].items():
                if status >= "400":
                    told = answer["content"]["application/problem+json"]["examples"].values()
                    assert [example["value"]["status"] for example in told] == [int(status)], (path, method, status)
    assert examples >= 15


def test_answers_have_the_form_that_the_description_gives(web: Web) -> None:
    one_model()
    with Client(web.url, token_of("operator")) as client:
        description = client.get("/api/schema/").json()
        assert b"openapi:" in client.get("/api/schema/", headers={"accept": "application/vnd.oai.openapi"}).content
        operation = client.post("models/m/rebalance", json={"pools": {"prefill": 1, "decode": 3}}).json()["id"]
        reads = (
            "audit",
            "state",
            "models",
            "pools",
            "engines",
            "gpus",
            "nodes",
            "operations",
            "models/m",
            "models/m/mode",
            "engines/m-1",
        )
        for address in (*reads, "nodes/n1", "models/m/pools/decode", f"operations/{operation}"):
            template = re.sub(r"^models/m", "models/{name}", address).replace("nodes/n1", "nodes/{name}")
            template = template.replace("engines/m-1", "engines/{engine}").replace("pools/decode", "pools/{role}")
            template = re.sub(r"operations/\d+", "operations/{operation}", template)
            answer = client.get(address)
            responses = description["paths"][f"/api/v1/{template}"]["get"]["responses"]
            _validate(description, responses["200"]["content"]["application/json"]["schema"], answer.json())
        refused = client.post("models/m/rebalance", json={"pools": {"prefill": 2}})
        _validate(description, {"$ref": "#/components/schemas/ProblemDocument"}, refused.json())


def _validate(description: dict[str, Any], schema: dict[str, Any], value: Any) -> None:
    whole = {**schema, "components": description["components"]}
    assert not [f"{error.json_path}: {error.message}" for error in Draft202012Validator(whole).iter_errors(value)]


def test_a_page_takes_as_many_queries_for_one_row_as_for_many() -> None:
    one_model("a", prefill=1, decode=0)
    visitor = Visitor(SERVER_NAME="localhost", headers={"authorization": f"Bearer {token_of('viewer')}"})
    for name in "bc":
        for address, queries in QUERIES.items():
            with CaptureQueriesContext(connection) as counted:
                answer = visitor.get(f"/api/v1/{address}")
            assert answer.status_code == 200 and (address == "proposals" or answer.json()), address
            told = [each["sql"] for each in counted.captured_queries if not each["sql"].startswith("UPDATE")]  # its last use
            assert len(told) == 1 + queries, (address, told)
        one_model(name, prefill=2, decode=1)
        models.Node.objects.create(name=f"n-{name}")


@pytest.mark.django_db
def test_a_document_has_what_its_serializer_says() -> None:
    """Rows are read by `showing`, which takes the serializer's word for what there is and how it is called."""
    fleet("disaggregated", prefill=2, decode=2)
    actions.rebalance(ANN, "m", {"prefill": 1, "decode": 3}, reason="evening")
    proposal(models.Model.objects.get())
    engines, pools = list(selectors.all_engines()), list(selectors.all_pools())
    selectors.find_ranks(engines)
    selectors.count_states(pools)
    shown: list[tuple[Any, Any]] = [
        (documents.ModelDocument, selectors.all_models()),
        (documents.ModeDocument, models.Model.objects.all()),
        (documents.EngineDocument, engines),
        (documents.PoolDocument, pools),
        (documents.GpuDocument, selectors.all_gpus()),
        (documents.NodeDocument, selectors.all_nodes()),
        (documents.OperationSummary, selectors.all_operations()),
        (documents.OperationDocument, selectors.operations_with_steps()),
        (AuditDocument, models.AuditEntry.objects.all()),
        (ProposalDocument, all_proposals()),
    ]
    for document, rows in shown:
        assert len(rows)
        wanted = document(rows, many=True).data
        assert json.loads(encode(show_all(document, rows))) == json.loads(encode(wanted)), document


def test_the_examples_of_the_documentation_do_what_it_says(web: Web, tmp_path: Path) -> None:
    one_model("llama-70b")
    blocks = re.findall(r"^```(bash|json)\n(.*?)^```$", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    environment = {"TWINPOOL": web.url, "TOKEN": token_of("operator"), "PATH": "/usr/local/bin:/usr/bin:/bin"}
    told = ""
    for kind, text in blocks:
        if kind == "bash":
            told = _run("set -eu\n" + text, environment, tmp_path)
        else:
            _compare(json.loads(text), json.loads(told), "")
    assert sum(kind == "bash" for kind, _ in blocks) >= 8


def _run(script: str, environment: dict[str, str], folder: Path) -> str:
    done = subprocess.run(
        ["bash", "-c", script], env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, (script, done.stderr)
    return done.stdout


def _compare(example: Any, found: Any, at: str) -> None:
    """All that the example has is found; what it leaves out may be anything."""
    if isinstance(example, dict):
        for name, value in example.items():
            assert name in found, f"{at}.{name} is not in the answer"
            _compare(value, found[name], f"{at}.{name}")
    elif isinstance(example, list):
        assert len(example) == len(found), at
        for index, value in enumerate(example):
            _compare(value, found[index], f"{at}[{index}]")
    else:
        assert example == found, at
