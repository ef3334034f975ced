"""Telemetry of a model for tests of the planner: minutes of routers and engines, written as ingest leaves them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from django.db import connection

from controlplane.control.models import Level, PlannerSetting, Proposal
from controlplane.core.sketches import Sketch
from controlplane.fleet import models
from controlplane.telemetry.tables import moment

COUNTERS = (
    *("prompt_tokens", "generation_tokens", "requests", "prefix_queries", "prefix_hits", "local_tokens", "external_tokens"),
    *("transfer_bytes", "transfers", "transfers_failed", "leases_expired", "preemptions"),
)


def insert(table: str, **values: Any) -> None:
    names = ", ".join(values)
    places = ", ".join(["%s"] * len(values))
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO telemetry_{table} ({names}) VALUES ({places})", list(values.values()))


def sketch(value: float, count: float = 100.0) -> bytes:
    return Sketch.of([value], count).to_bytes()


def traffic(
    now_s: float,
    rate: float | Callable[[float], float] = 2.0,
    *,
    model: str = "m",
    roles: tuple[str, ...] = ("prefill", "decode"),
    minutes: int = 40,
    prompt: int = 1000,
    output: int = 200,
    ttft_ms: float = 300.0,
    itl_ms: float = 30.0,
    told: int = 4,
    engines_until_s: float | None = None,
) -> None:
    """The minutes before `now_s` in which `rate` requests/s came and went, `told` of each as records."""
    last = int(now_s // 60 * 60)
    for start in range(last - 60 * minutes, last, 60):
        each = rate(start) if callable(rate) else rate
        _minute(model, start, each * 60, roles, ttft_ms, itl_ms)
        for number in range(told if each else 0):
            request(model, start + number * 60 / told, prompt, output, weight=max(1, round(each * 60 / told)))
    at = last if engines_until_s is None else engines_until_s
    for start in range(int(at) - 20, int(at) + (60 if engines_until_s is None else 1), 10):
        _ten_seconds(model, start)


def _minute(model: str, start: int, requests: float, roles: tuple[str, ...], ttft_ms: float, itl_ms: float) -> None:
    at = moment(start)
    if requests:
        none = dict.fromkeys(("client_error", "engine_error", "cancelled", "cut", "retries", "cached_tokens", "kv_bytes"), 0)
        insert(
            "model_minute",
            model=model,
            at=at,
            ok=round(requests),
            prompt_tokens=0,
            output_tokens=0,
            ttft_ms=sketch(ttft_ms),
            itl_ms=sketch(itl_ms),
            **none,
        )
    for role in roles:
        counters = dict.fromkeys(COUNTERS, 0.0) | {"requests": requests}
        insert(
            "pool_minute",
            model=model,
            role=role,
            at=at,
            engines=1,
            gpus=1,
            gpu_seconds=60,
            busy_seconds=30,
            running=1.0,
            waiting=0.0,
            waiting_max=0,
            **counters,
        )


def _ten_seconds(model: str, start: int) -> None:
    gauges = {"running": 1, "running_max": 1, "waiting": 0, "waiting_max": 0, "samples": 10}
    named = {"engine": f"e-{model}", "incarnation": 1, "role": "decode", "state": "ready"}
    insert("engine_10s", at=moment(start), model=model, **named, **gauges, **dict.fromkeys(COUNTERS, 0.0))


def request(model: str, at_s: float, prompt: int, output: int, weight: int = 1) -> None:
    insert(
        "request",
        id=uuid.uuid4().hex,
        at=moment(at_s),
        router="r1",
        model=model,
        path="disaggregated",
        reason="mode",
        status=200,
        outcome="ok",
        stream=True,
        prefill_engine="p",
        decode_engine="d",
        itl_ms=[],
        prompt_tokens=prompt,
        output_tokens=output,
        retries=0,
        weight=weight,
    )


def planned(model: models.Model, level: str = Level.APPROVE, **more: Any) -> PlannerSetting:
    """The planner set for a model, patient enough for tests that look once, and at a time that has passed by then."""
    guards = {"min_samples": 1, "cooldown_s": 0.0, "lifetime_s": 86_400.0} | more.pop("guards", {})
    row, _ = PlannerSetting.objects.update_or_create(model=model, defaults={"level": level, "guards": guards, **more})
    return row


def proposal(model: models.Model, **more: Any) -> Proposal:
    """An open proposal: one engine goes from decode to prefill."""
    pools = {pool.role: pool.desired_engines for pool in model.pools.filter(arm=models.MAIN, desired_engines__gt=0)}
    after = more.pop("sizes", {role: size + (1 if role == "prefill" else -1) for role, size in pools.items()})
    given: dict[str, Any] = {
        "key": "k",
        "level": "approve",
        "cause": "mix",
        "title": "1xTP1@l4 → 2xTP1@l4",
        "mode_before": model.mode,
        "mode": model.mode,
        "before": plans(pools),
        "pools": plans(after),
        "moves": 1,
        "reasons": ["The split does not suit the traffic."],
        "alternatives": [],
        "inputs": {},
        "present": {},
        "predicted": {"ttft_p99_ms": 500.0, "itl_p99_ms": 25.0},
        "created_at": "2026-11-30T12:00:00Z",
        "seen_at": "2026-11-30T12:00:00Z",
        "expires_at": "2126-11-30T12:00:00Z",
    }
    return Proposal.objects.create(model=model, **{**given, **more})


def plans(sizes: dict[str, int]) -> list[dict[str, Any]]:
    return [{"role": role, "engines": size, "tensor_parallel": 1, "gpu": "l4"} for role, size in sizes.items()]
