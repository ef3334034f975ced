"""The model page and the requests page over Django's client: who sees them, what they come with, a canary's buttons."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane.fleet import models
from tests import console_history
from tests.integration.test_console_changes import first, model, ops, post, signed_in, url

__all__ = ["model", "ops"]  # fixtures
pytestmark = pytest.mark.django_db


def page(client: Client, path: str) -> dict[str, Any]:
    answer = client.get(path)
    assert answer.status_code == 200, answer.status_code
    return first(answer.content.decode())


def test_a_visitor_signs_in_first(client: Client, model: models.Model) -> None:
    for path in (url("model", model.name), url("model_some"), url("requests")):
        assert client.get(path).headers["location"].startswith("/login?next=/")


def test_a_model_comes_with_what_is_desired_and_who_may_change_it(ops: Client, model: models.Model) -> None:
    assert ops.get(url("model_some")).headers["location"] == url("model", model.name) == "/models/org/qwen"
    shown = page(ops, url("model", model.name))
    assert (shown["model"]["mode"], shown["model"]["canary"], shown["refused"]) == ("disaggregated", None, {})
    viewer = page(signed_in("look", "viewer"), url("model", model.name))
    assert viewer["refused"].keys() == {"rebalance", "set_mode", "set_canary", "promote_canary", "end_canary"}


def test_without_a_model_the_fleet_page_says_how_to_add_one(db: None) -> None:
    assert signed_in("look", "viewer").get(url("model_some")).headers["location"] == "/"


def test_a_model_that_is_not_there_is_not_found(ops: Client) -> None:
    assert ops.get(url("model", "gone")).status_code == 404


def test_pages_cost_few_statements_whatever_they_list(ops: Client, model: models.Model) -> None:
    for number in range(100, 140):
        models.Engine.objects.create(id=f"x{number}", model=model, role="decode", number=number, kind="simulated")
        models.Team.objects.create(name=f"team-{number}")
    for path, most in ((url("model", model.name), 15), (url("requests"), 9)):
        with CaptureQueriesContext(connection) as captured:
            ops.get(path)
        assert len(captured) <= most, (path, len(captured))


def test_the_requests_page_offers_what_can_be_chosen(ops: Client, model: models.Model) -> None:
    models.Team.objects.create(name="search")
    models.InferenceKey.objects.create(name="k", team="chat", sha256="0" * 64)
    shown = page(ops, url("requests"))
    choices = shown["choices"]
    assert (choices["model"], choices["team"]) == ([model.name], ["chat", "search"])
    assert {"kv_lost", "no_engine"} < set(choices["reason"]) and "cut" in choices["outcome"]
    assert shown["engines"][0] == ["e-1", "P1", "prefill", model.name]


@pytest.fixture
def canary(model: models.Model) -> models.Canary:
    return models.Canary.objects.create(
        model=model, mode="conditional", shared=True, share=0.1, steps=[0.5], guardrails={"margin": 0.05},
        verdict=console_history.VERDICT,
    )  # fmt: skip


def test_a_canary_shows_its_numbers_and_limits(ops: Client, model: models.Model, canary: models.Canary) -> None:
    shown = page(ops, url("model", model.name))["model"]["canary"]
    assert (shown["share"], shown["steps"], shown["verdict"]) == (0.1, [0.5], console_history.VERDICT)
    assert (shown["guardrails"]["margin"], shown["guardrails"]["min_sessions"]) == (0.05, 200)


@pytest.mark.parametrize(("verb", "share", "ended"), [("promote", 0.5, False), ("end", 0.1, True)])
def test_a_canary_is_promoted_or_ended_with_a_reason(
    ops: Client, model: models.Model, canary: models.Canary, verb: str, share: float, ended: bool
) -> None:
    path = url(f"{verb}_canary", model.name)
    order = {"version": model.version, "reason": "numbers are good"}
    assert post(ops, path, order | {"reason": ""}).status_code == 400
    assert post(signed_in("look", "viewer"), path, order).status_code == 403
    assert post(ops, path, order | {"dry_run": True}).json()["plan"]["steps"] == []
    assert post(ops, path, order).status_code == 202
    canary.refresh_from_db()
    assert (canary.share, canary.ended_at is not None) == (share, ended)
    assert models.Operation.objects.get().reason == "numbers are good"
