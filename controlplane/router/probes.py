"""Asks engines that have fallen silent whether they live, and brings those back that were set aside: only by a real
generation, never because a port answers."""

from __future__ import annotations

import logging
import time

import orjson

from controlplane.router import legs
from controlplane.router.engines import Engine
from controlplane.router.limits import Limits
from controlplane.router.upstream import Fault

log = logging.getLogger(__name__)


async def answers_health(engine: Engine, limits: Limits) -> bool:
    """Whether its HTTP server lives: one that only works long on a prompt does answer this."""
    outcome = await legs.run(
        engine.pool, engine.get(b"/health"), legs.Collector(limits.answer_bytes), limits.health_s, limits
    )
    return not isinstance(outcome, Fault) and outcome.status < 500


async def probe(engine: Engine, limits: Limits) -> None:
    """One generated token, and the breaker told how it went. Always ends; `breaker.probing` must have been set."""
    good = False
    try:
        body = orjson.dumps({"model": engine.model, "prompt": "ping", "max_tokens": 1})
        collector = legs.Collector(limits.answer_bytes)
        request = engine.request(b"/v1/completions", body, b"")
        outcome = await legs.run(engine.pool, request, collector, limits.probe_s, limits)
        # Not 404 either: an engine started again with another model must not come back as this one.
        good = not isinstance(outcome, Fault) and outcome.status == 200
    finally:
        engine.breaker.probed(good, time.monotonic())
    if good:
        log.info("engine %s is used again", engine.route.id)
