"""KV that is pulled after its lease: wrong text with status 200, and a decode engine that keeps it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tests.vllm import harness
from tests.vllm.harness import BLOCK, RealEngine, wait_for

LEASE_S = 8.0
CHANCE = random.Random(3)
PROMPT = [CHANCE.randrange(300, 2000) for _ in range(9 * BLOCK + 12)]


def text(engine: RealEngine, **fields: Any) -> str:
    body = {"model": harness.MODEL, "prompt": PROMPT, "max_tokens": 24, "temperature": 0, **fields}
    return str(engine.answer("/v1/completions", body)["choices"][0]["text"])


def test_wrong_kv_stays_in_the_decode_engines_prefix_cache(tiny_model: Path, tmp_path: Path) -> None:
    remote = {"do_remote_decode": True, "do_remote_prefill": False}
    body = {"model": harness.MODEL, "prompt": PROMPT, "max_tokens": 1, "kv_transfer_params": remote}
    with harness.pair(tiny_model, "nixl", tmp_path, kv_lease_s=LEASE_S) as (prefill, decode):
        harness.warm_up(prefill, decode)
        expected = text(prefill)
        leg = prefill.answer("/v1/completions", body)
        wait_for(lambda: prefill.metric("vllm:nixl_num_kv_expired_reqs_total") > 0, 60, "the lease to end")
        for _ in range(12):  # more than the cache holds, so that the blocks are somebody else's
            other = [CHANCE.randrange(300, 2000) for _ in range(2000)]
            prefill.answer("/v1/completions", {"model": harness.MODEL, "prompt": other, "max_tokens": 1})
        assert text(decode, kv_transfer_params=leg["kv_transfer_params"]) != expected
        assert text(decode) != expected
        fresh = prefill.answer("/v1/completions", body)
        assert text(decode, kv_transfer_params=fresh["kv_transfer_params"]) != expected
        assert text(decode, cache_salt="another") == expected
