"""Proposals with all that their pages show, made of the planner's own types."""

from __future__ import annotations

import time
from typing import Any

from controlplane.control.models import Proposal
from controlplane.control.planning.plain import moment, plain
from controlplane.core.planner import Alternative, Estimate, Inputs, Lent, PoolPlan
from controlplane.core.workload import Cell, Mix
from controlplane.fleet import models
from tests.integration.planner_rows import proposal

MIX = Mix((Cell(900, 4096, 220), Cell(300, 512, 600), Cell(12, 12_000, 80)))


def pools(prefill: int, decode: int) -> tuple[PoolPlan, ...]:
    return (PoolPlan("prefill", prefill, 1, "l4"), PoolPlan("decode", decode, 1, "l4"))


def estimate(ttft_ms: float, itl_ms: float, **more: Any) -> Estimate:
    given: dict[str, Any] = {
        "attained": 0.97,
        "strain": 0.9,
        "busy": 0.71,
        "bottleneck": "decode",
        "gpus": 4,
        "cost_per_hour": 2.8,
        "cost_per_million_tokens": 0.41,
    }
    return Estimate(ttft_ms, itl_ms, **{**given, **more})


def rich(model: models.Model, **more: Any) -> Proposal:
    """One decode engine becomes a prefill engine, told in full."""
    now = time.time()
    other = Alternative("disaggregated", pools(1, 3), estimate(float("inf"), 41.0), "It misses the TTFT target.")
    given: dict[str, Any] = {
        "before": plain(pools(2, 2)),
        "pools": plain(pools(3, 1)),
        "title": "2xTP1@l4 + 2xTP1@l4 → 3xTP1@l4 + 1xTP1@l4",
        "reasons": ["TTFT p99 is 2.6 s and may be 2 s.", "Prefill is the bottleneck."],
        "alternatives": plain([other]),
        "inputs": plain(Inputs(now, 9.6, 10.4, 9.1, 12.2, MIX, 1.3, 1212, 1800.0, 1.08, 0.97, 2600.0, 38.0)),
        "present": plain(estimate(2600.0, 36.0, attained=0.88)),
        "predicted": plain(estimate(1480.0, 44.0)),
        "created_at": moment(now - 120),
        "seen_at": moment(now),
        "expires_at": moment(now + 3600),
    }
    return proposal(model, sizes={"prefill": 3, "decode": 1}, **{**given, **more})


def carried_out(model: models.Model, **more: Any) -> Proposal:
    """One that was approved, and measured afterwards."""
    actual = {
        "ttft_p99_ms": 1560.0,
        "itl_p99_ms": 42.0,
        "requests": 8600,
        "span_s": 900.0,
        "gaps": [],
        "expected": {"rate": 9.4, "prompt_tokens": 3100.0, "output_tokens": 310.0, **plain(estimate(1440.0, 43.0))},
    }
    operation = models.Operation.objects.filter(model=model).first()
    return rich(
        model,
        state="executed",
        decided_at=moment(time.time() - 7200),
        decided_by="ann",
        decision="looks right",
        actual=actual,
        operation=operation,
        **more,
    )


def trade(model: models.Model, giver: models.Model) -> Proposal:
    """It takes an engine of another model."""
    lent = Lent("", giver.name, model.name, "decode", 1, time.time())
    return rich(
        model,
        giver=giver,
        cause="trade",
        trade={
            "takes": plain([lent]),
            "gives_back": [],
            "giver_now": plain(estimate(900.0, 30.0)),
            "giver_then": plain(estimate(1100.0, 33.0)),
            "giver_pools": plain(pools(1, 1)),
        },
    )
