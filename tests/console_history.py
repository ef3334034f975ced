"""An hour in the life of llama-3.1-70b for tests of pages that show the past: written by the real roll-ups and writer, to
go with the live rows of console_rows. Every run draws the same numbers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from controlplane.core.protocol import GpuRow, Passed, RequestRow
from controlplane.fleet.models import Canary, Engine, Model, Operation, Pool
from controlplane.telemetry.testing import engine_row, histogram, request_row
from controlplane.telemetry.view import EngineView, FleetView, ModelView
from tests.console_rows import RECORDED
from tests.integration.queries_kit import Recorder

NAME = "llama-3.1-70b"
ROWS = [row for row in RECORDED["rows"] if row["type"] == "engine" and row["model"] == NAME]
PREFILL = [row["engine"] for row in ROWS if row["role"] == "prefill"]
DECODE = [row["engine"] for row in ROWS if row["role"] == "decode"]
GAP = range(22, 26)
"""Minutes ago in which nothing was recorded."""
VERDICT = {
    "action": "continue",
    "because": "undecided",
    "sentence": "nothing is shown yet: 412 sessions of the canary, 3,700 of main",
    "numbers": {
        "canary": {"sessions": 412, "over": 12, "failed": 0, "kv_lost": 0, "ttft_p99_ms": 1790.0, "itl_p99_ms": 41.0},
        "main": {"sessions": 3700, "over": 148, "failed": 2, "kv_lost": 1, "ttft_p99_ms": 2080.0, "itl_p99_ms": 37.0},
        "difference": {"seen": -0.011, "lower": -0.034, "upper": 0.021, "margin": 0.03},
        "harm": {"over": 0.12, "failed": 0.0, "kv_lost": 0.0},
        "no_worse": 0.61,
    },
}


def make_fleet(name: str = NAME) -> Model:
    """The model with its pools, engines and a canary, as the live rows tell of it."""
    model = Model.objects.create(
        name=name, source="org/x", config={}, engine_kind="simulated", mode="disaggregated", served_mode="disaggregated",
        team="search-platform", slo_ttft_ms=2000, slo_itl_ms=50, version=3,
    )  # fmt: skip
    for role, engines in (("prefill", PREFILL), ("decode", DECODE)):
        Pool.objects.create(model=model, role=role, desired_engines=len(engines), tensor_parallel=4)
    for row in ROWS:
        number = int(row["label"][1:])
        Engine.objects.create(
            id=row["engine"], model=model, role=row["role"], number=number, kind="simulated", state="ready"
        )
    guardrails: dict[str, Any] = {}
    Canary.objects.create(
        model=model, mode="conditional", share=0.1, steps=[0.25, 0.5], verdict=VERDICT, guardrails=guardrails
    )
    return model


def make_hostile(name: str) -> Model:
    """A model of that name alone."""
    return Model.objects.create(
        name=name, source="x", config={}, engine_kind="simulated", mode="disaggregated", slo_ttft_ms=10
    )


def mark(model: Model, at: float) -> None:
    """An operation that ran for a minute at that time."""
    row = Operation.objects.create(verb="set_canary", model=model, actor="ops-1", reason="try", state="done")
    times = {"created_at": datetime.fromtimestamp(at, UTC), "finished_at": datetime.fromtimestamp(at + 60, UTC)}
    Operation.objects.filter(pk=row.pk).update(**times)


def record(now: float, name: str = NAME, minutes: int = 70) -> None:
    """Until `now`."""
    draw = random.Random(7)
    engines = {
        row["engine"]: EngineView(row["engine"], row["label"], name, row["role"], "ready", 0.0, "", 1, ("n",), ())
        for row in ROWS
    }
    view = FleetView(engines=engines, models=(ModelView(name, "disaggregated", "nixl", 2000.0, 50.0, ()),))
    recorder = Recorder(view)
    end = now // 60 * 60
    counters = {
        engine: dict.fromkeys(("transfers", "transfer_bytes", "prefix_queries", "prefix_hits"), 0.0) for engine in engines
    }
    seen: dict[str, list[float]] = {engine: [] for engine in DECODE}
    for minute in range(minutes, 0, -1):
        if minute in GAP:
            continue
        at = end - minute * 60 + 5
        rising = 1.0 + 0.6 * max(0.0, (30 - minute) / 30)
        recorder.take(at, "gpu", *_gpus(draw, rising))
        recorder.take(at, "engine", *_engines(draw, name, rising, counters, seen))
        for row in sorted(_requests(draw, name, at, minute, rising), key=lambda row: row.arrived_at):
            recorder.take(row.arrived_at + 5, "request", row)
    recorder.write(end + 30)


def _gpus(draw: random.Random, rising: float) -> Iterator[GpuRow]:
    for row in ROWS:
        for uuid in row["gpu_uuids"]:
            busy = draw.uniform(0.5, 0.6) * rising
            prefill = row["role"] == "prefill"
            yield GpuRow(
                uuid, row["engine"], min(busy, 1.0) if prefill else 0.14, dram=0.3 if prefill else draw.uniform(0.5, 0.7)
            )


def _engines(draw: random.Random, name: str, rising: float, counters: Any, seen: Any) -> Iterator[Any]:
    for row in ROWS:
        id, prefill = row["engine"], row["role"] == "prefill"
        own = counters[id]
        own["prefix_queries"] += 1000.0
        own["prefix_hits"] += draw.uniform(100, 300)
        histograms: dict[str, Any] = {}
        if not prefill:
            own["transfers"] += 20.0
            own["transfer_bytes"] += draw.uniform(80e9, 110e9)
            seen[id] += [draw.lognormvariate(-3.4, 0.4) for _ in range(20)]
            bounds = (0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.5, 1.0)
            histograms = {
                "transfer": histogram(seen[id], bounds),
                "queue": histogram([x * 1.2 for x in seen[id]], bounds),
                "prefill": histogram([x / 3 for x in seen[id]], bounds),
            }
        waiting = draw.randrange(round(4 * rising) + 1) if prefill else draw.randrange(2)
        load = {"running": 3 if prefill else draw.randrange(20, 30), "waiting": waiting, "kv_usage": draw.uniform(0.3, 0.6)}
        yield engine_row(id, name, counters=dict(own), histograms=histograms, **load)


def _requests(draw: random.Random, name: str, at: float, minute: int, rising: float) -> Iterator[RequestRow]:
    for number in range(12):
        prefill, decode = draw.choice(PREFILL), draw.choice(DECODE)
        queue, compute = draw.uniform(1, 300) * rising**2, draw.lognormvariate(5.6, 0.5) * rising
        handoff = draw.uniform(30, 130)
        ttft = queue + compute + handoff
        values: dict[str, Any] = {
            "prefill_engine": prefill, "decode_engine": decode, "queue_ms": queue, "prefill_ms": compute,
            "handoff_ms": handoff, "ttft_ms": ttft, "total_ms": ttft + draw.uniform(3000, 15000), "reason": "disaggregated",
            "prompt_tokens": draw.randrange(800, 20000), "output_tokens": draw.randrange(100, 1200), "cached_tokens": 400,
            "kv_bytes": draw.randrange(10**8, 7 * 10**9), "itl_ms": tuple(draw.uniform(18, 44) for _ in range(40)),
            "passed": (Passed("prefill", draw.choice(PREFILL), 0.31), Passed("decode", draw.choice(DECODE), 0.09)),
            "team": "search-platform", "weight": 10, "session": f"{number:016x}",
        }  # fmt: skip
        if number == 0 and minute % 9 == 0:
            values |= {
                "outcome": "engine_error",
                "status": 502,
                "reason": "engine_fault",
                "ttft_ms": None,
                "handoff_ms": None,
                "weight": 1,
            }
        if number == 1 and minute % 4 == 0:
            values |= {
                "path": "monolithic",
                "reason": "kv_lost",
                "retries": 1,
                "prefill_engine": "",
                "handoff_ms": None,
                "prefill_ms": None,
                "weight": 1,
            }
        yield request_row(f"{minute:02x}{number:02x}{draw.getrandbits(64):016x}", name, at + number * 4, **values)
