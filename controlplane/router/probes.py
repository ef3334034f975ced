"""Asks engines that have fallen silent whether they live, and brings those back that were set aside: only by a real
generation, never because a port answers."""

from __future__ import annotations

import logging
import time

import orjson

from controlplane.router import legs
from controlplane.router.engines import Engine
from controlplane.router.legs import Answer
from controlplane.router.limits import Limits
from controlplane.router.upstream import Fault

log = logging.getLogger(__name__)


async def answers_health(engine: Engine, limits: Limits) -> bool:
    """Whether its HTTP server lives: one that only works long on a prompt does answer this."""
    outcome = await legs.run(
        engine.pool, engine.get(b"/health"), legs.Collector(limits.answer_bytes), limits.health_s, limits
    )
    return not isinstance(outcome, Fault) and outcome.status < 500


async def prove(engine: Engine, limits: Limits) -> Fault | None:
    """One generated token from an engine that this router has not asked for anything yet; the fault if it gave none. Who
    takes the request and refuses it lives: not every model generates."""
    started = time.monotonic()
    outcome = await _generate(engine, limits)
    fault = outcome if isinstance(outcome, Fault) else None
    if fault is None and (outcome.status >= 500 or outcome.status in (401, 403)):
        fault = Fault("status", status=outcome.status)
    if fault is None:
        engine.proved_alive(started)
    return fault


async def probe(engine: Engine, limits: Limits) -> None:
    """One generated token, and the breaker told how it went. Always ends; `breaker.probing` must have been set."""
    good = False
    try:
        outcome = await _generate(engine, limits)
        # Not 404 either: an engine started again with another model must not come back as this one.
        good = not isinstance(outcome, Fault) and outcome.status == 200
    finally:
        engine.breaker.probed(good, time.monotonic())
    if good:
        log.info("engine %s is used again", engine.route.id)


async def _generate(engine: Engine, limits: Limits) -> Answer | Fault:
    body = orjson.dumps({"model": engine.model, "prompt": "ping", "max_tokens": 1})
    request = engine.request(b"/v1/completions", body, b"")
    return await legs.run(engine.pool, request, legs.Collector(limits.answer_bytes), limits.probe_s, limits)
