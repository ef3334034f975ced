"""POST /api/v1/advisor: advice without a cluster, computed beside the web process, and everything that cannot be asked."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import pytest
from django.core.management import call_command
from jsonschema import Draft202012Validator

from controlplane.control.actions import set_price
from controlplane.control.actor import Actor
from controlplane.physics.catalog import read_config
from tests.console_web import Web
from tests.integration.api_kit import Client, problem, shared_web, token_of

pytestmark = pytest.mark.django_db(transaction=True)
QUESTION: dict[str, Any] = {
    "model": "llama-3.1-70b",
    "gpu": "h100-sxm",
    "gpus": 64,
    "network_gbps": 400,
    "input_tokens": 4096,
    "output_tokens": 640,
    "seeds": 0,
}


@pytest.fixture(scope="module")
def web(valkey_url: str, django_db_setup: None) -> Web:
    return shared_web()


@pytest.fixture
def client(web: Web) -> Any:
    with Client(web.url, token_of("viewer")) as found:
        yield found


def told(client: Client, body: dict[str, Any]) -> httpx.Response:
    """The last answer to a question, asked for again where the first one says."""
    answer = client.post("advisor", json=body)
    deadline = time.monotonic() + 240
    while answer.status_code == 202:
        assert time.monotonic() < deadline
        assert answer.headers["retry-after"] == "1" and answer.json()["state"] in ("waiting", "working")
        time.sleep(0.1)
        answer = client.get(answer.headers["location"])
    return answer


def without(*names: str, **more: Any) -> dict[str, Any]:
    return {name: value for name, value in QUESTION.items() if name not in names} | more


def test_a_viewer_is_advised_by_the_reference_numbers(client: Client) -> None:
    answer = told(client, QUESTION)
    assert answer.status_code == 200 and answer.json()["state"] == "done", answer.text
    advice = answer.json()["advice"]
    assert advice["transfer"]["kv_bytes_per_token"] == 327_680
    assert advice["transfer"]["kv_bytes_per_request"] == pytest.approx(1.342e9, rel=1e-3)
    assert round(advice["transfer"]["wire_ms_at_100_gbps"]) == 107 and round(advice["transfer"]["wire_ms_at_400_gbps"]) == 27
    assert advice["verdict"] == "yes" and [check["state"] for check in advice["checks"]] == ["pass"] * 6
    assert len(advice["forecasts"]) == 3 and advice["gain"]["low"] > 0 and advice["flips"]
    assert advice["inputs"]["seeds"] == 0
    assert advice["kv_terms"] == {"layers": 80, "kv_heads": 8, "head_dim": 128, "element_bytes": 2}
    again = client.post("advisor", json=QUESTION)
    assert again.status_code == 200 and again.json()["advice"] == advice, "an answer is kept"


def test_the_closed_form_comes_first_and_the_simulation_after_it(client: Client) -> None:
    body = without(model="qwen3-0.6b", gpus=2, input_tokens=2000, output_tokens=64, seeds=1)
    seen = [client.post("advisor", json=body)]
    deadline = time.monotonic() + 240
    while seen[-1].status_code == 202:
        assert time.monotonic() < deadline
        time.sleep(0.05)
        seen.append(client.get(seen[-1].headers["location"]))
    final = seen[-1].json()
    assert final["state"] == "done" and final["advice"]["inputs"]["seeds"] == 1 and final["reason"] == ""
    before = [each.json() for each in seen[:-1]]
    assert before[0]["advice"] is None
    assert all(each["advice"]["inputs"]["seeds"] == 0 for each in before if each["advice"])
    shares = [each["share"] for each in before if each["share"] is not None]
    assert shares == sorted(shares) and all(0 <= share < 1 for share in shares)


def test_few_gpus_and_tcp_name_the_check_that_fails(client: Client) -> None:
    advice = told(client, without(gpus=8, transport="tcp")).json()["advice"]
    assert {check["name"] for check in advice["checks"] if check["state"] == "fail"} == {"gpus", "transport"}
    assert advice["verdict"] != "yes"


def test_short_requests_stay_whole_and_the_sentence_says_why(client: Client) -> None:
    advice = told(client, without(input_tokens=210, output_tokens=60)).json()["advice"]
    assert advice["verdict"] == "no" and advice["mode"] == "monolithic" and "210 prompt" in advice["sentence"]


def test_prices_are_the_price_books_unless_others_are_given_and_every_cost_is_at_them(client: Client) -> None:
    set_price(Actor("ada", "admin"), "h100-sxm", "4.00")
    body = without(gpus=32, rate=2.0)
    by_book, given = (told(client, each).json()["advice"] for each in (body, body | {"prices": {"h100-sxm": 1.0}}))
    assert by_book["inputs"]["prices"] == {"h100-sxm": 4.0} and given["inputs"]["prices"] == {"h100-sxm": 1.0}
    dear, cheap = (advice["forecasts"][0]["cost_per_million_tokens"] for advice in (by_book, given))
    assert dear == pytest.approx(4 * cheap, rel=1e-4)
    splits = by_book["charts"]["splits"]
    assert splits["given"] and splits["requests_per_second"] == 2.0 and splits["layouts"]
    assert all(each["gpus"] <= 32 and each["cost_per_hour"] == pytest.approx(4 * each["gpus"]) for each in splits["layouts"])
    assert [each["gpus"] for each in splits["layouts"]] == sorted(each["gpus"] for each in splits["layouts"])
    assert any(each["within"] for each in splits["layouts"])


def test_the_least_time_to_a_first_token_is_prefill_and_the_transfer_of_each_network(client: Client) -> None:
    drawn = told(client, QUESTION).json()["advice"]["charts"]["first_token"]
    assert drawn["mean_tokens"] == 4096 and drawn["mean_tokens"] in drawn["tokens"]
    at = drawn["tokens"].index(4096)
    wire = {link["gbps"]: link["ttft_ms"][at] - drawn["mean_prefill_ms"] for link in drawn["links"]}
    assert round(wire[100]) == 107 and round(wire[400]) == 27 and set(wire) == {10, 25, 100, 400}
    assert drawn["prefill_ms"] == sorted(drawn["prefill_ms"])


def test_a_config_and_a_trace_stand_for_model_and_lengths(client: Client) -> None:
    rows = [{"at_s": index, "prompt_tokens": 1000 + index, "output_tokens": 100} for index in range(150)]
    trace = "\n".join(map(json.dumps, rows))
    body = without("model", "input_tokens", "output_tokens", config=read_config("qwen3-8b"), trace=trace)
    answer = told(client, body | {"prefill_gpu": "h200-sxm", "kv_dtype": "fp8"})
    advice = answer.json()["advice"]
    assert advice["model"] == "own config.json" and advice["inputs"]["requests"] == 150
    assert advice["inputs"]["prefill_gpu"] == "h200-sxm" and advice["inputs"]["decode_gpu"] == "h100-sxm"
    assert advice["checks"][0]["samples"] == 150


@pytest.mark.parametrize(
    "body, field, remedy",
    [
        (without("model"), "model", "either a model or a config"),
        (without(config={}), "model", "either a model or a config"),
        (without(model="/etc/passwd"), "model", "not a valid choice"),
        (without("input_tokens"), "input_tokens", "or a trace"),
        (without(trace="x"), "trace", "either a trace"),
        (without(gpu="h900"), "gpu", "h100-sxm"),
        (without(gpus=0), "gpus", "greater than or equal to 1"),
        (without(gpus=True), "gpus", "valid integer"),
        (without(network_gbps=0), "network_gbps", "above 0"),
        (without(slo_itl_ms=-1), "slo_itl_ms", "above 0"),
        (without(prefix_hit=1), "prefix_hit", "less than or equal to 0.99"),
        (without(transport="udp"), "transport", "not a valid choice"),
        (without(rate=0), "rate", "above 0"),
        (without(prices={"h100-sxm": -1}), "prices.h100-sxm", "greater than or equal to 0"),
        (without(prices={"h900": 1.0}), "prices", "h100-sxm"),
        (without(prices=[2.6]), "prices", "dictionary"),
        (without(seeds=11), "seeds", "less than or equal to 10"),
        (without("model", config={"a": "x" * (1 << 20)}), "config", "leave out"),
        (without("input_tokens", "output_tokens", trace="x" * ((1 << 20) + 1)), "trace", "no more than"),
        (without(colour="blue"), "colour", "Unknown field; known: "),
    ],
)
def test_what_cannot_be_asked_names_the_field_and_the_remedy(
    client: Client, body: dict[str, Any], field: str, remedy: str
) -> None:
    found = problem(client.post("advisor", json=body), 400, "invalid_fields")
    assert [error["field"] for error in found["errors"]] == [field], found
    assert remedy in found["errors"][0]["reason"]


@pytest.mark.parametrize(
    "body, remedy",
    [
        (without("model", config={"architectures": ["No"]}), "model config: "),
        (without(gpus=1, gpu="l4", model="llama-3.1-405b"), "GPU"),
        (without("input_tokens", "output_tokens", trace="not a trace"), "trace: line 1: "),
        (without("input_tokens", "output_tokens", trace="\x1f\x8b"), "trace: "),
        (without(kv_dtype="int3"), "int3"),
    ],
)
def test_what_has_no_answer_is_refused_with_its_reason(client: Client, body: dict[str, Any], remedy: str) -> None:
    found = problem(told(client, body), 422, "invalid")
    assert remedy in found["reasons"][0] and "Traceback" not in found["reasons"][0]


def test_a_config_nested_too_deep_and_a_body_too_large_are_not_read(client: Client) -> None:
    deep: dict[str, Any] = {}
    for _ in range(40):
        deep = {"a": deep}
    assert "nested deeper" in problem(client.post("advisor", json=without("model", config=deep)), 400, "malformed")["detail"]
    problem(client.post("advisor", content=b" " * (2 << 20) + b"{}"), 413, "too_large")


def test_an_unknown_question_and_a_stranger_learn_nothing(client: Client, web: Web) -> None:
    assert "ask it again" in problem(client.get("advisor/0123"), 404, "not_found")["detail"]
    problem(client.post("advisor?dry_run=1", json=QUESTION), 400, "invalid_fields")
    with httpx.Client(base_url=web.url) as stranger:
        problem(stranger.post("/api/v1/advisor", json=QUESTION), 401, "not_signed_in")
        problem(stranger.get("/api/v1/advisor/0123"), 401, "not_signed_in")


def test_answers_have_the_form_that_the_description_gives(client: Client, tmp_path: Any) -> None:
    file = tmp_path / "openapi.json"
    call_command("spectacular", "--validate", "--fail-on-warn", "--format", "openapi-json", "--file", str(file))
    description = json.loads(file.read_text())
    responses = description["paths"]["/api/v1/advisor"]["post"]["responses"]
    first = client.post("advisor", json=without(gpus=32))
    for answer in (first, told(client, without(gpus=32))):
        schema = responses[str(answer.status_code)]["content"]["application/json"]["schema"]
        validator = Draft202012Validator({**schema, "components": description["components"]})
        assert not [f"{error.json_path}: {error.message}" for error in validator.iter_errors(answer.json())]
