"""What ingest writes for the console follows the engines: states, samples and finished requests arrive."""

from __future__ import annotations

import json
import time
from typing import Any

from stack import Stack, until

from controlplane.core import names


def _rows(demo: Stack) -> dict[str, dict[str, Any]]:
    with demo.valkey() as client:
        return {row["id"]: row for row in json.loads(client.hget(names.live_key("fleet"), "rows") or "[]")}


def test_every_engine_is_a_row_with_fresh_samples(demo: Stack) -> None:
    def fresh() -> bool:
        engines = [row for row in _rows(demo).values() if row["type"] == "engine"]
        return len(engines) == 8 and all(
            row["state"] == "ready" and row["sampled_at"] and time.time() - row["sampled_at"] < 5 for row in engines
        )

    until(fresh)
    fleet = _rows(demo)["fleet"]
    assert (fleet["gpus"], fleet["gpus_stale"], fleet["spare_gpus"]) == (24, 0, 4)


def test_the_operations_that_made_the_fleet_name_what_they_made(demo: Stack) -> None:
    made = {(row["verb"], row["subject"]) for row in _rows(demo).values() if row["type"] == "operation"}
    assert {("add_node", "node:n1"), ("register_model", "model:qwen3-8b")} <= made


def test_a_request_becomes_a_row_and_shows_in_latencies_and_kv_transfer(demo: Stack) -> None:
    stored = "SELECT count(*) FROM telemetry_request WHERE model = 'llama-3.1-70b' AND outcome = 'ok' AND kv_bytes > 0"
    before = demo.rows(stored)[0][0]
    for number in range(3):
        demo.ask("completions", {"model": "llama-3.1-70b", "prompt": f"{number} " * 300, "max_tokens": 4, "stream": True})
    until(lambda: demo.rows(stored)[0][0] == before + 3)
    row = until(lambda: (row := _rows(demo)["model:llama-3.1-70b"])["transfer"]["count"] >= 3 and row)
    assert row["ttft"]["p99"] > 0
    assert row["transfer"]["p99"] > 0
    assert row["transfer_bytes_per_s"] > 0
