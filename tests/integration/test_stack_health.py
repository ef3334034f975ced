"""When a process without an endpoint counts as answering: by the sign it leaves in a real Valkey."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
import redis

from controlplane.core import names
from controlplane.stack import health
from controlplane.stack.ports import free_port

Leave = Callable[[redis.Redis, object], object]


def _fact(valkey: redis.Redis, at: object) -> object:
    return valkey.set(names.fact_key("agent", "n1"), json.dumps({"body": json.dumps({"at": at}), "sig": ""}))


SIGNS = [
    pytest.param(health.control, lambda valkey, at: valkey.set(names.CONTROL_KEY, str(at)), id="control"),
    pytest.param(health.ingest, lambda valkey, at: valkey.hset(names.live_key("fleet"), "at", str(at)), id="ingest"),
    pytest.param(lambda url: health.agent(url, "n1"), _fact, id="agent"),
]


@pytest.mark.parametrize(("make", "leave"), SIGNS)
async def test_a_process_answers_once_it_left_a_fresh_sign(
    make: Callable[[str], health.Check], leave: Leave, valkey: redis.Redis, valkey_url: str
) -> None:
    check, now = make(valkey_url), time.time()
    assert not await check(now - 60)  # nothing yet
    leave(valkey, now - 1)
    assert await check(now - 60)
    assert not await check(now)  # left by the one before it
    leave(valkey, now - health.FRESH_S - 1)
    assert not await check(now - 60)  # long silent


@pytest.mark.parametrize(("make", "leave"), SIGNS)
@pytest.mark.parametrize("odd", ["x", "nan", 10**400], ids=["text", "nan", "huge"])
async def test_an_odd_sign_is_none(
    make: Callable[[str], health.Check], leave: Leave, odd: object, valkey: redis.Redis, valkey_url: str
) -> None:
    leave(valkey, odd)
    assert not await make(valkey_url)(0.0)


async def test_without_valkey_there_is_no_sign() -> None:
    assert not await health.control(f"redis://127.0.0.1:{free_port()}/0")(0.0)
