"""Changes through the REST API against a running server: every verb, and every way in which one is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import httpx
import pytest
from django.utils import timezone

from controlplane.fleet import models
from tests.console_web import Web
from tests.integration.api_kit import CONFIG, Client, one_model, problem, shared_web, token_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(scope="module")
def web(valkey_url: str, django_db_setup: None) -> Web:
    return shared_web()


@pytest.fixture
def operator(web: Web) -> Iterator[Client]:
    with Client(web.url, token_of("operator")) as client:
        yield client


@pytest.fixture
def admin(web: Web) -> Iterator[Client]:
    with Client(web.url, token_of("admin")) as client:
        yield client


def accepted(answer: httpx.Response, verb: str) -> dict[str, Any]:
    """The operation of a change that was accepted."""
    assert answer.status_code == 202, answer.text[:800]
    operation: dict[str, Any] = answer.json()
    assert operation["verb"] == verb
    assert answer.headers["location"] == f"/api/v1/operations/{operation['id']}"
    row = models.Operation.objects.get(pk=operation["id"])
    assert (row.verb, row.actor) == (verb, operation["actor"])
    return operation


def end_operations() -> None:
    """As the control loop would."""
    models.Step.objects.exclude(state="done").update(state="done")
    models.Operation.objects.exclude(state__in=("done", "cancelled", "rolled_back")).update(
        state="done", finished_at=timezone.now()
    )


def test_a_model_is_registered_changed_frozen_and_retired(operator: Client) -> None:
    new = {"name": "org/m", "source": "org/m", "config": CONFIG, "engine_kind": "simulated", "reason": "first"}
    assert accepted(operator.post("models", json=new), "register_model")["reason"] == "first"
    model = operator.get("models/org%2Fm").json()
    assert (model["name"], model["mode"], model["pools"][0]["role"]) == ("org/m", "monolithic", "mixed")
    changes = {"slo_ttft_ms": 800, "strict": True, "floors": {"mixed": 0}, "selectors": {"mixed": {"gpu_kinds": ["l4"]}}}
    accepted(operator.patch("models/org%2Fm", json=changes), "update_model")
    changed = operator.get("models/org%2Fm").json()
    assert (changed["slo_ttft_ms"], changed["strict"], changed["pools"][0]["gpu_kinds"]) == (800, True, ["l4"])
    assert changed["version"] > model["version"]
    accepted(operator.put("models/org%2Fm/freeze", json={"until": "2027-06-01T00:00:00Z", "reason": "sale"}), "freeze")
    found = problem(operator.put("models/org%2Fm/pools/mixed", json={"engines": 1}), 409, "frozen")
    assert "sale" in found["detail"]
    accepted(operator.delete("models/org%2Fm/freeze?reason=over"), "unfreeze")
    accepted(operator.delete("models/org%2Fm?reason=old"), "retire_model")
    assert models.Model.objects.get().retiring


def test_engines_move_between_the_pools_of_a_model(operator: Client) -> None:
    one_model()
    operation = accepted(operator.post("models/m/rebalance", json={"pools": {"prefill": 1, "decode": 3}}), "rebalance")
    assert operation["before"]["pools"] == {"prefill": 2, "decode": 2}
    assert operation["after"]["pools"] == {"prefill": 1, "decode": 3}
    assert [step["verb"] for step in operation["steps"]] == ["retask"]
    found = problem(operator.post("models/m/rebalance", json={"pools": {"prefill": 2}}), 409, "busy")
    assert found["operation"] == operation["id"]
    assert f"operation {operation['id']}" in found["detail"]
    end_operations()
    accepted(operator.put("models/m/pools/decode", json={"engines": 4}), "scale_pool")
    end_operations()
    move = {"from_role": "decode", "to_role": "prefill", "gpus": 1}
    moved = accepted(operator.post("models/m/move-gpus", json=move), "move_gpus")
    assert moved["after"]["pools"] == {"prefill": 2, "decode": 3}


def test_a_models_mode_is_toggled_and_its_engines_rolled_out(operator: Client) -> None:
    one_model()
    operation = accepted(operator.put("models/m/mode", json={"mode": "monolithic", "split": {"mixed": 4}}), "set_mode")
    assert operation["after"]["mode"] == "monolithic"
    assert operator.get("models/m/mode").json() == {"mode": "monolithic", "served_mode": "disaggregated"}
    end_operations()
    accepted(operator.post("models/m/roll-out", json={"engine_args": {"max_model_len": 4096}}), "roll_out")
    assert operator.get("models/m").json()["max_model_len"] == 4096


def test_a_canary_is_begun_promoted_and_ended(operator: Client) -> None:
    one_model(prefill=3, decode=3)
    problem(operator.get("models/m/canary"), 404, "not_found")
    canary = {"mode": "monolithic", "steps": [0.5], "guardrails": {"min_sessions": 50}}
    accepted(operator.put("models/m/canary", json=canary), "set_canary")
    found = operator.get("models/m/canary").json()
    assert (found["mode"], found["state"], found["steps"]) == ("monolithic", "running", [0.5])
    assert found["guardrails"]["min_sessions"] == 50
    end_operations()
    accepted(operator.patch("models/m/canary", json={"guardrails": {"max_failed": 0.05}}), "update_canary")
    assert operator.get("models/m/canary").json()["guardrails"] == {"min_sessions": 50, "max_failed": 0.05}
    accepted(operator.post("models/m/canary/promote", json={}), "promote_canary")
    end_operations()
    accepted(operator.delete("models/m/canary"), "end_canary")
    assert operator.get("models/m/canary").json()["state"] == "cancelled"
    end_operations()
    problem(operator.delete("models/m/canary"), 404, "not_found")


def test_an_operation_is_paused_resumed_cancelled_and_taken_back(operator: Client) -> None:
    one_model()
    first = accepted(operator.post("models/m/rebalance", json={"pools": {"prefill": 1, "decode": 3}}), "rebalance")
    address = f"operations/{first['id']}"
    for verb, state in (("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")):
        assert accepted(operator.post(f"{address}/{verb}", json={"reason": "why not"}), "rebalance")["state"] == state
    problem(operator.post(f"{address}/pause", json={}), 422, "invalid")
    second = accepted(operator.post("models/m/rebalance", json={"pools": {"prefill": 1, "decode": 3}}), "rebalance")
    end_operations()
    undo = accepted(operator.post(f"operations/{second['id']}/rollback", json={}), "rollback")
    assert undo["undoes"] == second["id"]
    assert undo["after"]["pools"] == {"prefill": 2, "decode": 2}
    problem(operator.post("operations/999999/cancel", json={}), 404, "not_found")


def test_engines_are_drained_restarted_and_tried_again(operator: Client) -> None:
    one_model()
    accepted(operator.put("engines/m-1/drain", json={}), "drain_engine")
    end_operations()
    accepted(operator.delete("engines/m-1/drain"), "undrain_engine")
    end_operations()
    models.Pool.objects.filter(role="prefill").update(floor=2)
    problem(operator.post("engines/m-1/restart", json={}), 422, "unsafe")
    models.Pool.objects.filter(role="prefill").update(floor=1)
    accepted(operator.post("engines/m-1/restart", json={}), "restart_engine")
    problem(operator.post("engines/m-3/retry", json={}), 422, "invalid")
    models.Engine.objects.filter(id="m-3").update(state="failed", failures=5)
    accepted(operator.post("engines/m-3/retry", json={}), "retry_engine")
    problem(operator.post("engines/none/retry", json={}), 404, "not_found")


def test_nodes_are_added_cordoned_and_removed(admin: Client) -> None:
    assert accepted(admin.post("nodes", json={"name": "n7", "labels": {"zone": "a"}}), "add_node")["state"] == "done"
    problem(admin.post("nodes", json={"name": "n7"}), 422, "invalid")
    accepted(admin.put("nodes/n7/cordon", json={}), "cordon_node")
    assert admin.get("nodes/n7").json()["cordoned"] is True
    accepted(admin.delete("nodes/n7/cordon"), "uncordon_node")
    accepted(admin.delete("nodes/n7"), "remove_node")
    problem(admin.get("nodes/n7"), 404, "not_found")


def test_roles_are_those_of_the_actions(web: Web) -> None:
    one_model()
    sizes = {"pools": {"prefill": 1, "decode": 3}}
    with Client(web.url, token_of("viewer")) as viewer, Client(web.url, token_of("owner")) as owner:
        assert viewer.get("models/m").is_success
        assert "viewer" in problem(viewer.post("models/m/rebalance", json=sizes), 403, "forbidden")["detail"]
        problem(viewer.get("engines/m-1/log"), 403, "forbidden")
        problem(owner.post("nodes", json={"name": "n7"}), 403, "forbidden")
        accepted(owner.post("models/m/rebalance", json=sizes), "rebalance")
        end_operations()
        models.Model.objects.update(team="other")
        problem(owner.post("models/m/rebalance", json=sizes), 403, "forbidden")
        problem(owner.get("engines/m-1/log"), 403, "forbidden")


def test_a_dry_run_tells_the_steps_and_changes_nothing(operator: Client) -> None:
    one_model()
    version = operator.get("models/m").headers["etag"]
    sizes = {"pools": {"prefill": 1, "decode": 3}}
    answer = operator.post("models/m/rebalance?dry_run=true", json=sizes, headers={"idempotency-key": "k"})
    assert answer.status_code == 200, answer.text
    preview = answer.json()
    assert (preview["verb"], preview["model"], preview["instant"]) == ("rebalance", "m", True)
    assert preview["after"]["pools"] == {"prefill": 1, "decode": 3}
    assert [(step["verb"], step["role"]) for step in preview["steps"]] == [("retask", "decode")]
    assert operator.get("models/m").headers["etag"] == version
    assert not models.Operation.objects.filter(verb="rebalance").exists()
    problem(operator.post("models/m/rebalance?dry_run=true", json={"pools": {"prefill": 0}}), 422, "unsafe")
    accepted(operator.post("models/m/rebalance", json=sizes, headers={"idempotency-key": "k"}), "rebalance")


def test_a_refusal_says_why_with_the_status_of_its_kind(operator: Client) -> None:
    one_model()
    problem(operator.post("models/none/rebalance", json={"pools": {"prefill": 1}}), 404, "not_found")
    problem(operator.put("models/m/pools/decode", json={"engines": 500}), 409, "no_capacity")
    problem(operator.post("models/m/rebalance", json={"pools": {"mixed": 1}}), 422, "invalid")
    found = problem(operator.post("models/m/rebalance", json={"pools": {"decode": 0}}), 422, "unsafe")
    assert "floor" in found["detail"]


def test_a_stale_page_gets_412_and_changes_nothing(operator: Client) -> None:
    one_model()
    sizes = {"pools": {"prefill": 1, "decode": 3}}
    read = operator.get("models/m").headers["etag"]
    accepted(operator.post("models/m/rebalance", json=sizes, headers={"if-match": read}), "rebalance")
    end_operations()
    back, until = {"pools": {"prefill": 2, "decode": 2}}, {"until": "2027-06-01T00:00Z"}
    for stale in (read, '"x"', f"W/{operator.get('models/m').headers['etag']}", '"999-1"', '"1-1", "x"'):
        problem(operator.post("models/m/rebalance", json=back, headers={"if-match": stale}), 412, "stale")
        problem(operator.put("models/m/freeze", json=until, headers={"if-match": stale}), 412, "stale")
    assert models.Operation.objects.filter(verb="rebalance").count() == 1
    problem(operator.post("models/m/rebalance", json=back, headers={"if-match": "7"}), 400, "malformed")
    now = operator.get("models/m").headers["etag"]
    accepted(operator.post("models/m/rebalance", json=back, headers={"if-match": f'"x", {now}'}), "rebalance")
    end_operations()
    accepted(operator.post("models/m/rebalance", json=sizes, headers={"if-match": "*"}), "rebalance")
    end_operations()
    problem(operator.put("engines/m-1/drain", json={}, headers={"if-match": now}), 412, "stale")
    operation = operator.get(f"operations/{models.Operation.objects.latest('pk').pk}")
    problem(operator.post(f"{operation.url.path}/rollback", json={}, headers={"if-match": '"x"'}), 412, "stale")
    undo = operator.post(f"{operation.url.path}/rollback", json={}, headers={"if-match": operation.headers["etag"]})
    accepted(undo, "rollback")


def test_of_a_model_that_was_registered_anew_an_old_tag_is_stale(operator: Client) -> None:
    first = one_model(prefill=1, decode=1)
    tag = operator.get("models/m").headers["etag"]
    models.Engine.objects.all().delete()
    first.delete()
    one_model(prefill=1, decode=1)
    models.Model.objects.update(version=first.version)
    problem(operator.post("models/m/rebalance", json={"pools": {"decode": 2}}, headers={"if-match": tag}), 412, "stale")


def test_of_two_operators_at_once_one_wins_and_the_other_hears_of_it(web: Web, operator: Client) -> None:
    one_model()
    answers: list[httpx.Response] = []
    gate = threading.Barrier(2)

    def press(sizes: dict[str, int]) -> None:
        with httpx.Client(base_url=operator.base_url, headers=operator.headers, timeout=60) as client:
            client.get("/healthz")
            gate.wait()
            answers.append(client.post("/api/v1/models/m/rebalance", json={"pools": sizes}))

    pressing = [
        threading.Thread(target=press, args=(each,)) for each in ({"prefill": 1, "decode": 3}, {"prefill": 3, "decode": 1})
    ]
    for each in pressing:
        each.start()
    for each in pressing:
        each.join()
    won, lost = sorted(answers, key=lambda answer: answer.status_code)
    operation = accepted(won, "rebalance")
    assert problem(lost, 409, "busy")["operation"] == operation["id"]
    assert models.Operation.objects.filter(verb="rebalance").count() == 1


RACED: dict[str, tuple[str, str, Any]] = {
    "settings": ("PATCH", "models/m", lambda at: {"slo_itl_ms": 20 + at}),
    "freeze": ("PUT", "models/m/freeze", lambda at: {"until": f"{timezone.now() + timedelta(hours=at + 1):%FT%TZ}"}),
    "planner": ("PATCH", "models/m/planner", lambda at: {"priority": at + 1}),
    "sizes": ("PUT", "models/m/pools/decode", lambda at: {"engines": at + 3}),
}


@pytest.mark.parametrize("what", RACED)
def test_of_many_changes_of_what_was_read_once_one_is_carried_out(operator: Client, what: str) -> None:
    """All have the same If-Match, whose version is compared under the row's lock."""
    one_model()
    method, address, body = RACED[what]
    headers = {**operator.headers, "if-match": operator.get("models/m").headers["etag"]}
    gate, before = threading.Barrier(6), models.Operation.objects.count()

    def press(at: int) -> int:
        with httpx.Client(base_url=operator.base_url, headers=headers, timeout=60) as client:
            client.get("/healthz")
            gate.wait()
            return client.request(method, f"/api/v1/{address}", json=body(at)).status_code

    with ThreadPoolExecutor(6) as pressing:
        answers = sorted(pressing.map(press, range(6)))
    assert answers[0] == 202 and set(answers[1:]) <= {409, 412}, answers
    assert models.Operation.objects.count() == before + 1
