"""KV that is pulled after its lease: wrong text with status 200, and a decode engine that keeps it."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.vllm import harness
from tests.vllm.harness import BLOCK, RealEngine, wait_for
from tests.vllm.router import RouterProcess

LEASE_S = 8.0
CHANCE = random.Random(3)
EXPIRED = "vllm:nixl_num_kv_expired_reqs_total"
REMOTE = {"do_remote_decode": True, "do_remote_prefill": False}

Pair = tuple[RealEngine, RealEngine]


def prompt() -> list[int]:
    return [CHANCE.randrange(300, 2000) for _ in range(9 * BLOCK + 12)]


def body_of(prompt: list[int], **fields: Any) -> dict[str, Any]:
    return {"model": harness.MODEL, "prompt": prompt, "max_tokens": 24, "temperature": 0, **fields}


def text(engine: RealEngine, prompt: list[int], **fields: Any) -> str:
    return str(engine.answer("/v1/completions", body_of(prompt, **fields))["choices"][0]["text"])


def fill(engine: RealEngine) -> None:
    """More than its cache holds, so that blocks of an ended lease are somebody else's."""
    for _ in range(12):
        other = [CHANCE.randrange(300, 2000) for _ in range(2000)]
        engine.answer("/v1/completions", {"model": harness.MODEL, "prompt": other, "max_tokens": 1})


@pytest.fixture(scope="module")
def pair(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with harness.pair(tiny_model, "nixl", tmp_path_factory.mktemp("late"), kv_lease_s=LEASE_S) as engines:
        harness.warm_up(*engines)
        yield engines


def test_wrong_kv_stays_in_the_decode_engines_prefix_cache(pair: Pair) -> None:
    prefill, decode = pair
    mine = prompt()
    expected, expired = text(prefill, mine), prefill.metric(EXPIRED)
    leg = prefill.answer("/v1/completions", body_of(mine, max_tokens=1, kv_transfer_params=REMOTE))
    wait_for(lambda: prefill.metric(EXPIRED) > expired, 60, "the lease to end")
    fill(prefill)
    assert text(decode, mine, kv_transfer_params=leg["kv_transfer_params"]) != expected
    assert text(decode, mine) != expected
    fresh = prefill.answer("/v1/completions", body_of(mine, max_tokens=1, kv_transfer_params=REMOTE))
    assert text(decode, mine, kv_transfer_params=fresh["kv_transfer_params"]) != expected
    assert text(decode, mine, cache_salt="another") == expected


def test_behind_the_router_a_decode_engine_that_stood_still_over_the_lease_is_never_believed(
    pair: Pair, tmp_path: Path
) -> None:
    """Whether the engine pulls late when it goes on or notices that the leg was given up: its cache is left."""
    prefill, decode = pair
    mine = prompt()
    expected, expired = text(prefill, mine, cache_salt="alone"), prefill.metric(EXPIRED)
    assert decode.process.child is not None
    with RouterProcess.started(tmp_path) as router, ThreadPoolExecutor() as pool:
        router.route(prefill, decode, "nixl", kv_lease_s=LEASE_S, strict=False)
        decode.process.child.send_signal(signal.SIGSTOP)
        try:
            answer = pool.submit(router.post, "/v1/completions", body_of(mine))
            wait_for(lambda: prefill.metric(EXPIRED) > expired, 60, "the lease to end")
            fill(prefill)
        finally:
            decode.process.child.send_signal(signal.SIGCONT)
        assert answer.result().json()["choices"][0]["text"] == expected
        eras = tmp_path / "table.json.eras"
        wait_for(eras.exists, 60, "the decode engine's cache to be left")
        assert f'"engine":"{decode.id}"' in eras.read_text().replace("\\", "")  # a sealed line holds JSON as a string

        def through_both() -> bool:
            response = router.post("/v1/completions", body_of(mine))
            assert response.json()["choices"][0]["text"] == expected
            return f"decode={decode.id}" in response.headers["x-twinpool-route"]

        wait_for(through_both, 60, "the decode engine to be used again")
        assert through_both()
