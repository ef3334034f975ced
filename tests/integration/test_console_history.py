"""The past that the fleet page's heat is drawn from."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

INSERT = """
INSERT INTO telemetry_node_second (node, at, gpus, engines, roles, tensor, tensor_peak, dram, memory_used_bytes, power_w)
VALUES ('n1', %s, '{g0,g1}', '{e-1,""}', '{p,""}', %s, '{0.9,0}', '{0.2,0}', '{1,1}', '{700,70}')
"""


@pytest.fixture
def signed_in(client: Client, db: None) -> Client:
    client.force_login(User.objects.create_user("kim"), backend="django.contrib.auth.backends.ModelBackend")
    return client


def test_the_past_comes_in_cells_with_roles_and_gaps(signed_in: Client) -> None:
    now = time.time()
    with connection.cursor() as cursor:
        for age_s, tensor in ((8, [0.8, 0.0]), (60, [0.5, 0.0])):
            cursor.execute(INSERT, [datetime.fromtimestamp(now - age_s, UTC), tensor])
    past = signed_in.get("/history/gpus?span_s=900&step_s=5").json()
    assert past["step_s"] == 5
    assert past["start"] % 5 == 0
    prefill, spare = past["gpus"]
    assert (prefill["uuid"], spare["uuid"]) == ("g0", "g1")
    assert len(prefill["roles"]) == len(prefill["shares"]) == 180
    assert [share for share in prefill["shares"] if share is not None] == [0.5, 0.8]
    assert set(prefill["roles"]) == {" ", "p"}
    assert set(spare["roles"]) == {" ", "s"}
    assert prefill["shares"][int((now - 60 - past["start"]) // 5)] == 0.5


@pytest.mark.parametrize("query", ["", "span_s=900", "span_s=86400&step_s=1", "span_s=900&step_s=0", "span_s=x&step_s=5"])
def test_a_range_that_is_not_offered_is_refused_with_those_that_are(signed_in: Client, query: str) -> None:
    answer = signed_in.get(f"/history/gpus?{query}")
    assert answer.status_code == 400
    assert "span_s=900&step_s=5" in answer.json()["error"]


def test_a_visitor_gets_no_past(client: Client, db: None) -> None:
    assert client.get("/history/gpus?span_s=900&step_s=5").status_code == 401
